"""A benchmark that recorded its samples learned from all of them once a pass; each way of not doing so is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.history import TrialHistory
from proving_ground.reports.scaling import checks, coverage, results
from proving_ground.reports.scaling.results import Analysis
from tests.reports.rewritten import rewrite
from tests.reports.synthetic import Knobs, make

Record = dict[str, Any]
Loader = Callable[[int, int, int], list[int]]
SIZE, SHARE, STEPS = 40, 8, 12
SAME = {0: "a", 1: "a"}  # what processes that record fingerprints tell comes after the start of the trial


def right(step: int, rank: int, ranks: int) -> list[int]:
    """A rank's share of a stream in which every sample comes once a pass."""
    first = ((step - 1) * ranks + rank) * SHARE
    return [7 * place % SIZE for place in range(first, first + SHARE)]


def ledger(
    folder: Path, load: Loader = right, each: Callable[[Record], object] = lambda _: None, *, asked: bool = True
) -> list[tuple[str, str]]:
    """(verdict, why) of each trial of a run whose ranks learned from this, and whose records were changed so."""
    run = make(folder, Knobs(nodes=(1, 2), scalings=("weak",), steps=STEPS, repeats=1, weights=SAME))
    plan = run.read("plan")
    ranks = {trial["id"]: trial["nodes"] for trial in plan["trials"]}
    for trial in plan["trials"]:
        trial["training"] = {"ledger": True} if asked else {}
    run.write("plan", plan)

    def told(records: list[Record]) -> list[Record]:
        for it in records:
            if it["event"] == "step":
                it["rows"] = load(it["step"], int(it["source"][1]) - 1, ranks[it["trial"]])
            elif it["event"] == "ready":
                it["rows"] = SIZE
            each(it)
        return records

    return judged(results.analyse(rewrite(run, told)))


def judged(analysis: Analysis) -> list[tuple[str, str]]:
    return [(v["verdict"], v["why"]) for v in analysis.verdicts if v["check"] == "exactly_once"]


def test_every_sample_once_a_pass_passes_at_every_size(tmp_path: Path) -> None:
    said = "samples learned, none again before all of the data set had come"
    assert ledger(tmp_path) == [("pass", f"trial t001: 96 {said}"), ("pass", f"trial t002: 192 {said}")]


def test_ids_that_nobody_asked_for_are_judged_too(tmp_path: Path) -> None:
    assert {value for value, _ in ledger(tmp_path, lambda *_: [3] * SHARE, asked=False)} == {"fail"}


LOADERS: dict[str, tuple[Loader, str]] = {
    "the same few at every step": (lambda _step, rank, ranks: right(1, rank, ranks), "for the 2. time"),
    "a quarter is never read": (lambda *at: [sample % 30 for sample in right(*at)], "for the 2. time"),
    "every rank reads the same": (lambda step, _rank, ranks: right(step, 0, ranks), "for the 2. time"),
    "the last sample is dropped": (lambda *at: right(*at)[:-1], "samples make a pass"),
    "one that is not there": (lambda *at: [SIZE, *right(*at)[1:]], f"and the data set has {SIZE}"),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_that_is_wrong_is_named(tmp_path: Path, kind: str) -> None:
    load, why = LOADERS[kind]
    value, said = ledger(tmp_path, load)[-1]
    assert value == "fail"
    assert why in said


RECORDS: dict[str, tuple[Callable[[Record], object], str]] = {
    "two sizes": (lambda it: it.update(rows=80) if (it["event"], it["source"]) == ("ready", "n2.0") else 0, "had 40"),
    "no size": (lambda it: it.pop("rows") if it["event"] == "ready" else 0, "nobody said how many samples"),
    "a rank told none": (
        lambda it: it.pop("rows") if (it["event"], it["source"], it.get("step")) == ("step", "n2.0", 9) else 0,
        "a rank's record of step 9 is missing",
    ),
    "no rank told any": (lambda it: it.pop("rows") if it["event"] == "step" else 0, "no sample ids were recorded"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_what_was_not_recorded_is_unknown(tmp_path: Path, kind: str) -> None:
    each, why = RECORDS[kind]
    value, said = ledger(tmp_path, each=each)[-1]
    assert value == "unknown"
    assert why in said


def test_a_run_without_a_ledger_has_no_such_verdict_and_pays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "entries", lambda _trial: pytest.fail("nothing was recorded"))
    analysis = results.analyse(make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",), steps=STEPS)))
    assert judged(analysis) == []
    assert "exactly_once" in checks.CHECKS
    assert coverage.coverage(TrialHistory("t001")).why_not
