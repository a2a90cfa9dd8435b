"""Buffers, such as BatchNorm's statistics, are a rank's own: compared with the twin's, and never with other ranks'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from proving_ground.bench.examples import pg_events
from proving_ground.reports.agreement import agreement
from proving_ground.reports.history import Mark
from proving_ground.reports.recovery import checks, results
from proving_ground.reports.recovery.results import Analysis
from proving_ground.reports.recovery.sameness import Judged, Sameness
from proving_ground.reports.verdicts import overall
from proving_ground.training.judging.fingerprint import hashes_of
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

FAULT = Fault("f01", "worker_kill", 53, "n2")
BATCH_NORM = {"norm": "batch"}


def of_a_trainer_of_one_s_own(model: nn.Module) -> dict[str, str]:
    parts = dict(zip(("buffers", "parameters"), pg_events.buffers_and_rest(model), strict=True))
    return {f"{name}_sha256": pg_events.sha256(part) for name, part in parts.items() if part}


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


def test_what_was_not_recorded_before_the_fault_proves_nothing_of_it(tmp_path: Path) -> None:
    def early(record: Record) -> None:
        if record["step"] == 10 and record.get("trial") == "t001":
            del record["buffers_sha256"]

    analysis = analysed(tmp_path, early)
    assert overall(analysis.verdicts) == "pass"


def test_a_trainer_of_one_s_own_is_not_proven_either_by_what_it_left_out(tmp_path: Path) -> None:
    """What it records nobody asked for by a setting: what it recorded before, it has to record again."""
    run = make(tmp_path, Knobs(faults=(FAULT,)))
    for name, rows in (("plan", "trials"), ("spec", "cases")):
        document = run.read(name)
        run.write(name, {**document, rows: [{**it, "training": {}} for it in document[rows]]})

    def without(records: list[Record]) -> list[Record]:
        for record in records:
            if record["event"] == "fingerprint" and after_the_fault(record):
                record["optimizer_sha256"] = None
        return records

    (trial,) = results.analyse(rewrite(run, without)).trials
    assert (trial["outcome"], trial["verdicts"]["same_training"]) == ("unproven", "unknown")


def test_what_was_thrown_away_is_not_proven_by_what_is_missing() -> None:
    lacking = Judged(95, "buffers", None, "only one recorded it", t=5.0, lacking=True)
    found = Sameness("t002", thrown_away=(Judged(95, "parameters", same=True, why="bitwise equal", t=5.0), lacking))
    one = SimpleNamespace(within=lambda _: True, since=92)
    assert checks.rolled_back(found, one) == ("unknown", "only one recorded it")  # type: ignore[arg-type] # what it asks


def marks(parameters: tuple[str, str], buffers: tuple[str | None, str | None]) -> list[Mark]:
    return [Mark(1.0, 10, rank, parameters[rank], "o", buffers[rank]) for rank in (0, 1)]


def test_ranks_may_differ_in_them_and_in_nothing_else() -> None:
    assert agreement(marks(("p", "p"), ("b", "c")), BATCH_NORM).compared == [(10, 1.0)]
    assert not agreement(marks(("p", "p"), ("b", "c")), BATCH_NORM).problems
    (found,) = agreement(marks(("p", "q"), ("b", "c")), BATCH_NORM).problems
    assert found.why == "parameters: ranks 0 and 1 of generation 0 differ after step 10"


@pytest.mark.parametrize(
    ("training", "first", "why"),
    [
        ({}, ("b", "b"), "buffers: ranks 0 and 1 of generation 0 differ after step 20"),
        ({}, ("b", "c"), ""),
        (
            {**BATCH_NORM, "sync_batchnorm": True},
            ("b", "c"),
            "buffers: ranks 0 and 1 of generation 0 differ after step 10",
        ),
    ],
)
def test_buffers_that_were_the_same_on_all_ranks_stay_so(
    training: dict[str, Any], first: tuple[str, str], why: str
) -> None:
    later = [replace(mark, t=2.0, step=20) for mark in marks(("p", "p"), ("d", "e"))]
    found = agreement([*later, *marks(("p", "p"), first)], training)
    assert [it.why for it in found.problems[:1]] == ([why] if why else [])


def test_a_mark_without_them_hides_no_difference() -> None:
    (found,) = agreement(marks(("p", "q"), ("b", None)), BATCH_NORM).problems
    assert found.why.startswith("parameters: ranks 0 and 1")


@pytest.mark.parametrize("hashes", [hashes_of, of_a_trainer_of_one_s_own])
def test_only_buffers_are_left_out_of_what_all_ranks_share(hashes: Callable[[nn.Module], dict[str, str]]) -> None:
    """What a wrapper has renamed may be a parameter: it counts as one."""
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.BatchNorm1d(2))
    before = hashes(model)
    model(torch.ones(4, 2))
    moved = hashes(model)
    assert moved["buffers_sha256"] != before["buffers_sha256"]
    assert moved["parameters_sha256"] == before["parameters_sha256"]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert hashes(model)["parameters_sha256"] != before["parameters_sha256"]
    assert "buffers_sha256" not in hashes(nn.Linear(1, 1))


def test_parameters_that_were_recorded_together_with_them_cannot_be_compared() -> None:
    found = agreement(marks(("p", "q"), (None, None)), BATCH_NORM)
    assert (found.problems, found.why_not) == ((), "norm = 'batch': each rank has batch statistics of its own")
