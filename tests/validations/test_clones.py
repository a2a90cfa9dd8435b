"""Both commands in fresh clones: whose turn it is, what counts as an answer, the table."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.validations import clones
from tests.validations.sitting import KeptError, Sitting, decide, load

SEEN = {"verdict": "pass", "status": 0, "seconds": 300.0, "first_figure_s": 50.0, "load": 0.1}


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Ten rounds are decided; each passes unless a test says otherwise."""
    monkeypatch.setattr(clones, "FILE", tmp_path / "clones.json")
    monkeypatch.setattr(clones, "measured", lambda *_: dict(SEEN))
    made = load(clones.FILE, clones.COMMAND)
    decide(made, rounds=10)
    return made


def sit(document: dict[str, Any], minutes: float = 60.0) -> list[str]:
    said: list[str] = []
    clones.sit(document, Sitting(minutes, say=said.append))
    return said


def test_each_cell_has_its_turn_until_all_that_was_decided_is_there(document: dict[str, Any]) -> None:
    turns = [line.partition(":")[0] for line in sit(document) if not line.startswith(" ")]
    assert turns == [*clones.CELLS] * 10
    assert clones.status(document) == 0
    assert all(row.endswith("| met |") for row in clones.table(document).splitlines()[2:6])
    assert sit(load(clones.FILE, clones.COMMAND)) == []


def test_a_sitting_too_short_does_nothing(document: dict[str, Any]) -> None:
    assert sit(document, minutes=1.0) == []
    assert clones.status(document) == 0
    assert clones.table(document).splitlines()[2].endswith("| 0 of 10 |")


@pytest.mark.parametrize(
    ("cell", "odd", "met"),
    [
        ("bench, idle", {"verdict": "fail"}, True),
        ("bench, idle", {"verdict": "unknown"}, False),
        ("bench, idle", {"verdict": "none"}, False),
        ("bench, idle", {"seconds": 361.0}, False),
        ("bench, idle", {"first_figure_s": 91.0}, False),
        ("bench, idle", {"first_figure_s": None}, False),
        ("chaos, idle", {"first_figure_s": None}, True),
        ("chaos, idle", {"seconds": 361.0}, True),
        ("bench, one core taken", {"verdict": "unknown", "seconds": 900.0}, True),
    ],
)
def test_an_answer_is_pass_or_fail_in_time(
    document: dict[str, Any], cell: str, odd: dict[str, Any], *, met: bool
) -> None:
    sit(document)
    document["cells"][cell]["runs"][3].update(odd)
    assert clones.enough(document, cell) is met
    assert clones.status(document) == int(not met)


def test_with_a_core_taken_three_without_an_answer_are_too_many(document: dict[str, Any]) -> None:
    sit(document)
    for it in document["cells"]["chaos, one core taken"]["runs"][:3]:
        it["verdict"] = "unknown"
    assert clones.status(document) == 1
    row = next(it for it in clones.table(document).splitlines() if "chaos" in it and "taken" in it)
    assert row.startswith("| `chaos run` | one core taken | 10 | 7 | 0 | 3 | an answer in ≥8 of 10 | 300 s | 300 s |")
    assert row.endswith("| missed |")


def test_what_a_newcomer_sees_is_read_from_the_screen(tmp_path: Path) -> None:
    """A module `bench` of the clone prints what the real one does."""
    (tmp_path / "bench").mkdir()
    for name, line in (
        ("__init__", ""),
        (
            "__main__",
            "print('so far: digits on 2 nodes: 92.3 % of linear (88.1–96.7 %, 2 repeats)\\nverdict: pass (…)')",
        ),
    ):
        (tmp_path / "bench" / f"{name}.py").write_text(line)
    found = clones.seen("bench", tmp_path)
    assert (found["verdict"], found["status"]) == ("pass", 0)
    assert 0 <= found["first_figure_s"] <= found["seconds"]
    (tmp_path / "bench" / "__main__.py").write_text("raise SystemExit('no such thing')")
    found = clones.seen("bench", tmp_path)
    assert (found["verdict"], found["status"], found["first_figure_s"], found["why"]) == (
        "none", 1, None, "no such thing\n"
    )  # fmt: skip


def test_why_a_verdict_is_no_pass_is_kept(tmp_path: Path) -> None:
    assert clones.reasons(["so far: x\n", "verdict: unknown: …\n", "  a: why\n", "  b: why\n", "advice:  c\n"]) == (
        "  a: why\n  b: why\n"
    )
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "bench" / "__main__.py").write_text("print('verdict: unknown: …\\n  digits: cannot tell')")
    assert clones.seen("bench", tmp_path)["why"] == "  digits: cannot tell\n"


def test_a_figure_without_an_interval_is_not_waited_for() -> None:
    assert clones.FIGURE.search("so far: digits on 2 nodes: 92.3 % of linear (88.1–96.7 %, 2 repeats, emulated)")
    assert not clones.FIGURE.search("so far: digits on 2 nodes: 92.3 % of linear (1 repeat, no interval yet, emulated)")


def test_changes_that_a_clone_would_lack_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(clones, "ROOT", tmp_path)
    (tmp_path / "new").write_text("")
    with pytest.raises(KeptError, match="not committed"), clones.clone():
        pass


LINES = (
    "27 of 27 trials to do, then a second look at what is still open → runs/x\n",
    "digits  weak  nodes 8  repeat 1   3%  2 m 00 s to a first look  \n",  # too early to count
    "digits  weak  nodes 4  repeat 1  20%  1 m 30 s to a first look  n1 3/s\n",
    "so far: digits on 2 nodes: 92 % of linear\n",
    "4 of 31 trials to do → runs/x\n",
    "digits  weak  nodes 4  repeat 4  50%  9 s left  \n",
    "verdict: pass (…)\n",
)


def test_an_estimate_is_of_the_time_until_its_look() -> None:
    found = clones.estimates([0.0, 5.0, 20.0, 30.0, 100.0, 110.0, 130.0], LINES)
    assert found == [(90.0, 80.0), (9.0, 20.0)]
    assert [clones.near(*it) for it in found] == [True, False]
    assert clones.near(3.0, 7.5), "a few seconds are nothing"
    assert clones.near(0.0, 0.0)
    assert not clones.near(90.0, 50.0)


def test_good_estimates_are_counted_where_they_were_kept(document: dict[str, Any]) -> None:
    sit(document, minutes=40.0)
    assert clones.about_estimates(document) == []
    document["cells"]["bench, idle"]["runs"][0]["estimates"] = [(90.0, 80.0), (9.0, 20.0)]
    assert "1 of 2 within a factor of 1.5 or 5 s." in clones.table(document)
