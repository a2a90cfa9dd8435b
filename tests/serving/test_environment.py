"""The end point's own environment: exact pins that agree with the project's, and nothing left of what fails."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from proving_ground.serving import environment
from proving_ground.serving.mistakes import FailedError
from tests.serving.conftest import ROOT


def pinned(path: Path) -> dict[str, str]:
    """Name → version, of those that are the same for every Python."""
    lines = [it for it in path.read_text().splitlines() if it and not it.startswith("#")]
    assert [it for it in lines if not re.match(r"[\w.-]+==\S+( ; .+)?$", it)] == []
    return dict(it.split("==") for it in lines if ";" not in it)


def test_the_pins_are_exact_and_torch_is_the_trainer_s() -> None:
    own, project = pinned(environment.PINS), pinned(ROOT / "constraints.txt")
    assert {name: own[name] for name in ("torch", "mlflow-skinny")} == {
        name: project[name] for name in ("torch", "mlflow-skinny")
    }
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["scoring"]
    names = {re.split(r"[>=]", it)[0] for it in group}
    assert names <= {it.partition("==")[0] for it in environment.PINS.read_text().splitlines()}
    assert {it.partition("==")[0] for it in environment.pins()} == set(environment.DECLARED)


def test_what_cannot_be_made_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("./no-such-folder\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(FailedError, match="cannot be made") as found:
        environment.ready(print, pins)
    assert "\n" not in str(found.value)
    assert not environment.folder(pins).exists()
