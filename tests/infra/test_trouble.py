"""Every failure in one line: what the engine says, and what we make of it (`mistakes.toml`)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra import __main__ as cli
from proving_ground.infra import life, operate, trouble
from tests.infra.test_life import Double

MISTAKES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())["mistake"]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["name"])
@pytest.mark.parametrize("command", ["down", "up"])
def test_a_mistake_is_told_in_one_line(
    mistake: dict[str, Any], command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Double):
        def up(self) -> None:
            raise life.StackError(mistake["says"])

        def destroy(self, *, cluster_gone: bool = False) -> None:
            del cluster_gone
            raise life.StackError(mistake["says"])

    monkeypatch.setattr(operate, "open_stack", lambda _: Failing())
    assert cli.main([command, "local"]) == mistake["status"]
    out, err = capsys.readouterr()
    told = (err if command == "down" else out).splitlines()[0]
    assert f"{mistake['kind']}: " in told
    assert mistake["line"] in told
    assert trouble.classify(mistake["says"]).advice in told
    assert len(err.splitlines()) == (command == "down")
    assert len(told) < trouble.LONGEST + 250


def test_every_kind_of_trouble_is_among_the_mistakes() -> None:
    assert {item.kind for item in trouble.TROUBLES} | {"unknown"} == {mistake["kind"] for mistake in MISTAKES}
    assert len(MISTAKES) >= 40


def test_a_message_without_an_error_line_is_told_by_its_last_line() -> None:
    assert trouble.why("") == "no message"
    assert trouble.why("first\nlast\n") == "last"
    assert trouble.why("error: update failed") == "update failed"
