"""What is installed: pins that resolve from the public index."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert done.returncode == 0 and "skipped, http://127.0.0.1:9/simple does not answer" in done.stdout, done.stderr


def test_the_readmes_cpu_build_of_torch_is_the_one_that_is_pinned():
    pinned = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    command = f"pip install {pinned} --index-url https://download.pytorch.org/whl/cpu"
    assert command in (ROOT / "README.md").read_text()
