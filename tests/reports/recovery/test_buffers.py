"""Buffers, such as BatchNorm's statistics, are a rank's own: compared with the twin's, and never with other ranks'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reports.agreement import agreement
from reports.checks import overall
from reports.history import Mark
from reports.recovery import results
from reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

FAULT = Fault("f01", "worker_kill", 53, "n2")
BATCH_NORM = {"norm": "batch"}


def right(_: Record) -> None:
    """As it should be."""


def lost(record: Record) -> None:
    """The restart began the statistics of a rank anew."""
    if after_the_fault(record):
        record["buffers_sha256"] = "0" * 64


def unrecorded(record: Record) -> None:
    """A rank recorded none, once."""
    if after_the_fault(record) and record["step"] == 60:
        del record["buffers_sha256"]


def no_optimizer(record: Record) -> None:
    """The same of another part."""
    if after_the_fault(record) and record["step"] == 60:
        record["optimizer_sha256"] = None


def after_the_fault(record: Record) -> bool:
    return record.get("trial") == "t001" and record["source"] == "n2.0" and record["step"] > FAULT.step


def analysed(folder: Path, change: Callable[[Record], None]) -> Analysis:
    def with_buffers(records: list[Record]) -> list[Record]:
        for record in records:
            if record["event"] == "fingerprint":
                record["buffers_sha256"] = f"of {record['source']} after step {record['step']}"
                change(record)
        return records

    return results.analyse(rewrite(make(folder, Knobs(faults=(FAULT,))), with_buffers))


def of_the_job(analysis: Analysis, part: str) -> tuple[str, str]:
    ((verdict, why),) = [(v["verdict"], v["why"]) for v in analysis.verdicts if v["where"].get("part") == part]
    return verdict, why


@pytest.mark.parametrize(
    ("change", "outcome", "part", "said"),
    [
        (right, "recovered", "buffers", ("pass", "like twin t002 at ")),
        (lost, "wrong", "buffers", ("fail", "first differs from twin t002 at step 55: rank 1: 000000000000…")),
        (unrecorded, "unproven", "buffers", ("unknown", "step 60: rank 1: only one of the two recorded buffers_sha2")),
        (no_optimizer, "unproven", "optimizer", ("unknown", "step 60: rank 1: only one of the two recorded optimi")),
    ],
)
def test_they_are_compared_with_the_twin_s(
    change: Callable[[Record], None], outcome: str, part: str, said: tuple[str, str], tmp_path: Path
) -> None:
    analysis = analysed(tmp_path, change)
    assert [it["outcome"] for it in analysis.trials] == [outcome]
    verdict, why = of_the_job(analysis, part)
    assert (verdict, why[: len(said[1])]) == said
    assert (overall(analysis.verdicts) == "pass") == (change is right)
    assert analysis.trials[0]["verdicts"]["ranks_agree"] == "pass"


def marks(parameters: tuple[str, str], buffers: tuple[str | None, str | None]) -> list[Mark]:
    return [Mark(1.0, 10, rank, parameters[rank], "o", buffers[rank]) for rank in (0, 1)]


def test_ranks_may_differ_in_them_and_in_nothing_else() -> None:
    assert agreement(marks(("p", "p"), ("b", "c")), BATCH_NORM).compared == [(10, 1.0)]
    assert not agreement(marks(("p", "p"), ("b", "c")), BATCH_NORM).problems
    (found,) = agreement(marks(("p", "q"), ("b", "c")), BATCH_NORM).problems
    assert found.why == "parameters: ranks 0 and 1 of generation 0 differ after step 10"


def test_parameters_that_were_recorded_together_with_them_cannot_be_compared() -> None:
    found = agreement(marks(("p", "q"), (None, None)), BATCH_NORM)
    assert (found.problems, found.why_not) == ((), "norm = 'batch': each rank has batch statistics of its own")
