"""The description for a package index: the README, whose relative links would lead nowhere there."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
RAW = SOURCE.replace("//github.com/", "//raw.githubusercontent.com/")


def absolute(link: re.Match[str]) -> str:
    """Makes a link lead to the repository, and a picture to the file itself."""
    mark, text, target = link.groups()
    return f"{mark}[{text}]({RAW}/main/{target})" if mark else f"[{text}]({SOURCE}/blob/main/{target})"


setup(
    long_description=re.sub(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)]+)\)", absolute, (ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
)
