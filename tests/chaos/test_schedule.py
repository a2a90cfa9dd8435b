"""When which fault is due, on a view of a job that is set by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.jobstate import Worker
from proving_ground.bench.jobview import JobView
from proving_ground.bench.protocols import Operation
from proving_ground.bench.spec import Trial
from proving_ground.chaos.schedule import BEFORE, PHASE_S, SLOW_S, Chaos
from proving_ground.chaos.spec import AFTER_STEPS


class View(JobView):
    """A job that does as it is told."""

    t = 0.0
    since = 0.0  # from when on it makes ten steps a second at full strength
    runs = True
    lost = 0  # steps that the last fault threw it back
    takes_s = 0.1  # a step, as it says

    def unsteady(self, steps: int, since_t: float, beyond: int = 0) -> str:
        made = (self.t - max(since_t, self.since)) * 10
        return "" if self.runs and made >= steps and self.step - self.lost > beyond else f"n2 has told {made:.0f} steps"

    def step_s(self, steps: int, since_t: float = -math.inf) -> float:
        del steps, since_t
        return self.takes_s

    @property
    def step(self) -> int:
        return int(self.t * 10)


def begin(*faults: Mapping[str, Any], twin_of: str = "") -> tuple[Chaos, View]:
    """A schedule and a job with these faults."""
    tables = tuple({"id": f"f{number:02}", "seed": number, **fault} for number, fault in enumerate(faults, 1))
    trial = Trial("t001", "c", "digits", ("strong",), 3, 1, 1, 8, 24, 1000, 0, faults=tables, twin_of=twin_of)
    view = View(trial, ["n1", "n2", "n3"], "n4", Path(), None, None, lambda: 0.0)
    view.now = lambda: view.t
    return Chaos(), view


def due(chaos: Chaos, view: View, t: float, *told: dict[str, Any]) -> list[tuple[str, str]]:
    """What is due at a moment: (operation, fault)."""
    view.t, view.told = t, list(told)
    return [(it.name, fault_of(it)) for it in chaos.due(view.trial, view)]


def fault_of(operation: Operation) -> str:
    """The fault that an operation is about."""
    return str(operation.args["fault"] if "fault" in operation.args else operation.args["spec"].id)


def test_a_fault_waits_until_the_job_is_steady_and_is_healed_in_time() -> None:
    chaos, view = begin({"kind": "hang", "hold_s": 3, "after_steps": 15})
    assert due(chaos, view, 1.0) == []
    assert due(chaos, view, 1.5) == [("inject", "f01")]
    assert due(chaos, view, 4.4) == []
    assert due(chaos, view, 4.5) == [("heal", "f01")]


def test_a_fault_that_waits_says_for_what() -> None:
    chaos, view = begin({"kind": "hang", "hold_s": 3, "after_steps": 15}, {"kind": "worker_kill", "phase": "forward"})
    assert chaos.waits_for(view.trial, view) == ""
    due(chaos, view, 1.0)
    assert chaos.waits_for(view.trial, view) == "hang waits: n2 has told 10 steps"
    due(chaos, view, 1.5)
    assert chaos.waits_for(view.trial, view) == ""  # it is held
    due(chaos, view, 4.5)
    due(chaos, view, 6.0)
    assert chaos.waits_for(view.trial, view) == "worker_kill waits for phase forward"
    due(chaos, view, 6.1, {"event": "phase", "hold": "f02"})
    assert chaos.waits_for(view.trial, view) == ""


def test_the_next_fault_waits_for_the_end_of_the_one_before() -> None:
    chaos, view = begin({"kind": "hang", "hold_s": 3}, {"kind": "worker_kill"})
    due(chaos, view, 1.5)
    assert due(chaos, view, 4.0) == []  # steady, but f01 is held
    assert due(chaos, view, 4.5) == [("heal", "f01")]
    assert due(chaos, view, 5.9) == []  # fewer than 15 steps since it was healed
    assert due(chaos, view, 6.0) == [("inject", "f02")]


def test_the_next_fault_waits_until_steps_are_as_short_as_before_but_not_for_ever() -> None:
    kill = {"kind": "worker_kill"}
    chaos, view = begin(kill, kill, kill)
    assert due(chaos, view, 1.5) == [("inject", "f01")]
    due(chaos, view, 1.6)
    view.takes_s = 0.12  # the machine is busy with something else
    assert due(chaos, view, 3.2) == []
    assert due(chaos, view, 3.2 + 0.9 * SLOW_S) == []
    view.takes_s = 0.1
    assert due(chaos, view, 3.2 + 0.95 * SLOW_S) == [("inject", "f02")]
    view.takes_s = 0.12
    begun_t = 5.0 + SLOW_S
    due(chaos, view, begun_t)
    assert due(chaos, view, begun_t + 2.0) == []
    assert due(chaos, view, begun_t + 2.1 + SLOW_S) == [("inject", "f03")]


def test_the_trial_is_not_over_while_it_is_slower_than_before() -> None:
    chaos, view = begin({"kind": "worker_kill"})
    due(chaos, view, 1.5)
    due(chaos, view, 1.6)
    view.t, view.takes_s = 3.2, 0.12
    assert not chaos.over(view.trial, view)
    view.takes_s = 0.1
    assert chaos.over(view.trial, view)


def test_a_member_that_has_just_come_back_has_steps_enough_to_say_how_long_one_takes(tmp_path: Path) -> None:
    view = begin({"kind": "worker_kill"})[1]
    real = JobView(view.trial, view.nodes, None, tmp_path, None, None, lambda: 9.0)
    for node in view.nodes:
        real.workers[f"{node}.0"] = Worker(node, world_size=3, step=AFTER_STEPS)
        real.workers[f"{node}.0"].times.extend(0.1 * step for step in range(1, AFTER_STEPS + 1))
    assert real.steady(AFTER_STEPS, 0.0)
    assert real.step_s(BEFORE) == pytest.approx(0.1)


def test_lost_work_is_made_up_before_the_next_fault() -> None:
    chaos, view = begin({"kind": "worker_kill"}, {"kind": "hang"})
    assert due(chaos, view, 2.0) == [("inject", "f01")]
    due(chaos, view, 2.1)
    view.lost = 18
    assert due(chaos, view, 3.7) == []  # 16 steps since, but only at step 19 again, of 20
    assert due(chaos, view, 3.9) == [("inject", "f02")]


def test_a_phase_is_armed_first_and_hit_when_it_is_told() -> None:
    chaos, view = begin({"kind": "worker_kill", "phase": "allreduce"})
    assert due(chaos, view, 1.5) == [("arm", "f01")]
    assert due(chaos, view, 1.6, {"event": "phase", "hold": "f99", "t": 1.6}) == []
    assert due(chaos, view, 1.7, {"event": "phase", "hold": "f01", "t": 1.7}) == [("inject", "f01")]


def test_a_phase_that_never_comes_is_refused_and_the_next_fault_has_its_turn() -> None:
    chaos, view = begin({"kind": "worker_kill", "phase": "before_rename"}, {"kind": "hang"})
    due(chaos, view, 1.5)
    assert due(chaos, view, 1.6 + PHASE_S) == [("refuse", "f01")]
    assert due(chaos, view, 1.7 + PHASE_S) == [("inject", "f02")]


def test_a_fault_during_recovery_comes_when_the_ranks_have_met_again() -> None:
    chaos, view = begin({"kind": "node_kill", "hold_s": 1}, {"kind": "worker_kill", "phase": "recovery"})
    due(chaos, view, 1.5)
    assert due(chaos, view, 1.6, {"event": "ready", "t": 1.4}) == []  # that was before
    assert due(chaos, view, 1.7, {"event": "ready", "t": 1.65}) == [("inject", "f02")]


def test_a_fault_of_the_joiner_waits_until_one_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    chaos, view = begin(
        {"kind": "worker_kill"}, {"kind": "worker_kill", "target": "joiner", "phase": "recovery"}, {"kind": "hang"}
    )
    monkeypatch.setattr(view, "joiners", lambda: ("n2",) if view.t > 2 else ())
    assert due(chaos, view, 1.5) == [("inject", "f01")]
    due(chaos, view, 1.6)
    assert due(chaos, view, 1.7, {"event": "ready", "t": 1.65}) == []  # the survivors met
    assert due(chaos, view, 2.1) == [("inject", "f02")]


def test_a_joiner_that_never_comes_is_waited_for_no_longer_than_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    chaos, view = begin({"kind": "worker_kill"}, {"kind": "worker_kill", "target": "joiner", "phase": "recovery"})
    monkeypatch.setattr(view, "joiners", tuple)
    due(chaos, view, 1.5)
    due(chaos, view, 1.6)
    (refused,) = chaos.due(view.trial, at(view, 1.7 + view.trial.patience_s))
    assert (refused.name, refused.args["why"]) == ("refuse", "no node came to join")


def at(view: View, t: float) -> View:
    """The job at a moment."""
    view.t, view.told = t, []
    return view


def test_a_job_that_does_not_come_back_is_given_up() -> None:
    chaos, view = begin({"kind": "worker_kill"}, {"kind": "hang"})
    assert due(chaos, view, 1.5) == [("inject", "f01")]
    assert due(chaos, view, 1.6) == [("heal", "f01")]
    view.runs = False
    assert due(chaos, view, 1.7) == []
    assert not chaos.over(view.trial, view)
    assert due(chaos, view, 1.7 + view.trial.patience_s + 0.1) == [("refuse", "f02")]
    assert chaos.over(view.trial, view)


@pytest.mark.parametrize("slow", ["inject", "heal"])
def test_what_the_harness_takes_to_break_or_heal_is_not_the_jobs_time(slow: str) -> None:
    """A notice of two minutes, or a machine that boots for so long."""
    chaos, view = begin({"kind": "worker_kill"})
    patience_s, view.t = view.trial.patience_s, 1.5
    for what in ("inject", "heal"):
        for operation in chaos.due(view.trial, view):
            assert operation.name == what
            view.t += 2 * patience_s * (what == slow)
        view.runs = False
        view.t += 0.1
    assert not chaos.over(view.trial, view)
    view.t += patience_s - 0.2
    assert not chaos.over(view.trial, view)
    view.t += 0.4
    assert chaos.over(view.trial, view)


def test_a_job_that_has_to_start_first_is_given_more_time() -> None:
    chaos, view = begin({"kind": "worker_kill"})
    view.runs = False
    assert due(chaos, view, 1.0) == []
    assert due(chaos, view, 2.9 * view.trial.patience_s) == []
    assert due(chaos, view, 1.1 + 3 * view.trial.patience_s) == [("refuse", "f01")]


def test_the_trial_is_over_when_the_last_fault_is_got_over_and_its_twin_goes_a_step_further() -> None:
    """At the step itself some rank may still have to tell its fingerprint."""
    chaos, view = begin({"kind": "worker_kill"})
    due(chaos, view, 1.5)
    due(chaos, view, 1.6)
    assert not chaos.over(view.trial, view)
    view.t = 3.2
    assert chaos.over(view.trial, view)
    _, twin = begin(twin_of="c")
    twin.t = 3.2
    assert not chaos.over(twin.trial, twin)
    twin.t = 3.3
    assert chaos.over(twin.trial, twin)


def test_a_twin_goes_as_far_as_the_farthest_of_the_jobs_that_it_is_compared_with() -> None:
    chaos, view = begin({"kind": "worker_kill"})
    for end in (5.0, 3.2):  # two repeats of one case; the last one is the shorter
        due(chaos, view, 1.5)
        due(chaos, view, 1.6)
        view.t = end
        assert chaos.over(view.trial, view)
        view.trial = replace(view.trial, id="t002")
    _, twin = begin(twin_of="c")
    twin.t = 5.0
    assert not chaos.over(twin.trial, twin)
    twin.t = 5.1
    assert chaos.over(twin.trial, twin)


def test_a_twin_goes_to_the_end_with_a_job_that_ended_by_itself() -> None:
    chaos, view = begin({"kind": "worker_kill"})
    due(chaos, view, 1.5)
    assert not chaos.over(view.trial, view)  # and no more is heard of it: it makes all of its 24 steps
    _, other = begin({"kind": "worker_kill"})
    other.trial = replace(other.trial, id="t002")
    assert due(chaos, other, 1.5) == [("inject", "f01")]
    due(chaos, other, 1.6)
    other.t = 3.2
    assert chaos.over(other.trial, other)
    _, twin = begin(twin_of="c")
    twin.t = twin.trial.steps / 10
    assert not chaos.over(twin.trial, twin)


def test_a_fault_and_the_end_wait_for_a_fingerprint_after_the_fault_before() -> None:
    chaos, view = begin({"kind": "worker_kill"}, {"kind": "hang", "hold_s": 0.1})
    view.trial = replace(view.trial, training={"fingerprint_every": 50})
    assert due(chaos, view, 1.5) == [("inject", "f01")]
    due(chaos, view, 1.6)
    assert due(chaos, view, 5.0) == []  # at the step itself it is still to be told
    assert chaos.waits_for(view.trial, view) == ""
    assert due(chaos, view, 5.1) == [("inject", "f02")]
    due(chaos, view, 5.3)
    view.t = 10.0
    assert not chaos.over(view.trial, view)
    view.t = 10.1
    assert chaos.over(view.trial, view)


def test_a_replay_ends_by_itself() -> None:
    _, view = begin(twin_of="c")
    view.t = 1000.0
    assert not Chaos().over(replace(view.trial, role="replay"), view)


def test_what_still_lasts_does_not_keep_a_job_that_met_anew_from_being_over() -> None:
    chaos, view = begin({"kind": "hang", "hold_s": 45})
    due(chaos, view, 1.5)
    view.t = 3.2
    assert not chaos.over(view.trial, view)  # a node that only is slow trains on all the time
    view.workers.update({"n1.0": Worker("n1", generation=1)})
    assert chaos.over(view.trial, view)


def test_a_fault_that_overlaps_comes_in_time_whatever_the_job_does_and_each_is_healed_in_its_own() -> None:
    chaos, view = begin(
        {"kind": "slow_node", "hold_s": 5},
        {"kind": "hang", "after_s": 0.5, "hold_s": 1},
        {"kind": "worker_kill", "after_s": 1.0},
        {"kind": "worker_kill"},
    )
    assert due(chaos, view, 1.5) == [("inject", "f01")]
    view.runs = False
    assert due(chaos, view, 1.9) == []
    assert chaos.waits_for(view.trial, view) == ""
    assert due(chaos, view, 2.0) == [("inject", "f02")]
    assert due(chaos, view, 3.0) == [("heal", "f02"), ("inject", "f03")]
    assert due(chaos, view, 3.1) == [("heal", "f03")]
    view.runs = True
    assert due(chaos, view, 6.4) == [], "f01 is held"
    assert due(chaos, view, 6.5) == [("heal", "f01")]
    assert due(chaos, view, 8.0) == [("inject", "f04")], "15 steps after the last of them was healed"


def test_a_fault_that_was_to_overlap_with_one_that_was_refused_is_refused() -> None:
    chaos, view = begin({"kind": "worker_kill", "phase": "before_rename"}, {"kind": "hang", "after_s": 0.5})
    due(chaos, view, 1.5)
    assert due(chaos, view, 1.6 + PHASE_S) == [("refuse", "f01")]
    assert due(chaos, view, 1.7 + PHASE_S) == [("refuse", "f02")]


def test_a_job_is_not_over_while_one_of_the_faults_that_overlap_is_held() -> None:
    chaos, view = begin({"kind": "slow_node", "hold_s": 45}, {"kind": "worker_kill", "after_s": 0.5})
    due(chaos, view, 1.5)
    due(chaos, view, 2.0)
    due(chaos, view, 2.1)
    view.t = 30.0
    view.workers.update({"n1.0": Worker("n1", generation=1)})
    assert not chaos.over(view.trial, view)
    assert due(chaos, view, 46.5) == [("heal", "f01")]
    view.t = 48.1
    assert chaos.over(view.trial, view)


def test_a_fault_comes_at_its_moment_whatever_the_job_does() -> None:
    chaos, view = begin(
        {"kind": "hang", "at_s": 2.0, "hold_s": 3}, {"kind": "worker_kill", "at_s": 4.0}, {"kind": "worker_kill"}
    )
    assert due(chaos, view, 1.0) == []
    assert chaos.waits_for(view.trial, view) == "hang waits: n2 has told 10 steps"
    assert due(chaos, view, 1.5) == [], "steady for the first time"
    assert chaos.waits_for(view.trial, view) == "hang is due in 2 s"
    assert due(chaos, view, 3.4) == []
    assert due(chaos, view, 3.5) == [("inject", "f01")]
    view.runs = False
    assert due(chaos, view, 5.4) == []
    assert due(chaos, view, 5.5) == [("inject", "f02")], "f01 is held and nobody trains"
    assert due(chaos, view, 6.5) == [("heal", "f01"), ("heal", "f02")]
    view.runs, view.since = True, 7.0
    assert due(chaos, view, 8.4) == []
    assert due(chaos, view, 8.5) == [("inject", "f03")], "15 steps after all of them"


def test_a_fault_whose_moment_is_long_gone_is_refused() -> None:
    chaos, view = begin(
        {"kind": "hang", "hold_s": 1, "after_steps": 30}, {"kind": "hang", "at_s": 0.5}, {"kind": "hang", "at_s": 9}
    )
    due(chaos, view, 1.5)
    view.since = 6.0
    assert due(chaos, view, 9.0) == [("inject", "f01")]
    (refused,) = chaos.due(view.trial, view)
    assert refused.args["why"] == "its moment, 0.5 s, was 7.0 s ago: the fault before took so long"
    assert due(chaos, view, 10.1) == [("heal", "f01")]
    assert due(chaos, view, 10.5) == [("inject", "f03")]


def test_a_job_that_never_was_steady_has_no_moments() -> None:
    chaos, view = begin({"kind": "hang", "at_s": 2.0})
    view.runs = False
    assert due(chaos, view, 1.0) == []
    assert due(chaos, view, 3 * view.trial.patience_s) == []
    assert due(chaos, view, 1.1 + 3 * view.trial.patience_s) == [("refuse", "f01")]


def test_the_pace_before_a_fault_that_comes_into_another_is_that_before_both() -> None:
    chaos, view = begin({"kind": "slow_node", "at_s": 0.5, "hold_s": 2}, {"kind": "worker_kill", "at_s": 1.0})
    due(chaos, view, 1.5)
    assert due(chaos, view, 2.0) == [("inject", "f01")]
    view.takes_s = 0.4
    assert due(chaos, view, 2.5) == [("inject", "f02")]
    due(chaos, view, 4.1)
    view.t = 6.0
    assert not chaos.over(view.trial, view), "four times as slow as before the first"
    view.takes_s = 0.1
    assert chaos.over(view.trial, view)
