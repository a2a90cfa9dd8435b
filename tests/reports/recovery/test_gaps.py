"""The last records of a node that a fault ended: excused where survivors have its steps, missed otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.reports.recovery import gaps, results
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

STEP = 30  # after which n2 loses its power, and a checkpoint has just been written
FAULT = Fault("f01", "node_kill", STEP, "n2", hold_s=0.0)
GAP: Record = {
    "event": "gap", "trial": "t001", "source": "harness", "node": "n2", "files": ["events/t001.n2.0.jsonl"],
    "why": "what was not sent before the node was lost is gone",
}  # fmt: skip
SAID_S = 0.04  # after the fault, and before anything is started there again
Change = Callable[[list[Record]], list[Record]]


def lost(records: list[Record], since: int, node: str = "n2") -> list[Record]:
    """Without what a node recorded of its steps since one, in its first life."""
    first, last = since, STEP
    return [
        it
        for it in records
        if (it.get("trial"), it["source"], it["event"] in ("step", "fingerprint", "checkpoint"))
        != ("t001", f"{node}.0", True)
        or not (first <= it["step"] <= last and it["t"] < begun(records))
    ]


def begun(records: list[Record]) -> float:
    """The moment of the fault."""
    (t,) = [it["inject_t"] for it in records if it["event"] == "fault_begin"]
    return float(t)


def tail(records: list[Record]) -> list[Record]:
    """Two steps of n2 never arrived, and this was told when it came back."""
    return [*lost(records, STEP - 1), {**GAP, "t": begun(records) + SAID_S}]


def of_a_survivor(records: list[Record]) -> list[Record]:
    """Some of n1 never arrived either."""
    gap = {**GAP, "t": begun(records) + SAID_S, "node": "n1", "files": ["events/t001.n1.0.jsonl"]}
    return [*tail(records), gap]


def before_the_fault(records: list[Record]) -> list[Record]:
    """They were lost a second before it."""
    return [*lost(records, STEP - 1), {**GAP, "t": begun(records) - 1}]


def of_nobody(records: list[Record]) -> list[Record]:
    """The survivors have not recorded the last step either, and training went on from it."""
    for node in ("n1", "n3"):
        records = lost(records, STEP, node)
    return tail(records)


def too_long(records: list[Record]) -> list[Record]:
    """More than two seconds of n2 are gone."""
    return [*lost(records, STEP - 24), {**GAP, "t": begun(records) + SAID_S}]


def hole(records: list[Record]) -> list[Record]:
    """What is missing lies between records that came."""
    return [*tail(records)[:-1], {**GAP, "t": begun(records) + SAID_S, "from": 10, "to": 90}]


def unproven(records: list[Record]) -> list[Record]:
    """By the evidence something of n2 was left."""
    return [
        {**it, "evidence": {**it["evidence"], "left": [{"pid": 1}]}} if it["event"] == "fault_begin" else it
        for it in tail(records)
    ]


def of_another_life(records: list[Record]) -> list[Record]:
    """It was told after something had been started on n2 again: what is gone may be of that."""
    return [*tail(records)[:-1], {**GAP, "t": begun(records) + 2.0}]


def analysed(folder: Path, change: Change) -> Analysis:
    return results.analyse(rewrite(make(folder, Knobs(faults=(FAULT,))), change))


def recorded(analysis: Analysis) -> tuple[str, str]:
    ((verdict, why),) = [(v["verdict"], v["why"]) for v in analysis.verdicts if v["check"] == "recorded"]
    return verdict, why


def test_what_a_node_could_not_send_before_a_fault_ended_it_is_excused_and_told(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, tail)
    verdict, why = recorded(analysis)
    assert verdict == "pass"
    assert why.endswith("; the last records of n2 (node_kill) went with it, and survivors recorded its steps")
    assert {trial["outcome"] for trial in analysis.trials} == {"recovered"}
    ((answer, proved),) = [
        (v["verdict"], v["why"])
        for v in analysis.verdicts
        if v["check"] == "exactly_once" and not v["where"].get("fault")
    ]
    assert (answer, "of 2 a rank's record died with it, and equal fingerprints prove them" in proved) == ("pass", True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (of_a_survivor, "records of n1 never arrived.*no fault that is proven ended that node"),
        (before_the_fault, "records of n2 never arrived.*no fault that is proven ended that node"),
        (of_nobody, "step 30 was recorded by nobody, and training went on from step 30"),
        (too_long, "the last that came is 2.6 s older than f01"),
        (hole, "later ones of the same file did"),
        (unproven, "no fault that is proven ended that node"),
        (of_another_life, "no fault that is proven ended that node"),
    ],
)
def test_in_every_other_case_nothing_is_proven(tmp_path: Path, change: Change, says: str) -> None:
    analysis = analysed(tmp_path, change)
    verdict, why = recorded(analysis)
    assert verdict == "unknown"
    assert re.search(says, why), why
    assert not {"recovered", "wrong"} & {trial["outcome"] for trial in analysis.trials}


def test_without_fingerprints_nobody_knows_what_the_missing_steps_did(tmp_path: Path) -> None:
    run = rewrite(make(tmp_path, Knobs(faults=(FAULT,), fingerprints=False)), tail)
    found = [v for v in results.analyse(run).verdicts if v["check"] == "exactly_once" and "fault" not in v["where"]]
    assert [(v["verdict"], v["why"]) for v in found] == [
        ("unknown", "a rank's record of step 29 is missing, and no later fingerprint proves what it did")
    ]


@pytest.mark.parametrize(("told", "end_t"), [({}, 1.0), ({"t": 2.0}, 2.0), ({"t": 2.0, "sent_t": 3.0}, 3.0)])
def test_a_victim_can_have_written_until_the_last_signal(told: dict[str, float], end_t: float) -> None:
    one: Any = SimpleNamespace(begin={"evidence": told}, traits={"gone": "t"}, inject_t=1.0)
    assert gaps.end_t(one) == end_t
