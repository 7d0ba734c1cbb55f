"""``thinpipe train`` under torchrun: ranks with stages, ranks with rows, signals, and runs that go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from thinpipe.checkpoint import latest
from thinpipe.cli import app
from thinpipe.train.encoder import encoder
from thinpipe.train.log import EvaluationLine, RunFolder, StepLine
from thinpipe.train.recipes import resolved
from train.small import write_glue

NEAR = {"rel": 1e-4, "abs": 1e-6}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

STAGES = {"stages": 2}
PACKED = {"map": "0,1,0", "codec": "ef(topk:0.1)", "grad_codec": "block:4,sr", "schedule": "gpipe"}
ROWS = {"data_parallel": True}
FEW = {"epochs": 1, "batch": 240}
UNEVEN = {"epochs": 1, "batch": 479}  # 1,438 samples: the last batch has one row, and rank 1 none of it
TEXTS = {"model": "tiny", "max_length": 24, "batch": 4, "limit": 11, "epochs": 1, "lr": 1e-3, "dropout": 0, "clip": 0.5}
TEXTS |= {"precision": "float32"}
DROPPING = {**TEXTS, "epochs": 8, "chunks": 2, "dropout": 0.3}
CASES = [
    {"run": "stages", "fields": FEW, "settings": STAGES},
    {"run": "u", "fields": {**FEW, "chunks": 3}, "settings": {"map": "0,1,0"}},
    {"run": "thin", "fields": {**UNEVEN}, "settings": {**STAGES, "bandwidth": "50mbit", "schedule": "gpipe"}},
    {"run": "rows", "fields": FEW, "settings": ROWS},
    {"run": "uneven rows", "fields": UNEVEN, "settings": ROWS},
    {"run": "rows in micro-batches", "fields": {**FEW, "chunks": 3}, "settings": ROWS},
    {"run": "texts", "recipe": "cola", "fields": {**TEXTS, "chunks": 2}, "settings": {"map": "0,1,0"}},
    {"run": "rows of texts", "recipe": "cola", "fields": TEXTS, "settings": ROWS},
    {"run": "whole", "fields": {**FEW, "epochs": 8, "chunks": 2}, "settings": PACKED},
    {"run": "broken", "fields": {**FEW, "epochs": 8, "chunks": 2}, "settings": PACKED, "stop_after": 5},
    {"run": "broken", "fields": {}, "settings": {}, "resume": True},
    {"run": "whole texts", "recipe": "cola", "fields": DROPPING, "settings": STAGES},
    {"run": "broken texts", "recipe": "cola", "fields": DROPPING, "settings": STAGES, "stop_after": 5},
    {"run": "broken texts", "recipe": "cola", "fields": {}, "settings": {}, "resume": True},
    {"run": "whole rows", "recipe": "cola", "fields": DROPPING, "settings": ROWS},
    {"run": "broken rows", "recipe": "cola", "fields": DROPPING, "settings": ROWS, "stop_after": 5},
    {"run": "broken rows", "recipe": "cola", "fields": {}, "settings": {}, "resume": True},
    {"run": "own norms", "fields": {**FEW, "batch_norm": "own"}, "settings": ROWS},
]

WILD = {"epochs": 1, "batch": 240, "lr": 1e6}
"""What diverges in a few steps."""

ALONE = {**TEXTS, "limit": 9}  # the last batch has one row, and the second replica none of it
REPLICAS = [
    {"run": "replicas", "recipe": "cola", "fields": {**TEXTS, "chunks": 2}, "settings": {"replicas": 2}},
    {"run": "uneven replicas", "recipe": "cola", "fields": ALONE, "settings": {"replicas": 2, "map": "0,1,0"}},
    {"run": "whole", "recipe": "cola", "fields": DROPPING, "settings": {"replicas": 2}},
    {"run": "broken", "recipe": "cola", "fields": DROPPING, "settings": {"replicas": 2}, "stop_after": 5},
    {"run": "broken", "recipe": "cola", "fields": {}, "settings": {}, "resume": True},
]
"""Of four ranks, two of which are a pipeline. Texts alone: BatchNorm sees the rows of its replica and no others."""


def numbers(path):
    """All losses and accuracies of a run, each step once."""
    lines = list(RunFolder(path).lines())
    steps = [line for line in lines if isinstance(line, StepLine)]
    assert [line.step for line in steps] == list(range(len(steps)))
    tests = [number for line in lines if isinstance(line, EvaluationLine) for number in (line.loss, line.accuracy)]
    return [line.loss for line in steps] + tests


def costs(path):
    return [line.cost for line in RunFolder(path).lines() if isinstance(line, StepLine)]


def trained(ranks, cases, data, folder):
    """Trains all cases with ranks that are started once; gives the folder of their runs, and their statuses."""
    script = Path(__file__).parent / "ways_ranks.py"
    found = {"THINPIPE_DATA": str(data), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [*TORCHRUN, str(ranks), script, folder, json.dumps(cases)]
    done = subprocess.run(command, env=ENVIRONMENT | found, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder, [json.loads((folder / f"statuses-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, _files):
    return trained(2, CASES, _files, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, _files):
    return trained(4, REPLICAS, _files, tmp_path_factory.mktemp("replicas"))


def one_device(tmp_path, case):
    words = [word for name, value in case["fields"].items() for word in ("--set", f"{name}={value}")]
    result = CliRunner().invoke(app, ["train", case.get("recipe", "digits"), *words, "--run", str(tmp_path / "one")])
    assert result.exit_code == 0, result.output
    return numbers(tmp_path / "one")


@pytest.mark.parametrize("case", CASES[:8], ids=lambda case: case["run"])
def test_ranks_have_the_losses_of_one_device(case, runs, tmp_path, files):
    assert numbers(runs[0] / case["run"]) == pytest.approx(one_device(tmp_path, case), **NEAR)


def test_ranks_whose_batch_norm_sees_their_own_rows_have_the_losses_of_as_many_micro_batches(runs, tmp_path, files):
    steps = RunFolder(runs[0] / "own norms").lines()
    ours = [line.loss for line in steps if isinstance(line, StepLine)]
    theirs = one_device(tmp_path, {"fields": {**FEW, "chunks": 2}})[: len(ours)]
    assert ours == pytest.approx(theirs, **NEAR)
    assert ours != pytest.approx(numbers(runs[0] / "rows")[: len(ours)], **NEAR)


@pytest.mark.parametrize("case", REPLICAS[:2], ids=lambda case: case["run"])
def test_replicas_have_the_losses_of_one_device(case, replicas, tmp_path, files):
    assert numbers(replicas[0] / case["run"]) == pytest.approx(one_device(tmp_path, case), **NEAR)


def test_a_signal_to_one_rank_of_a_replica_stops_all_and_nothing_is_lost(replicas):
    folder, statuses = replicas
    assert numbers(folder / "broken") == numbers(folder / "whole")
    assert all(of_rank[-2:] == [128 + signal.SIGTERM, 0] for of_rank in statuses)


def test_the_log_has_the_bytes_that_replicas_add_up(replicas):
    folder, _ = replicas
    gradients = 4 * sum(p.numel() for p in encoder(resolved("cola", ALONE), 2).parameters())
    # Each replica sends the other all its gradients, whatever the rows; few tensors of so small a batch cross the cuts.
    for cost in costs(folder / "uneven replicas"):
        assert all(gradients < cost[name] < 1.1 * gradients for name in ("raw_sent", "raw_received"))


@pytest.fixture(scope="module")
def troubled(tmp_path_factory, _files):
    """Two ranks that diverge, and two whose files differ."""
    folder = tmp_path_factory.mktemp("troubled")
    shorter, damaged = folder / "shorter", folder / "damaged"
    for path in (shorter, damaged):
        write_glue(path / "glue")
    lines = (shorter / "glue" / "RTE" / "train.tsv").read_text().splitlines()
    (shorter / "glue" / "RTE" / "train.tsv").write_text("\n".join(lines[:-1]) + "\n")
    (damaged / "glue" / "RTE" / "train.tsv").write_text("\n".join([*lines[:-1], "12 of a row"]) + "\n")
    texts = {**TEXTS, "limit": 0}
    cases = [
        {"run": "stages", "fields": WILD, "settings": {**STAGES, "every": 2}},
        {"run": "rows", "fields": WILD, "settings": {**ROWS, "every": 2}},
        {"run": "stages unsaved", "fields": WILD, "settings": STAGES},
        {"run": "rows unsaved", "fields": WILD, "settings": ROWS},
        {"run": "other", "recipe": "rte", "fields": texts, "settings": STAGES, "data": [str(_files), str(shorter)]},
        {"run": "damaged", "recipe": "rte", "fields": texts, "settings": ROWS, "data": [str(_files), str(damaged)]},
    ]
    folder, statuses = trained(2, cases, _files, folder)
    return folder, {case["run"]: [of_rank[k] for of_rank in statuses] for k, case in enumerate(cases)}


@pytest.mark.parametrize("name", ["stages", "rows", "stages unsaved", "rows unsaved"])
def test_ranks_that_diverge_stop_together_and_save_nothing_that_is_not_finite(name, troubled):
    folder, said = troubled
    first, second = said[name]
    assert first.startswith("NotFiniteError: step") and second.partition("\n")[0] == first.partition("\n")[0]
    assert "learning rate 1e+06" in first and "--set warmup=0.1" in first
    states = folder / name / "states"
    if "unsaved" in name:
        assert "the loss is nan" in first and "No weights were saved" in first and not states.exists()
        return
    assert f"good weights are in {latest(states)}" in first
    files = list(states.rglob("model/*.safetensors"))
    assert files and all(each.isfinite().all() for file in files for each in load_file(file).values())


def test_ranks_with_other_samples_are_told_what_differs(troubled):
    folder, said = troubled
    for text in said["other"]:
        assert text.startswith("DisagreementError: rank 0 and rank 1 have other samples: 12 to train on")
        assert "11 to train on" in text
    assert not (folder / "other" / "recipe.json").exists()


def test_what_one_rank_cannot_load_is_said_by_it_alone(troubled):
    first, second = troubled[1]["damaged"]
    assert first == "ToldElsewhere: rank 1 could not load the samples"
    assert second.startswith("DamagedDataError") and "line 13: 1 columns instead of 4" in second


@pytest.mark.parametrize("name", ["", " texts", " rows"])
def test_a_signal_to_one_rank_stops_all_after_the_same_step_and_nothing_is_lost(name, runs):
    folder, statuses = runs
    assert numbers(folder / f"broken{name}") == numbers(folder / f"whole{name}")
    places = [k for k, case in enumerate(CASES) if case["run"] == f"broken{name}"]
    for of_rank in statuses:
        assert [of_rank[k] for k in places] == [128 + signal.SIGTERM, 0]


def test_the_log_has_the_bytes_of_all_ranks(runs):
    folder, _ = runs
    # The first messages are padded, until lanes have learnt how long they usually are.
    third, summed = costs(folder / "u")[2], costs(folder / "rows")[0]
    raw = 240 * (16 * 64 + 64) * 4
    # In a U rank 0 sends what enters the middle, and the gradient of what leaves it.
    assert third["raw_sent"] == third["raw_received"] == raw < third["sent"] < 1.01 * raw
    assert third["computed"] > 0 and third["server_computed"] > 0
    parameters = 160 + 23232 + 650
    assert summed["sent"] == summed["received"] == 4 * parameters


def test_torchruns_own_signal_saves_everything_and_the_command_that_is_told_goes_on(tmp_path):
    # torchrun sends its ranks what it was sent; a second Ctrl-C, which it may be, is no command to give up.
    words = [*TORCHRUN, "2", "-m", "thinpipe", "train", "digits", "--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(
        [*words, "--stages", "2", "--epochs", "2000"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as process:
        log, until = tmp_path / "run" / "log.jsonl", time.monotonic() + 60
        while not (log.exists() and log.read_text().count("\n") > 5) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "saved after step" in said and f"train digits --run-dir {tmp_path / 'run'} --resume" in said
    taken = len(numbers(tmp_path / "run"))
    epochs = str(taken // 23 + 1)
    done = subprocess.run([*words, "--resume", "--epochs", epochs], env=ENVIRONMENT, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "begun by 2 processes" in alone("digits", "--run", tmp_path / "run", "--resume")


def alone(*words):
    result = CliRunner().invoke(app, ["train", *map(str, words)])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_rank_0_alone_says_why_all_ranks_stop(tmp_path):
    words = [*TORCHRUN, "2", "-m", "thinpipe", "train", "digits", "--run-dir", str(tmp_path / "run"), "--stages", "2"]
    done = subprocess.run(
        [*words, "--epochs", "1", "--lr", "1e6"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert done.stderr.count("the loss is nan") == 1 and "rank 0: step" in done.stderr, done.stderr[-3000:]
