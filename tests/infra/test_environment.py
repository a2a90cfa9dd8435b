"""The environment that nox makes is one that the Pulumi CLI can use."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from proving_ground.infra.config import ROOT


@pytest.fixture(scope="module")
def menu() -> ModuleType:
    """The noxfile, as a module of its own; once, since nox remembers the sessions of a process."""
    spec = importlib.util.spec_from_file_location("menu", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Session:
    """Makes the environment for real, without the packages."""

    def run(self, *words: str, **_: Any) -> None:
        """One command; what would install is left out."""
        if "install" not in words:
            subprocess.run(words, check=True)

    def log(self, *_: str) -> None:
        """Nothing to say."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("uv", [True, False])
def test_pulumi_can_ask_the_environment_for_its_packages(
    menu: ModuleType,
    uv: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By uv or not, it has pip: the language host runs `python -m pip list --format json`."""
    monkeypatch.setattr(menu, "VENV", tmp_path / "venv")
    monkeypatch.setattr(menu, "PYTHON", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: uv if name == "uv" else None)
    menu.environment(Session())
    python = tmp_path / "venv" / "bin" / "python"
    command = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    assert json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (tmp_path / "venv" / "bin" / "pip").unlink()
    for folder in (tmp_path / "venv").glob("lib/python*/site-packages/pip*"):
        shutil.rmtree(folder)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("spoiled")
    menu.environment(Session())  # an environment of an earlier checkout, without pip, is mended
    assert (tmp_path / "venv" / "bin" / "pip").exists()


def test_the_project_names_that_environment_and_a_program_that_is_there() -> None:
    project = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    assert project["runtime"] == {"name": "python", "options": {"virtualenv": ".venv"}}
    assert (ROOT / project["main"]).is_file()


def test_what_pulumi_writes_lies_where_git_does_not_look() -> None:
    """Secrets, salt and chosen sizes; the committed files hold the environment and nothing else."""
    folder = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["stackConfigDir"]
    for stack in ("local", "dev"):
        command = ["git", "check-ignore", "--quiet", f"{folder}/Pulumi.{stack}.yaml"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    for file in ROOT.glob("Pulumi.*.yaml"):
        document = yaml.safe_load(file.read_text())
        assert list(document) == ["config"], file.name
        assert list(document["config"]) == ["proving-ground:environment"], file.name
