"""The trainer's Dockerfile: what can be told without a builder."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from infra.cluster.manifest import USER
from infra.config import ROOT

FILE = ROOT / "training" / "Dockerfile"
TEXT = FILE.read_text()
PACKAGES = {"yaml": "pyyaml"}  # import → package, where they differ
BY_NAME = {"adlfs", "s3fs"}  # what fsspec loads for abfs:// and s3://
NEVER_IN_THE_IMAGE = {"torchvision", "sklearn", "arch"}  # only to make data and profiles, before there is an image


def installed() -> set[str]:
    """The packages that the image installs."""
    return set(re.findall(r"^\s+((?:[a-z0-9-]+ )*[a-z0-9-]+) \\$", TEXT, re.MULTILINE)[-1].split())


def imported() -> set[str]:
    """The packages that the trainer imports, also inside its functions."""
    found = set()
    for file in (ROOT / "training").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    own = {"training", *sys.stdlib_module_names} | NEVER_IN_THE_IMAGE
    return {PACKAGES.get(name, name) for name in found - own}


def test_the_image_has_what_the_trainer_imports_and_no_more() -> None:
    assert installed() == imported() | BY_NAME


def test_versions_come_from_the_constraints() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    assert "--constraint /tmp/constraints.txt" in TEXT
    assert not [name for name in installed() if not re.search(rf"^{name}==", pins, re.MULTILINE)]


def test_the_user_is_the_one_that_the_cluster_runs_it_as() -> None:
    assert f"USER {USER}:{USER}\n" in TEXT
    assert TEXT.index("USER ") < TEXT.index("CMD ")


def test_base_images_have_exact_versions() -> None:
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+$", TEXT, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    assert bases == ["docker.io/library/python:${PYTHON}"] * 2


@pytest.mark.parametrize("word", ["http://", "https://", "curl", "apt-get", "chmod", "sudo"])
def test_nothing_is_fetched_or_opened_up(word: str) -> None:
    assert word not in TEXT
