"""The documentation is true: code and commands run, the generated page is current, figures are the recorded ones."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app
from thinpipe.reproduce.training.tables import TABLES
from thinpipe.train.recipe import field_names
from thinpipe.train.recipes import RECIPES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# The commands under this heading, of whatever level, belong together: they need a server, and what came before.
STORY = re.compile(r"^(#+) Train with a server$.*?(?=^\1 |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    found = []
    for page in PAGES:
        if page.name == "cli.md":  # generated from the commands themselves, with placeholders for arguments
            continue
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            if match[1] == language:
                found.append(pytest.param(match[2], id=f"{page.name}-{number}"))
    return found


STORIES = ("guide.md", "own-model.md", "recipes.md")
"""Pages whose commands belong together from the first to the last."""


def told_alone(page):
    """What of a page is no part of a story."""
    return "" if page.name in (*STORIES, "cli.md") else STORY.sub("", page.read_text())


def lines(text, *programs):
    found = [line for match in BLOCK.finditer(text) if match[1] == "console" for line in match[2].splitlines()]
    return [line for line in found if line.split()[0] in programs]


def commands():
    return [pytest.param(line, id=line) for page in PAGES for line in lines(told_alone(page), "thinpipe")]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_on_the_pages_runs(code):
    exec(compile(code, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("command", commands())
def test_commands_on_the_pages_run(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


# -- commands that need a server: all of them in order, as a reader would run them ------------------------------------


class Reader:
    """Follows a page from command to command, in an empty folder that has the examples.

    ``serve`` gets a terminal of its own, where it stays until another one is started at the same address. Ports are
    exchanged for free ones, and nothing else is.
    """

    def __init__(self, folder):
        self.folder = folder
        self._servers, self._ports = {}, {}

    def run(self, command):
        command = re.sub(r"(?<=127\.0\.0\.1:|--metrics )\d+", self._port, command)
        program, *words = shlex.split(command)
        if words[0] == "serve":
            self._serve(words)
            return ""
        if program == "curl":  # which is not on every machine
            assert words[:-1] == ["-s"]
            with urllib.request.urlopen(words[-1], timeout=10) as answer:
                return answer.read().decode()
        if program == "thinpipe":
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, f"{command}\n{result.output}"
            return result.output
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    def _port(self, found):
        if found[0] not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[found[0]] = str(free.getsockname()[1])
        return self._ports[found[0]]

    def _serve(self, words):
        address = words[words.index("--listen") + 1]
        if address in self._servers:
            self._servers.pop(address).close()
        with ExitStack() as stack:
            stack.enter_context(serving(words, self.folder))
            self._servers[address] = stack.pop_all()

    def close(self):
        for server in self._servers.values():
            server.close()


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PROGRAMS = ("thinpipe", "python", "curl")
"""What a reader runs; torchrun's programs are run by a test of their own."""


@contextmanager
def serving(words, folder):
    """Runs a server until the end of the context, and ends it as Ctrl-C does."""
    command = [sys.executable, "-u", "-m", "thinpipe", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("listens at"):
                break
        else:
            raise AssertionError(f"{shlex.join(words)}\n{said}")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0 and "Traceback" not in rest, rest


@pytest.fixture
def reader(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    reading = Reader(tmp_path)
    yield reading
    reading.close()


@pytest.mark.timeout(300)
def test_four_commands_of_the_readme_train_with_a_server_in_two_terminals(reader):
    section = STORY.search((ROOT / "README.md").read_text())[0]
    four = lines(section, "thinpipe")
    assert [command.split()[1] for command in four] == ["keygen", "serve", "train", "report"]
    *_, said = map(reader.run, four)
    # What a run learns and sends is the same on every machine, or nearly; how fast it is, is not.
    for name in ("accuracy", "ratio"):
        shown = float(re.search(rf"^\| {name} \| ([\d.]+)%", section, re.MULTILINE)[1])
        assert float(re.search(rf"│ {name} +│ ([\d.]+)%", said)[1]) == pytest.approx(shown, abs=1.5)
    for name in re.findall(r"^\| (\w[\w ]*) \|", section, re.MULTILINE):
        assert f"│ {name} " in said


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_about_servers_run_one_after_another(reader):
    page = (ROOT / "docs/client-server.md").read_text()
    for command in lines(page, "thinpipe", "python", "curl"):
        said = reader.run(command)
        if command.startswith("curl"):
            served = set(re.findall(r"^# TYPE (\w+)", said, re.MULTILINE))
            assert served == set(re.findall(r"`(thinpipe_\w+)`", page))


@pytest.mark.timeout(300)
def test_the_path_of_the_guide_can_be_walked(reader):
    for command in lines((ROOT / "docs/guide.md").read_text(), *PROGRAMS):
        reader.run(command)
    assert (reader.folder / "runs/demo/report.html").exists()


@pytest.mark.timeout(300)
def test_models_of_the_readers_own_learn_and_send_little(reader):
    pytest.importorskip("transformers")
    said = {command: reader.run(command) for command in lines((ROOT / "docs/own-model.md").read_text(), *PROGRAMS)}
    examples = [text for command, text in said.items() if command.startswith("python")]
    assert len(examples) == 4
    for text in examples:
        found = re.findall(r"loss ([\d.]+), ([\d,]+) bytes a batch, ([\d,]+) unpacked", text)
        losses = [float(loss) for loss, _, _ in found]
        packed, raw = (int(size.replace(",", "")) for size in found[-1][1:])
        assert losses[-1] < 0.5 * losses[0] and packed < 0.15 * raw


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_about_recipes_run_one_after_another(reader):
    pytest.importorskip("transformers")
    page = (ROOT / "docs/recipes.md").read_text()
    for match in BLOCK.finditer(page):
        if match[1] == "toml":
            (reader.folder / match[2].splitlines()[0].removeprefix("# ")).write_text(match[2])
    for command in lines(page, *PROGRAMS):
        reader.run(command)


def test_the_page_about_recipes_has_every_recipe_and_every_field():
    page = (ROOT / "docs/recipes.md").read_text()
    assert not [name for name in (*RECIPES, *field_names()) if f"`{name}`" not in page]


def test_a_server_is_started_only_where_one_is_expected():
    for page in PAGES:
        rest = told_alone(page)
        assert not [line for line in lines(rest, "thinpipe", "python", "curl") if not line.startswith("thinpipe ")]
        assert "thinpipe serve" not in {" ".join(line.split()[:2]) for line in lines(rest, "thinpipe")}


# -- everything else --------------------------------------------------------------------------------------------------


def launches():
    found = [line for block in blocks("console") for line in block.values[0].splitlines()]
    return [pytest.param(line, id=line) for line in dict.fromkeys(found) if line.startswith("torchrun")]


@pytest.mark.parametrize("command", launches())
def test_programs_of_many_ranks_on_the_pages_run(command):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr


def test_make_knows_every_target_on_the_pages():
    targets = {
        word
        for block in blocks("console")
        for line in block.values[0].splitlines()
        if line.startswith("make ")
        for word in line.split()[1:]
    }
    assert targets == {"demo", "test", "lint"}
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_every_console_line_is_a_command_some_test_runs():
    for block in blocks("console"):
        for line in block.values[0].splitlines():
            assert line.split()[0] in {"thinpipe", "make", "torchrun", "python", "curl"}, line


def test_the_page_of_commands_is_current(tmp_path):
    if f"typer=={version('typer')}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("another typer than the pinned one words the page in another way")
    page = tmp_path / "cli.md"
    generate = ["-m", "typer", "thinpipe.cli", "utils", "docs", "--name", "thinpipe", "--output", str(page)]
    subprocess.run([sys.executable, *generate], check=True, capture_output=True)
    assert page.read_text() == (ROOT / "docs/cli.md").read_text(), "run: make docs"


FOLDER = re.compile(r"(?<![\w.)/])/(?:tmp|root|home|work|mnt|Users)\b")
"""A folder of the machine that something ran on."""


def test_no_page_and_no_record_names_a_folder_of_the_machine_that_it_ran_on():
    results = [path for path in (ROOT / "results").rglob("*") if path.suffix in {".json", ".log", ".md"}]
    assert len(results) > 300
    assert not [
        str(path.relative_to(ROOT))
        for path in (*PAGES, ROOT / "CHANGELOG.md", *results)
        if FOLDER.search(path.read_text())
    ]


def test_commands_in_records_can_be_typed_anywhere():
    for path in (ROOT / "results").rglob("*.json"):
        words = shlex.split(json.loads(path.read_text())["command"])
        assert words[0] == "thinpipe" and not [word for word in words if word.rpartition("=")[2].startswith("/")], path


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_a_table_have_as_many_cells_as_its_head(page):
    for table in re.findall(r"(?:^\|.*\n)+", BLOCK.sub("", page.read_text()), re.MULTILINE):
        cells = {line.replace(r"\|", "").count("|") for line in table.splitlines()}
        assert len(cells) == 1, table[:300]


def test_the_figures_of_the_readme_are_the_recorded_ones():
    record = json.loads((ROOT / "results/pipe-2-cores.json").read_text())
    readme = (ROOT / "README.md").read_text()
    row = r"\| one stage.*\| \*\*([\d.]+)\*\* \| ([\d.]+) \|\n\| two stages.*\| \*\*([\d.]+)\*\* \| ([\d.]+) \|"
    names = ["overhead_1x1", "torchgpipe_overhead_1x1", "speedup_2", "torchgpipe_speedup_2"]
    assert list(re.search(row, readme).groups()) == [f"{record[name]:.2f}" for name in names]
    assert f"a factor of {record['pipelining_2']:.2f} is the second stage's" in readme


def test_the_table_of_the_wire_in_the_readme_is_the_recorded_one():
    files = [ROOT / f"results/link/{rate}.json" for rate in ("full", "200mbit", "50mbit")]
    records = [json.loads(file.read_text()) for file in files]
    readme = (ROOT / "README.md").read_text()
    rows = {"torch.distributed.pipelining, float32": "tdp_raw", "thinpipe, float32": "raw", "thinpipe, 8 bits": "coded"}
    for row, name in rows.items():
        cells = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", readme, re.MULTILINE)[1]
        figures = [cell.strip(" *") for cell in cells.split("|")]
        assert figures == [f"{record[f'{name}_ms']:.0f}" for record in records]


def test_the_table_of_the_demo_in_the_readme_is_the_recorded_one():
    readme = (ROOT / "README.md").read_text()
    files = sorted((ROOT / "results/demo").glob("*.json"))
    assert len(files) == 4
    for record in (json.loads(file.read_text()) for file in files):
        codec, milliseconds = record["settings"]["codec"], 1e3 * record["seconds_per_batch"]
        sent = f"{record['bytes_per_batch'] / 1e3:.1f} | {record['ratio']:.1%}"
        row = f"{record['accuracy']:.2%} | {sent} | {milliseconds:.0f} | {record['over_none']:.1f}x |"
        assert re.search(rf"^\| (\*\*)?{re.escape(codec)}(\*\*)? \| {re.escape(row)}$", readme, re.MULTILINE), row


def test_the_sums_of_channels_in_the_catalogue_are_the_recorded_ones():
    record = json.loads((ROOT / "results/codecs/mobilenetv2-cut1-gradient.json").read_text())
    page = " ".join((ROOT / "docs/codecs.md").read_text().split())
    wrong = {spec: float(format(record[f"{spec} sums"], ".2g")) for spec in ("uniform:8", "block:4", "had:4", "wave:4")}
    *others, last = wrong.items()
    assert all(f"{figure:,g} with `{spec}`" in page for spec, figure in others)
    assert "With `{}` it is {:g}:".format(*last) in page


def test_what_the_readme_says_of_kept_memory_is_recorded():
    found = [json.loads(file.read_text())["speedup"] for file in (ROOT / "results/heap").glob("*.json")]
    said = re.search(r"\[([\d.]+) to ([\d.]+) times as fast\]", (ROOT / "README.md").read_text()).groups()
    assert said == (f"{min(found):.1f}", f"{max(found):.1f}")


def accuracy(table, row):
    """The mean over all recorded seeds in percent, and how many they are."""
    found = [json.loads(file.read_text())["accuracy"] for file in (ROOT / "results" / table).glob(f"{row}-seed*.json")]
    return 100 * sum(found) / len(found), len(found)


def test_the_accuracies_of_the_readme_are_the_means_of_the_recorded_seeds():
    readme = " ".join((ROOT / "README.md").read_text().split())
    said = re.search(
        r"([\d.]+)% without a codec, \*\*([\d.]+)% with `wave:2`.* and ([\d.]+)% with `wave:0.6`", readme
    ).groups()
    for row, figure in zip(("none", "wave2", "wave0.6"), said, strict=True):
        assert (figure, 3) == (f"{accuracy('short-cifar10', row)[0]:.2f}", accuracy("short-cifar10", row)[1]), row


def test_what_the_readme_says_of_sort_quantization_is_published_or_recorded_at_the_published_step():
    readme = " ".join((ROOT / "README.md").read_text().split())
    published, seeds, ours = (
        re.search(pattern, readme).groups()
        for pattern in (
            r"published ([\d.]+)% with 8 bits and ([\d.]+)% with 4",
            r"with `wave:4`\*\*, (one seed|means of two seeds|means of three seeds)",
            r"([\d.]+)% without a codec, ([\d.]+)% with 8 bits, ([\d.]+)% with 4, and \*\*([\d.]+)% with `wave:4`",
        )
    )
    rows = {row.name: row.published.value for row in TABLES["sortquant-cifar10"].rows}
    assert published == tuple(f"{100 * rows[row]:.1f}" for row in ("sort6+2", "sort3+1"))
    for row, figure in zip(("none", "sort6+2", "sort3+1", "wave4"), ours, strict=True):
        mean, count = accuracy("sortquant-cifar10-small", row)
        counted = {1: "one seed", 2: "means of two seeds", 3: "means of three seeds"}[count]
        assert (figure, seeds[0]) == (f"{mean:.1f}", counted), row


def test_what_bottlenecks_under_a_codec_come_to_is_recorded():
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/bottlenecks.md"))
    cifar10 = ROOT / "results/short-cifar10"
    for type_, row in (("5", "conv32k4s4+4-conv400+100"), ("7", "conv32k8s8+8-conv300+30")):
        alone, packed = (json.loads((cifar10 / f"{name}-seed0.json").read_text()) for name in (row, f"{row}-wave4"))
        accuracies = [f"{100 * record['accuracy']:.2f}%" for record in (alone, packed)]
        times = f"{1 / packed['float32_ratio']:,.0f}th"
        assert re.search(rf"type {type_} has {accuracies[0]}.* and {accuracies[1]}.*, in a {times}", page)
        if type_ == "5":
            assert f"**{accuracies[1]} in a {times}**" in readme
    rows = (f"conv20k3s3-conv360{codec}" for codec in ("", "-had4", "-wave2", "-wave4"))
    alone, *packed = (json.loads((cifar10 / f"{row}-seed0.json").read_text())["accuracy"] for row in rows)
    costs = [f"{100 * (alone - accuracy):.2f}" for accuracy in packed]
    assert "`had:4` costs {} points, `wave:2` {} and `wave:4` {}.".format(*costs) in page
    second = json.loads((cifar10 / "conv20k3s3-conv360-wave4-seed1.json").read_text())["accuracy"]
    assert f"came to {100 * second:.2f}: {100 * (alone - second):.2f} points less than seed 0 without it" in page
    rows = ("conv32k4s4+16-conv360+100-wave4", "wave0.15")
    found = (json.loads((cifar10 / f"{row}-seed0.json").read_text())["accuracy"] for row in rows)
    assert "under `wave:4` has {:.2f}%, and `wave:0.15` alone {:.2f}%".format(*(100 * each for each in found)) in page


def test_how_fast_the_readme_says_that_kernels_pack_is_recorded():
    record = json.loads((ROOT / "results/codecs/speed.json").read_text())
    readme = " ".join((ROOT / "README.md").read_text().split())
    slowest, fastest = (record[f"{spec} encode"] for spec in ("wave:4", "block:4"))
    assert f"kernels pack {slowest:.1f} (`wave:4`) to {fastest:.0f} GB/s (`block:4`) on two cores" in readme


def test_what_recomputation_costs_is_recorded():
    rates = {
        row: json.loads((ROOT / f"results/unet-speed/{row}-in-place-3x6.json").read_text())["throughput"]
        for row in ("baseline", "pipeline-1", "pipeline-1-cheap")
    }
    page = " ".join((ROOT / "docs/pipelines.md").read_text().split())
    whole, cheap = (rates[row] / rates["baseline"] for row in ("pipeline-1", "pipeline-1-cheap"))
    assert f"at {whole:.2f} of its speed without a pipe, and so at {cheap:.2f}" in page


def test_what_a_lossless_stage_saves_is_recorded():
    bits, saved = [], []
    for file in (ROOT / "results/codecs").glob("m*.json"):
        record = json.loads(file.read_text())
        for spec in ("block:4", "had:4"):
            bits.append(record[f"{spec}|zstd bits"])
            saved.append(1 - bits[-1] / record[f"{spec} bits"])
    page = " ".join((ROOT / "docs/codecs.md").read_text().split())
    assert f"the same error takes {min(bits):.1f} to {max(bits):.1f} bits" in page
    assert (f"{min(saved):.1f}", f"{max(saved):.1f}") == ("0.1", "0.9") and "shrink by a tenth to nine tenths" in page
