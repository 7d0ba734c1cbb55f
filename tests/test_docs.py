"""The documentation is true: code and commands run, the generated page is current, figures are the recorded ones."""

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinpipe.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
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


def commands():
    return [
        pytest.param(line, id=line)
        for block in blocks("console")
        for line in block.values[0].splitlines()
        if line.startswith("thinpipe")
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_on_the_pages_runs(code):
    exec(compile(code, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("command", commands())
def test_commands_on_the_pages_run(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


def launches():
    return [
        pytest.param(line, id=line)
        for block in blocks("console")
        for line in block.values[0].splitlines()
        if line.startswith("torchrun")
    ]


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
            assert line.split()[0] in {"thinpipe", "make", "torchrun"}, line


def test_the_page_of_commands_is_current(tmp_path):
    if f"typer=={version('typer')}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("another typer than the pinned one words the page in another way")
    page = tmp_path / "cli.md"
    generate = ["-m", "typer", "thinpipe.cli", "utils", "docs", "--name", "thinpipe", "--output", str(page)]
    subprocess.run([sys.executable, *generate], check=True, capture_output=True)
    assert page.read_text() == (ROOT / "docs/cli.md").read_text(), "run: make docs"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
