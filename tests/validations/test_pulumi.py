"""Rounds and interruptions of stack `local`, without a cluster: whose turn it is, what counts as right, the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.validations import pulumi
from tests.validations.sitting import KeptError, Sitting, decide, load

ROUND = {
    "created": 78, "deleted": 78, "second_changed": 0, "pods": 7, "pods_ready": 7, "left": 0, "up_s": 40.0,
    "second_up_s": 5.0, "down_s": 20.0, "fine": True,
}  # fmt: skip
STOPPED = {"after_s": 3.0, "of_s": 40.0, "status": -9, "mended_s": 45.0, "fine": True}


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Decided: two rounds, one interruption of each kind; everything goes well unless a test says otherwise."""
    monkeypatch.setattr(pulumi, "FILE", tmp_path / "pulumi.json")
    monkeypatch.setattr(pulumi, "whole", lambda _made: dict(ROUND))
    monkeypatch.setattr(pulumi, "interruption", lambda *_: dict(STOPPED))
    made = load(pulumi.FILE, pulumi.COMMAND)
    decide(made, rounds=2, each=1)
    return made


def sit(document: dict[str, Any], minutes: float = 60.0) -> list[str]:
    said: list[str] = []
    pulumi.sit(document, None, Sitting(minutes, say=said.append))  # type: ignore[arg-type]
    return said


def test_each_has_its_turn_until_all_that_was_decided_is_there(document: dict[str, Any]) -> None:
    turns = [line.split(":")[0] for line in sit(document)]
    assert turns == ["whole", *pulumi.KINDS, "whole"]
    assert pulumi.next_of(document) == ""
    assert pulumi.status(document) == 0
    assert sit(load(pulumi.FILE, pulumi.COMMAND)) == []


def test_a_sitting_too_short_does_nothing(document: dict[str, Any]) -> None:
    assert sit(document, minutes=1.0) == []


def test_what_is_not_as_it_should_be_is_counted_and_fails(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulumi, "whole", lambda _made: ROUND | {"left": 2, "up_s": 70.0, "fine": False})
    assert any("not as it should be" in line for line in sit(document))
    assert pulumi.status(document) == 1
    rows = pulumi.table(document).splitlines()
    assert rows[2] == "| `up`, from nothing | 2 | 0 | 70 s | 70 s | every pod ready, ≤60 s |"
    assert rows[3] == "| a second `up` | 2 | 2 | 5 s | 5 s | no changes |"
    assert rows[4] == "| `down` | 2 | 0 | 20 s | 20 s | nothing left |"
    assert rows[5] == "| `up` stopped by SIGINT: mending | 1 | 1 | 45 s | 45 s | one command |"


def test_a_slow_up_fails(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulumi, "whole", lambda _made: ROUND | {"up_s": 61.0})
    sit(document)
    assert pulumi.status(document) == 1


def test_without_a_cli_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulumi, "FILE", tmp_path / "pulumi.json")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KeptError, match="no Pulumi CLI on PATH"):
        pulumi.main([])


class Stopped:
    """A command that ended."""

    err, status, seconds = "", -9, 12.0


class Made:
    """A project whose commands do what a test wants."""

    def __init__(self, *, mends: bool = True, left: int = 0) -> None:
        self.seconds: dict[str, float] = {}
        self.commands: list[str] = []
        self._mends, self._left = mends, ["it"] * left

    def bring(self, word: str) -> None:
        self.commands.append(f"bring {word}")

    def timed(self, word: str) -> None:
        self.commands.append(word)
        self.seconds[word] = 10.0

    def interrupt(self, word: str, way: str, after_s: float) -> Stopped:
        assert 0 <= after_s <= 10
        self.commands.append(f"{way} {word}")
        return Stopped()

    def mend(self, word: str) -> Stopped:
        if not self._mends:
            raise AssertionError("status 1")
        self.commands.append(f"mend {word}")
        return Stopped()

    def left(self) -> list[str]:
        return self._left

    def resources(self) -> int:
        return 0


def test_an_interruption_is_timed_by_an_undisturbed_run_and_mended() -> None:
    made = Made()
    found = pulumi.interruption(made, "down", "SIGKILL", 1)  # type: ignore[arg-type]
    assert made.commands == ["bring up", "down", "bring up", "SIGKILL down", "mend down"]
    assert found["fine"]
    assert found["mended_s"] == 12.0
    assert pulumi.interruption(Made(left=1), "down", "SIGINT", 1)["fine"] is False  # type: ignore[arg-type]
    failed = pulumi.interruption(Made(mends=False), "down", "SIGINT", 1)  # type: ignore[arg-type]
    assert (failed["fine"], failed["mended_s"], failed["why"]) == (False, None, "status 1")
