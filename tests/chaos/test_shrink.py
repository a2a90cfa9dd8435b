"""A schedule that failed is made as small as still fails."""

from __future__ import annotations

import math
import re
import signal as signals
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster, FakeJob, FakeRank
from proving_ground.chaos import commands, shrink
from proving_ground.chaos.cli import main
from proving_ground.chaos.ddmin import Part, shrunk
from tests.bench.clusters.conftest import pytest_collection_modifyitems
from tests.chaos.conftest import JOB_OF_THREE
from tests.chaos.test_mutants import case_of, report_of

__all__ = ["pytest_collection_modifyitems"]

FAULTS = tuple(f"f{number:02}" for number in range(1, 13))
MANY = 1000


@given(st.sets(st.sampled_from(FAULTS), min_size=1))
def test_exactly_the_faults_that_are_needed_together_are_found(needed: set[str]) -> None:
    search = shrunk(FAULTS, [], MANY, lambda part: needed <= set(part))
    assert search.minimal
    assert set(search.best) == needed
    assert search.best == tuple(sorted(search.best)), "they stay in their order"


@given(st.sets(st.sampled_from(FAULTS), min_size=1, max_size=3), st.data())
def test_of_what_fails_for_any_of_several_reasons_no_fault_can_be_left_out(one: set[str], data: st.DataObject) -> None:
    other = data.draw(st.sets(st.sampled_from(FAULTS), min_size=1, max_size=3))

    def fails(part: Part) -> bool:
        return one <= set(part) or other <= set(part)

    best = shrunk(FAULTS, [], MANY, fails).best
    assert fails(best)
    assert not any(fails(tuple(it for it in best if it != left)) for left in best)


@given(st.integers(1, 6))
def test_no_more_runs_than_are_allowed_and_the_smallest_that_failed_is_kept(budget: int) -> None:
    tried: list[Part] = []

    def fails(part: Part) -> bool:
        tried.append(part)
        return {"f03", "f11"} <= set(part)

    search = shrunk(FAULTS, [], budget, fails)
    assert (len(tried), search.minimal) == (budget, False)
    assert search.best == min((it for it in [FAULTS, *tried] if {"f03", "f11"} <= set(it)), key=len)


def test_a_guess_that_fails_is_where_it_begins() -> None:
    tried: list[Part] = []

    def fails(part: Part) -> bool:
        tried.append(part)
        return "f02" in part

    assert shrunk(FAULTS, [("f02",), ("f01", "f02")], MANY, fails).best == ("f02",)
    assert tried == [("f02",)]


def test_a_fault_that_hits_a_recovery_is_never_tried_without_what_the_job_recovers_from() -> None:
    faults = [{"id": "f01"}, {"id": "f02"}, {"id": "f03", "phase": "recovery"}, {"id": "f04"}]
    failure = shrink.Failure("t001", "c", faults, frozenset({"recovered"}), frozenset({"f03"}))
    tried: list[Part] = []

    def fails(part: Part) -> bool:
        tried.append(part)
        return "f03" in part

    search = shrunk(failure.whole, failure.guesses, MANY, fails, failure.sensible)
    assert (search.best, search.minimal) == (("f02", "f03"), True)
    assert failure.guesses[0] == tried[0] == ("f02", "f03")
    assert not any("f03" in part and "f02" not in part for part in tried)
    assert len(search.known) == len(tried) == 2, "f02 by itself is the other one"


@pytest.mark.root
def test_of_three_faults_the_one_that_the_trainer_gets_wrong_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trainer loads what was damaged; that its worker is killed before and after does it no harm."""
    kinds = ("worker_kill", "checkpoint_bitflip", "worker_kill")
    faults = [{"kind": kind, "after_steps": 40} for kind in kinds]  # a checkpoint is durable by then
    results = report_of(tmp_path, 2, [case_of("checksum_off", {}, faults=faults, mechanism="restart", twins=[2])])
    assert [it["outcome"] for it in results["trials"]][1] == "wrong", results["verdicts"]
    failed = rundir.find(tmp_path, "mutants").path
    capsys.readouterr()
    assert main(["--runs", str(tmp_path), "shrink", str(failed), "--budget", "6", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("1 of 3 faults is enough (none can be left out; "), told
    assert re.search(r"^ +f02 +checkpoint_bitflip$", told, re.MULTILINE)
    assert re.search(r"^replay: .* replay \S+ t001\.f02$", told, re.MULTILINE)
    assert rundir.find(tmp_path, "mutants").path != failed, "each try is a run of its own"


def test_what_did_not_fail_cannot_be_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", str(tmp_path), "run", "--suite", "smoke", "--cluster", "fake", "--quiet"]) in (0, 1)
    capsys.readouterr()
    assert main(["--runs", str(tmp_path), "shrink", "latest", "--cluster", "fake"]) == 2
    assert "no job with faults failed: there is nothing to shrink" in capsys.readouterr().err


class Hangover(FakeCluster):
    """Its jobs never meet again once a node was lost after a process had been stopped."""

    stopped = False

    def _signal(self, job: FakeJob, rank: FakeRank, pid: int, signal: int) -> None:
        self.stopped = self.stopped or signal == signals.SIGSTOP
        super()._signal(job, rank, pid, signal)

    def kill(self, node: str, slot: int | None, signal: int) -> Any:
        hit = super().kill(node, slot, signal)
        for job in self._jobs.values() if self.stopped and slot is None else ():
            job.meet_t = math.inf
            job.ranks.clear()
        return hit


SUITE = (
    JOB_OF_THREE
    + """\
patience_s = 5
faults = [
  { kind = "worker_kill" }, { kind = "hang", hold_s = 2 }, { kind = "worker_kill" },
  { kind = "node_kill", hold_s = 1 }, { kind = "worker_kill" },
]
"""
)


TIMED = (
    JOB_OF_THREE
    + """\
patience_s = 5
faults = [
  { kind = "worker_kill", at_s = 1 }, { kind = "hang", hold_s = 2, at_s = 6 }, { kind = "worker_kill", at_s = 14 },
  { kind = "node_kill", hold_s = 1, at_s = 20.5 }, { kind = "worker_kill", at_s = 40 },
]
"""
)


@pytest.mark.timeout(600)  # each try has a report of its own, made by another process
@pytest.mark.parametrize("suite", [SUITE, TIMED], ids=["one after the other", "each at its moment"])
def test_a_planted_defect_is_shrunk_to_the_two_faults_that_it_takes(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(suite)
    for module in (commands, shrink):
        monkeypatch.setattr(module, "choose", lambda _: (Hangover(), "planted"))
    runs = ["--runs", str(tmp_path)]
    assert main([*runs, "run", "--suite", str(tmp_path / "own.toml"), "--quiet"]) == 1
    run = rundir.find(tmp_path, "own")
    capfd.readouterr()
    assert main([*runs, "shrink", str(run.path), "--budget", "12"]) == 0
    said = capfd.readouterr().out
    assert "2 of 5 faults are enough (none can be left out; " in said
    assert said.rstrip().endswith(f"replay {run.path} t001.f02 t001.f04")
    assert "run 1 of at most 12: f04: does not fail" in said
    assert " left at most" in said
    tried = rundir.all_runs(tmp_path)
    assert len(tried) == 1 + said.count("\nrun ")
    assert all((it.path / "results.json").exists() for it in tried)
    moments = {
        it["id"]: it.get("at_s") for made in tried for plan in made.read("plan")["trials"] for it in plan["faults"]
    }
    assert (moments["f02"], moments["f04"]) == ((6, 20.5) if suite == TIMED else (None, None)), "each kept its own"
    assert main([*runs, "shrink", str(run.path), "--budget", "1"]) == 1
    assert "no smaller part of its 5 faults failed so far (1 run): --budget 1 is spent" in capfd.readouterr().out
