"""What is installed: pins that resolve from the public index; a wheel and a source distribution."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import thinpipe

ROOT = Path(__file__).parents[1]


def check_pins(*words, **environment):
    """Runs the step of CI for one Python and platform."""
    pytest.importorskip("uv", reason="uv is not installed: pip install 'thinpipe[lint]'")
    return subprocess.run(
        [ROOT / ".ci/check-pins", *words, "3.14", "x86_64-manylinux_2_28"],
        env={**os.environ, "PYTHON": sys.executable, "UV_HTTP_RETRIES": "0", **environment},
        capture_output=True,
        text=True,
    )


def test_a_pin_that_another_one_rules_out_fails_the_check_of_pins(tmp_path):
    broken = tmp_path / "constraints.txt"
    broken.write_text("torch==2.13.0\ntriton==3.6.0\n")
    done = check_pins(broken)
    if "skipped" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 1 and "does not resolve" in done.stderr and "3.7.1" in done.stderr, done.stderr


def test_the_check_of_pins_is_skipped_where_no_index_answers(tmp_path):
    done = check_pins("constraints.txt", INDEX="http://127.0.0.1:9/simple", UV_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0 and "skipped, the package index does not answer" in done.stdout, done.stderr


def test_the_readmes_cpu_build_of_torch_is_the_one_that_is_pinned():
    pinned = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    command = f"pip install {pinned} --index-url https://download.pytorch.org/whl/cpu"
    assert command in (ROOT / "README.md").read_text()


def build(kind, folder, output):
    """Builds as pip would, but with the setuptools that are here."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(output)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1]


def files(folder):
    """The files of a clone, or of a source distribution, that somebody wrote."""
    if (folder / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
        names = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
        return {name for name in names if (folder / name).is_file()} - {".gitignore"}
    made = {"__pycache__", "thinpipe.egg-info", "PKG-INFO", "setup.cfg"}
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(name) for name in names if not made & set(name.parts)}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The source distribution of this clone, unpacked."""
    folder = tmp_path_factory.mktemp("packages")
    for name in files(ROOT):
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "clone" / name)
    with tarfile.open(build("sdist", folder / "clone", folder)) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("thinpipe-*/"))


@pytest.fixture(scope="module")
def wheel(unpacked):
    """The wheel that is made of the source distribution."""
    return zipfile.ZipFile(build("wheel", unpacked, unpacked.parent))


def test_the_source_distribution_is_whole_and_its_tests_run(unpacked):
    assert files(unpacked) == files(ROOT)
    # One of them reads records, another the documentation, the third an example.
    chosen = ["tests/reproduce/test_default_codec.py", "tests/bottleneck/test_page.py", "tests/trace/test_show.py"]
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and re.search(r"\d+ passed", done.stdout), done.stdout + done.stderr


def test_the_wheel_has_the_package_alone(wheel):
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "thinpipe",
        f"thinpipe-{thinpipe.__version__}.dist-info",
    }
    data = "thinpipe/reproduce/queue/order.toml"
    assert {"thinpipe/py.typed", "thinpipe/cli.py", data} < set(wheel.namelist())


def test_a_package_index_is_told_who_where_and_links_that_lead_somewhere(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    said = message_from_bytes(wheel.read(name))
    assert said["Author"] == "The thinpipe authors" and said["Version"] == thinpipe.__version__
    urls = dict(line.split(", ") for line in said.get_all("Project-URL"))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert said["Description-Content-Type"] == "text/markdown"
    description = said.get_payload(decode=True).decode()
    links, pictures = f"{urls['Source']}/blob/main/", "https://raw.githubusercontent.com/thinpipe/thinpipe/main/"
    found = re.findall(r"(!?)\[[^]]*\]\(([^)#]+)[^)]*\)", description)
    assert len(found) == len(re.findall(r"\]\(", (ROOT / "README.md").read_text())) > 10
    for mark, target in found:
        if (own := target.removeprefix(pictures if mark else links)) == target:
            assert target.startswith("https://"), target
        else:
            assert (ROOT / own).is_file(), own
