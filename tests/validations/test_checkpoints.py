"""Crash points in small: ours are never bad, every mutant is caught, and the recording is what really happened."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.validations import checkpoints
from tests.validations.__main__ import main
from tests.validations.checkpoints import outcome, record, verdict
from tests.validations.crashes import KINDS, after_crash, promised
from tests.validations.tracing import Op, recording
from tests.validations.writers import MUTANTS, OURS, STEPS, WRITERS, Writer

POINTS = range(64)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Path → content of everything; None for a folder."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
        if "generations/" not in str(path)
    }


@pytest.mark.parametrize("name", WRITERS)
def test_a_trace_is_all_that_was_done(name: str, tmp_path: Path) -> None:
    """Played back to its end with nothing lost it gives the same files, byte for byte."""
    (tmp_path / "real").mkdir()
    (tmp_path / "again").mkdir()
    with recording(tmp_path / "real") as trace:
        WRITERS[name].save(trace, 2)
    after_crash(trace.ops, "kill", random.Random(0)).build(tmp_path / "again")  # noqa: S311 - not for secrets
    assert tree(tmp_path / "again") == tree(tmp_path / "real")
    assert promised(trace.ops) == STEPS
    assert WRITERS[name].read(tmp_path / "again") == (STEPS, checkpoints.TRUTH[STEPS])


def bad(writer: Writer, points: range) -> list[tuple[int, str, str]]:
    writing = checkpoints.Writing(writer)
    came = [(number, *outcome(writing, number)) for number in points]
    assert {kind for _, kind, _ in came} == set(KINDS)
    return [point for point in came if point[2] != "ok"]


@pytest.mark.parametrize("name", checkpoints.OURS)
def test_ours_cannot_lie(name: str) -> None:
    assert bad(WRITERS[name], POINTS) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    assert bad(MUTANTS[name], POINTS)


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in checkpoints.OURS])
def test_the_baselines_are_read_as_they_are_meant_to_be(name: str) -> None:
    """A baseline that a mistake of ours made bad at every point would prove nothing."""
    found = bad(WRITERS[name], POINTS)
    assert 0 < len(found) < len(POINTS)


def test_what_was_synced_stays_and_what_was_not_may_go() -> None:
    new, data = Op("enter", node=1, entries=((0, "a", 1),)), Op("write", node=1, data=b"x" * 90_000)
    dice = random.Random(1)  # noqa: S311 - not for secrets
    assert after_crash([new, data], "lost", dice).entries[0] == {}
    only_data = after_crash([new, data, Op("sync", node=1)], "lost", dice)
    assert (only_data.entries[0], bytes(only_data.content[1])) == ({}, data.data)
    only_name = after_crash([new, data, Op("sync", node=0)], "lost", dice)
    assert (only_name.entries[0], bytes(only_name.content[1])) == ({"a": 1}, b"")
    torn = bytes(after_crash([new, data, Op("sync", node=0)], "torn", dice).content[1])
    assert torn == data.data[: len(torn)]
    assert len(torn) % 512 == 0
    mixed = bytes(after_crash([new, data, Op("sync", node=0)], "reordered", dice).content[1])
    assert set(mixed) == {0, ord("x")}


def test_a_full_disk_is_recorded_as_full() -> None:
    room = 100_000
    ops = record(OURS, 2, room)
    assert sum(len(op.data) for op in ops) == room
    assert promised(ops) < STEPS


def test_a_verdict_needs_the_promised_step(tmp_path: Path) -> None:
    def reader(step: int, content: str) -> Writer:
        return Writer(OURS.save, lambda _: (step, content), OURS.newest)

    assert verdict(reader(2, checkpoints.TRUTH[2]), tmp_path, 2) == "ok"
    assert verdict(reader(2, checkpoints.TRUTH[2]), tmp_path, 3) == "lost"
    assert verdict(reader(2, checkpoints.TRUTH[1]), tmp_path, 1) == "wrong"
    assert verdict(reader(0, checkpoints.TRUTH[0]), tmp_path, 0) == "wrong"


def test_it_accumulates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.json"
    monkeypatch.setattr(checkpoints, "WRITERS", {"proving-ground": OURS})
    monkeypatch.setattr(checkpoints, "MUTANTS", {})
    assert main(["checkpoints", "--points", "8", "--out", str(out)]) == 0
    monkeypatch.setattr(checkpoints, "judge", lambda _name, _writer, points, _counts: done.append(points))
    done: list[range] = []
    assert main(["checkpoints", "--points", "20", "--out", str(out)]) == 0
    assert done == [range(8, 20)]
    first = json.loads(out.read_text())["writers"]["proving-ground"]
    assert (first["points"], first["bad"], first["bad_rate_ci95"][0]) == (8, 0, 0.0)
    out.write_text("{]")
    assert main(["checkpoints", "--out", str(out)]) == 2
    assert main(["checkpoints", "--points", "0", "--out", str(tmp_path / "d.json")]) == 2
    assert "move it away" in capsys.readouterr().err
