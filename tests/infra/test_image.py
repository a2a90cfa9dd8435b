"""The trainer's Dockerfile and the commands about it: what can be told without a builder (`test_image_build.py`)."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from proving_ground.infra import image
from proving_ground.infra.__main__ import main
from proving_ground.infra.cluster.manifest import USER
from proving_ground.infra.config import ROOT

FILE = ROOT / "training" / "Dockerfile"
TEXT = FILE.read_text()
PACKAGES = {"yaml": "pyyaml"}  # import → package, where they differ
BY_NAME = {"adlfs", "s3fs"}  # what fsspec loads for abfs:// and s3://
NEVER_IN_THE_IMAGE = {"sklearn", "arch", "argcomplete"}  # to make data before there is an image; for a shell's Tab


def installed() -> set[str]:
    """The packages that the image installs."""
    return set(re.findall(r"^\s+((?:[a-z0-9-]+ )*[a-z0-9-]+) \\$", TEXT, re.MULTILINE)[-1].split())


def imported() -> set[str]:
    """The packages that the trainer imports, also inside its functions."""
    found = set()
    for file in (ROOT / "training").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    own = {"proving_ground", *sys.stdlib_module_names} | NEVER_IN_THE_IMAGE
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
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?$", TEXT, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    assert bases == ["docker.io/library/python:${PYTHON}"] * 2


@pytest.mark.parametrize("word", ["http://", "https://", "curl", "apt-get", "chmod", "sudo"])
def test_nothing_is_fetched_or_opened_up(word: str) -> None:
    assert word not in TEXT


def program(folder: Path, name: str, script: str) -> None:
    """A program of that name, alone on PATH."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the Dockerfile, and a PATH with nothing on it yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(image, "FILES", {"trainer": tmp_path / "Dockerfile"})
    (tmp_path / "Dockerfile").write_text(TEXT)
    return tmp_path


DIGEST = f"sha256:{'ab' * 32}"


def test_the_digest_is_added_and_renewed(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(own, "skopeo", f'[ "$5" = "docker://docker.io/library/python:{tag()}" ] && echo {DIGEST}')
    for _ in range(2):
        assert main(["pin"]) == 0
        assert f"ARG PYTHON={tag()}@{DIGEST}\n" in (own / "Dockerfile").read_text()
    assert capsys.readouterr().out.splitlines()[-1] == f"trainer: {tag()}@{DIGEST}"


def tag() -> str:
    """The base image's, without a digest."""
    found = image.BASE.search(TEXT)
    assert found is not None
    return found["tag"]


@pytest.mark.parametrize(("words", "needs"), [(["pin"], "skopeo"), (["image", "trainer"], "buildah")])
def test_without_the_program_it_says_which(
    own: Path, words: list[str], needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"{needs}: the command is not on PATH" in capsys.readouterr().err
    program(own, needs, "echo ERROR: no match; echo no such registry >&2; exit 3")
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"infra: {needs} ")
    assert said.endswith(": ERROR: no match: no such registry\n")
    assert (own / "Dockerfile").read_text() == TEXT


def test_a_bill_of_materials_names_every_package() -> None:
    made = image.Image("t", 10, {"torch": 7}, {"torch": "2.9.0", "PyYAML": "6.0"})
    document = json.loads(json.dumps(image.bill(made)))
    assert [it["purl"] for it in document["components"]] == ["pkg:pypi/torch@2.9.0", "pkg:pypi/pyyaml@6.0"]
    assert document["metadata"]["component"]["name"] == "t"


def test_sizes_count_links_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(1000))
    (tmp_path / "b").symlink_to("a")
    assert image.size_of(tmp_path) == 1000 + 1


def test_both_images_have_the_same_base() -> None:
    bases = {line for file in image.FILES.values() for line in file.read_text().splitlines() if "ARG PYTHON" in line}
    assert len(bases) == 1
