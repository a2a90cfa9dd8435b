"""The one state of a job: what it takes for a rank, a generation, a committed step, a recovery and a standstill."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from proving_ground.bench.jobstate import JobState, News, disturbances

Event = dict[str, Any]
WORKERS = ("n1.0", "n2.0", "n3.0")


def event(t: float, name: str, source: str = "harness", **more: Any) -> Event:
    return {"t": t, "event": name, "source": source, "trial": "t001", **more}


def met(t: float, generation: int | None, workers: Iterable[str] = WORKERS) -> list[Event]:
    """A membership of these: they start, and are ready."""
    some = list(workers)
    numbered = {} if generation is None else {"generation": generation}
    return [
        it
        for rank, source in enumerate(some)
        for it in (
            event(t, "start", source, rank=rank, world_size=len(some), pid=rank + 1),
            event(t + 0.1, "ready", source, **numbered),
        )
    ]


def step(t: float, number: int, workers: Iterable[str] = WORKERS, **more: Any) -> list[Event]:
    """A step of these, each ends it a hundredth later than the one before."""
    return [event(t + 0.01 * i, "step", it, step=number, samples=1, **more) for i, it in enumerate(workers)]


def fault(t: float, name: str = "f01", took_s: float = 0.0, phase: str = "") -> Event:
    return event(t + took_s, "fault_begin", fault=name, kind="hang", target=["n2"], phase=phase, inject_t=t)


def of(*records: Event, plan: dict[str, Any] | None = None) -> tuple[JobState, list[News]]:
    state = JobState(plan)
    return state, [state.take(it) for it in records]


BEGUN = [*met(1, 1), *step(2, 1), *step(3, 2), *step(4, 3)]


def test_a_step_is_committed_by_its_last_rank() -> None:
    state, news = of(*BEGUN, *step(5, 4, WORKERS[:2]))
    assert [it.committed.step for it in news if it.committed] == [1, 2, 3]
    assert state.newest
    assert (state.step, state.newest.end_t) == (3, 4.02)
    assert {name: it.rank for name, it in state.members.items()} == {"n1.0": 0, "n2.0": 1, "n3.0": 2}
    assert (state.generation, state.world_size, state.head) == (1, 3, "n1.0")


def started(t: float, workers: Iterable[str] = WORKERS) -> list[Event]:
    """Processes that print: who started them said so, and nobody says that he is ready."""
    some = list(workers)
    return [event(t, "start", it, rank=rank, world_size=len(some), pid=rank + 1) for rank, it in enumerate(some)]


RANK_0_TELLS = {"nodes": 3, "command": {"tells": "rank 0"}}


def test_what_rank_0_tells_is_told_of_all_ranks_of_its_generation() -> None:
    told = [it for number in (1, 2, 3) for it in step(1 + number, number, WORKERS[:1])]
    state, news = of(*started(1), *told, plan=RANK_0_TELLS)
    assert [it.committed.step for it in news if it.committed] == [1, 2, 3]
    assert {name: (it.rank, it.step) for name, it in state.members.items()} == {
        "n1.0": (0, 3), "n2.0": (1, 3), "n3.0": (2, 3)
    }  # fmt: skip
    state, news = of(*started(1), *told)
    assert not any(it.committed for it in news), "without the suite's word, one of three ranks is one of three"


def test_what_rank_0_told_before_a_restart_is_not_of_who_began_anew() -> None:
    """The worker with rank 0 is another one then, and lives are counted alike for who tells and who does not."""
    others = ("n2.0", "n1.0", "n3.0")
    state, news = of(
        *started(1), *step(2, 1, WORKERS[:1]), fault(2.5), *started(3, WORKERS[1:2]), *step(3.1, 2, WORKERS[:1]),
        *started(4, others), *started(4.2, others), *step(5, 2, others[:1]), *step(6, 3, others[:1]),
        plan=RANK_0_TELLS,
    )  # fmt: skip
    assert [(it.committed.generation, it.committed.step) for it in news if it.committed] == [(1, 1), (2, 2), (2, 3)]
    assert (state.generation, state.head) == (2, "n2.0")
    assert [it.seconds for it in state.disturbances] == [pytest.approx(2.5)]


def test_only_rank_0_speaks_for_all() -> None:
    told = [*step(2, 1, WORKERS[:1]), *step(2.1, 1, WORKERS[1:2]), *step(3, 2, WORKERS[1:2])]
    state, news = of(*started(1), *told, plan=RANK_0_TELLS)
    assert [it.committed.step for it in news if it.committed] == [1]
    assert [len(it.times) for it in state.workers.values()] == [1, 1, 1]


def test_a_step_told_before_a_rank_of_that_world_started_is_none_of_its_own() -> None:
    """As files of several machines are read: one to its end, then the next."""
    own, others = WORKERS[:1], [*started(1.1)[1:], *started(4.1)[1:]]
    state, news = of(
        *started(1)[:1], *step(2, 1, own), *started(4)[:1], *step(5, 2, own), *others, *step(6, 3, own),
        plan=RANK_0_TELLS,
    )  # fmt: skip
    assert [it.committed.step for it in news if it.committed] == [3]
    assert {it.generation for it in state.workers.values()} == {2}
    late = of(*started(1)[:1], *started(4)[1:], *step(3, 1, own), plan=RANK_0_TELLS)[1]
    assert not any(it.committed for it in late)


@pytest.mark.parametrize(("plan", "tell"), [(None, WORKERS), (RANK_0_TELLS, WORKERS[:1])])
@pytest.mark.parametrize("order", [WORKERS, WORKERS[::-1]])
def test_who_was_away_while_the_others_went_on_is_of_their_generation_again(
    plan: dict[str, Any] | None, tell: tuple[str, ...], order: tuple[str, ...]
) -> None:
    """Nobody numbers generations: the others have lived once more by then."""
    two, ranks = WORKERS[:2], {name: rank for rank, name in enumerate(WORKERS)}
    back = [event(6, "start", it, rank=ranks[it], world_size=3, pid=9) for it in order]
    state, news = of(
        *started(1), *step(2, 1, tell), fault(2.5), *started(3, two), *step(4, 2, tell[:2]), *step(5, 3, tell[:2]),
        *back, *step(7, 4, tell), *step(8, 5, tell), plan=plan,
    )  # fmt: skip
    assert [(it.committed.step, it.committed.world) for it in news if it.committed] == [
        (1, 3), (2, 2), (3, 2), (4, 3), (5, 3)
    ]  # fmt: skip
    assert {it.generation for it in state.members.values()} == {3}
    assert len(state.members) == 3


def test_time_to_recovery_is_from_the_fault_to_the_first_step_of_all_ranks_of_a_new_generation() -> None:
    state, news = of(*BEGUN, fault(4.5, took_s=0.3), *step(5, 4), *met(7, 2), *step(8, 3, WORKERS[:2]), *step(8.5, 3))
    (found,) = state.recoveries
    assert (found.old, found.new) == (1, 2)
    assert found.end_t == pytest.approx(8.52)
    assert [it.seconds for it in state.disturbances] == [pytest.approx(4.02)]
    assert [it.fault.id for told in news for it in told.recovered] == ["f01"]
    (stood,) = [it.standstill for it in news if it.standstill]
    assert stood.seconds == pytest.approx(8.52 - 5.02)
    assert stood.lost == 2


def test_a_step_of_the_new_generation_that_came_before_the_injection_was_told_of_counts() -> None:
    """An injection may take longer than the recovery from it."""
    state, news = of(*BEGUN, *met(5, 2), *step(6, 4), fault(4.5, took_s=3.0))
    assert state.disturbances[0].seconds == pytest.approx(6.02 - 4.5)
    assert news[-1].recovered == news[-1].settled == tuple(state.disturbances)


def test_training_that_never_stopped_did_not_recover() -> None:
    state, news = of(*BEGUN, fault(4.5), event(4.6, "detected", "n1.launch", why="no_coordinator"), *step(5, 4))
    assert (state.disturbances[0].seconds, state.symptom_t) == (None, None)
    assert not any(it.standstill or it.recovered for it in news)


@pytest.mark.parametrize(("begin_t", "new"), [(6.9, 2), (7.1, None)])
def test_a_membership_of_those_who_had_not_left_yet_is_no_recovery(begin_t: float, new: int | None) -> None:
    """The harness ends a job that trained on: the slower one to leave makes a step more, alone."""
    alone = WORKERS[:1]
    left = [*met(6.5, 2, alone), event(7, "job_over"), *step(8, 6, alone, begin_t=begin_t)]
    state, _ = of(*BEGUN, fault(4.5), *step(5, 4), *step(6, 5), *left)
    assert [it.new for it in state.recoveries] == [new]


def test_a_fault_during_a_recovery_shares_its_end_and_another_one_ends_it() -> None:
    during = fault(7.5, "f02", phase="recovery")
    both, _ = of(*BEGUN, fault(4.5), *met(7, 2), during, *met(9, 3), *step(10, 4))
    assert [it.end_t for it in both.recoveries] == [10.02, 10.02]
    assert [it.old for it in both.recoveries] == [1, 2]
    after, _ = of(*BEGUN, fault(4.5), *met(7, 2), fault(7.5, "f02"), *met(9, 3), *step(10, 4))
    assert [it.end_t for it in after.recoveries] == [None, 10.02]
    refused = event(7.5, "fault_refused", fault="f02", kind="hang", why="x")
    bounded, _ = of(*BEGUN, fault(4.5), *met(7, 2), refused, *step(10, 4))
    assert [(it.end_t, it.fault.injected) for it in bounded.recoveries] == [(None, True), (None, False)]


def test_a_fault_that_overlaps_shares_its_end() -> None:
    plan = {"faults": [{"id": "f01"}, {"id": "f02", "after_s": 2.0}, {"id": "f03"}]}
    early = of(*BEGUN, fault(4.5), fault(6.5, "f02"), *met(9, 2), *step(10, 4), fault(11, "f03"), plan=plan)[0]
    assert [(it.end_t, it.until_t) for it in early.recoveries[:2]] == [(10.02, 11), (10.02, 11)]
    late = of(*BEGUN, fault(4.5), *met(5, 2), *step(6, 4), fault(6.5, "f02"), *met(9, 3), *step(10, 5), plan=plan)[0]
    assert [it.end_t for it in late.recoveries] == [6.02, 10.02]


def test_faults_that_overlap_are_one_disturbance() -> None:
    faults: list[Event] = [{"id": "f01"}, {"id": "f02", "after_s": 0.0}, {"id": "f03", "after_s": None}]
    assert [[it["id"] for it in group] for group in disturbances(faults)] == [["f01", "f02"], ["f03"]]


def settled(news: list[News]) -> list[tuple[str, Any]]:
    return [(str(it), it.seconds) for told in news for it in told.settled]


def test_a_disturbance_has_one_recovery_that_grows_until_nothing_can_make_it_longer() -> None:
    plan = {"faults": [{"id": "f01"}, {"id": "f02", "after_s": 2.0}, {"id": "f03"}]}
    late = [*BEGUN, fault(4.5), *met(5, 2), *step(6, 4), fault(6.5, "f02"), *met(9, 3), *step(10, 5)]
    state, news = of(*late, plan=plan)
    grown = [it.seconds for told in news for it in told.recovered]
    assert grown == [pytest.approx(6.02 - 4.5), pytest.approx(10.02 - 4.5)]
    assert settled(news) == [("f01 hang, f02 hang", pytest.approx(10.02 - 4.5))]
    assert [it.seconds for it in state.disturbances] == grown[1:]


def test_a_disturbance_whose_last_fault_never_stopped_training_is_settled_by_the_next_one_or_the_end() -> None:
    plan = {"faults": [{"id": "f01"}, {"id": "f02", "after_s": 2.0}, {"id": "f03"}]}
    begun = [*BEGUN, fault(4.5), *met(5, 2), *step(6, 4), fault(6.5, "f02"), *step(7, 5)]
    assert settled(of(*begun, plan=plan)[1]) == []
    for end in (fault(8, "f03"), event(8, "trial_end", ok=True)):
        assert settled(of(*begun, end, plan=plan)[1]) == [("f01 hang, f02 hang", pytest.approx(6.02 - 4.5))]
    refused = event(6.5, "fault_refused", fault="f02", kind="hang", why="x")
    alone = of(*BEGUN, fault(4.5), *met(5, 2), *step(6, 4), refused, plan=plan)[1]
    assert settled(alone) == [("f01 hang", pytest.approx(6.02 - 4.5))]


HEALED = event(7, "fault_end", fault="f01", kind="hang")


@pytest.mark.parametrize(
    ("before", "after", "steps", "groups"),
    [
        ([], [HEALED], 15, [1, 1]),
        ([], [HEALED], 14, [2]),
        ([], [], 15, [2]),
        (step(4.4, 20), [HEALED], 15, [2]),
        ([], [{**HEALED, "t": 12}], 15, [2]),
    ],
    ids=["steady", "a step too few", "held", "work not made up", "healed meanwhile"],
)
def test_a_fault_of_a_certain_moment_overlaps_unless_the_job_is_steady(
    before: list[Event], after: list[Event], steps: int, groups: list[int]
) -> None:
    plan = {"nodes": 3, "faults": [{"id": "f01", "at_s": 1.0}, {"id": "f02", "at_s": 99.0}]}
    made = [it for number in range(steps) for it in step(11 + 0.1 * number, 4 + number)]
    records = [*BEGUN, *before, fault(4.5), *met(10, 2), *made, *after, fault(13.5, "f02", took_s=9)]
    state, _ = of(*records, plan=plan)
    assert [len(it.recoveries) for it in state.disturbances] == groups
    assert state.recoveries[0].until_t == (13.5 if groups == [1, 1] else float("inf"))


def test_a_fault_that_was_to_overlap_with_one_that_nobody_saw_is_alone() -> None:
    plan = {"faults": [{"id": "f01"}, {"id": "f02", "after_s": 2.0}]}
    state, news = of(*BEGUN, fault(4.5, "f02"), *met(9, 2), *step(10, 4), event(11, "trial_end", ok=True), plan=plan)
    assert settled(news) == [("f02 hang", pytest.approx(10.02 - 4.5))]
    assert [str(it) for it in state.disturbances] == ["f02 hang"]


def test_the_plan_s_phase_of_a_fault_counts() -> None:
    plan = {"faults": [{"id": "f02", "phase": "recovery"}]}
    state, _ = of(*BEGUN, fault(4.5), fault(7.5, "f02"), *met(9, 3), *step(10, 4), plan=plan)
    assert [it.end_t for it in state.recoveries] == [10.02, 10.02]


def test_a_share_of_a_rank_that_died_counts_once_another_recorded_the_step() -> None:
    shares = [event(4.5, "share", it, step=4, rows=[], generation=1) for it in WORKERS]
    dies = [*BEGUN, *shares, *step(5, 4, WORKERS[:2])]
    state, _ = of(*dies)
    assert state.step == 3, "the third may still record it"
    state, news = of(*dies, event(6, "ready", "n1.0", generation=2, rank=0, world_size=2))
    assert state.newest
    assert (state.newest.step, state.newest.end_t) == (4, 5.01)
    assert news[-1].committed is state.newest
    nobody, _ = of(*BEGUN, *shares, event(6, "ready", "n1.0", generation=2, rank=0, world_size=2))
    assert nobody.step == 3, "the sum arrived with nobody"


def test_lives_are_counted_where_nobody_numbers_generations() -> None:
    state, news = of(*met(1, None), *step(2, 1), *met(5, None), *step(6, 1))
    assert state.generation == 2
    assert [it.standstill.lost for it in news if it.standstill] == [1]


def test_a_rank_that_has_started_again_is_in_no_generation_before_it_has_met_the_others() -> None:
    state, _ = of(*BEGUN, event(5, "start", "n2.0", rank=0, world_size=2, pid=9))
    assert state.generation == 1
    assert set(state.members) == {"n1.0", "n3.0"}


def test_a_step_that_is_made_again_in_the_same_generation_counts_once() -> None:
    state, news = of(*BEGUN, *step(5, 2), *step(6, 3))
    assert state.step == 3
    assert sum(it.committed is not None for it in news) == 3


def test_a_symptom_lasts_until_a_step_that_began_after_it() -> None:
    symptom = event(4.5, "error", "n1.0", message="x")
    assert of(*BEGUN, symptom, *step(5, 4, begin_t=4.4))[0].symptom_t == 4.5
    assert of(*BEGUN, symptom, *step(5, 4, begin_t=4.6))[0].symptom_t is None
    assert of(*met(1, 1), symptom)[0].symptom_t is None, "nothing has been lost before the first step"
    assert of(*BEGUN, {**symptom, "fatal": False})[0].symptom_t is None
    assert of(*BEGUN, event(4.5, "process_exit", node="n1", slot=0, code=1))[0].symptom_t is None, "a neighbour's"


@pytest.mark.parametrize("seed", range(20))
def test_only_the_order_within_a_process_matters(seed: int) -> None:
    """A run that is followed comes in pieces: what one process wrote may be read before what another wrote earlier."""
    whole = [*BEGUN, fault(4.5), *met(7, 2), *step(8, 3), *step(9, 4), fault(9.5, "f02"), *met(11, 3), *step(12, 4)]
    lines = {source: iter([it for it in whole if it["source"] == source]) for source in ("harness", *WORKERS)}
    chance, state = random.Random(seed), JobState()  # noqa: S311 - to be repeated
    while lines:
        source = chance.choice(list(lines))
        for record in itertools.islice(lines[source], 3):
            state.take(record)
            break
        else:
            del lines[source]
    assert [it.seconds for it in state.disturbances] == [pytest.approx(8.02 - 4.5), pytest.approx(12.02 - 9.5)]
    assert (state.step, state.generation, state.world_size) == (4, 3, 3)


def test_fields_of_the_wrong_type_are_as_if_they_were_not_there() -> None:
    odd = [
        event(5, "step", "n1.0", step="x"),
        event(5, "step", "n1.0", step=4, generation=[]),
        event(5, "ready", "n1.0", rank="x"),
        event(5, "start", "n1.0", rank={}, world_size="y"),
        event(5, "share", "n1.0", step=[]),
        event(5, "fault_begin", kind=1),
        event(5, "fault_begin", fault="f", inject_t="now"),
        event(5, "process_exit", node=[], slot={}),
        event(5, "who", "n1.0"),
    ]
    for record in odd:
        state, _ = of(*BEGUN, record)
        assert (state.step, state.recoveries) == (3, []), record
