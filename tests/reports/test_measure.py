"""One trial's measurements, on rows small enough to check by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from proving_ground.reports import history
from proving_ground.reports.scaling import measure
from proving_ground.reports.scaling.timeline import spans

Record = dict[str, Any]
PLAN: Record = {
    "id": "t001",
    "nodes": 2,
    "steps": 3,
    "warmup_steps": 1,
    "case": "c",
    "workload": "w",
    "scaling": ["weak"],
}


def recorded(steps: list[Record], **end: Any) -> history.TrialHistory:
    head = [{"t": 0.0, "event": "trial_start", "trial": "t001"}]
    started = {"t": 0.0, "event": "process_start", "trial": "t001", "slot": 0, "pid": 1}
    head += [{**started, "node": node} for node in ("n1", "n2")]
    tail = [{"t": 99.0, "event": "trial_end", "trial": "t001", "ok": True, "why": "", **end}]
    return history.collect([*head, *steps, *tail]).trials["t001"]


def step(node: str, number: int, t: float, samples: float = 10, **fields: Any) -> Record:
    return {
        "t": t,
        "event": "step",
        "trial": "t001",
        "source": f"{node}.0",
        "step": number,
        "samples": samples,
        **fields,
    }


def both(*ends: tuple[float, float], **fields: Any) -> list[Record]:
    return [
        step(node, number, t, **fields)
        for number, pair in enumerate(ends, 1)
        for node, t in zip(("n1", "n2"), pair, strict=True)
    ]


def test_window_runs_from_last_warm_up_end_to_last_end() -> None:
    found = measure.measure(PLAN, recorded(both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5))))
    assert found.window == (1.5, 3.5)
    assert found.throughput == pytest.approx(40 / 2.0)  # 2 steps x 2 ranks x 10 samples
    assert found.parts == {}  # nothing recorded: a gap, not zeros


def test_without_warm_up_it_begins_when_all_are_ready() -> None:
    ready = [{"t": t, "event": "ready", "trial": "t001", "source": name} for name, t in (("n1.0", 0.2), ("n2.0", 0.5))]
    found = measure.measure({**PLAN, "warmup_steps": 0}, recorded(ready + both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5))))
    assert found.window == (0.5, 3.5)
    assert found.samples.sum() == 60


def test_without_warm_up_and_ready_the_first_step_is_spent() -> None:
    found = measure.measure({**PLAN, "warmup_steps": 0}, recorded(both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5))))
    assert found.window == (1.5, 3.5)
    assert found.samples.sum() == 40


def test_waiting_for_the_slowest_is_bounded_by_communication() -> None:
    steps = [
        *both((1.0, 1.0)),
        *[step("n1", n, float(n), comm_s=0.3, backward_t=n - 0.5) for n in (2, 3)],
        *[step("n2", n, float(n), comm_s=0.1, backward_t=n - 0.1) for n in (2, 3)],
    ]
    found = measure.measure(PLAN, recorded(steps))
    assert found.parts["wait"] == pytest.approx((0.3 + 0.0) / 2)  # 0.4 behind, but only 0.3 in communication
    assert found.parts["comm"] == pytest.approx((0.0 + 0.1) / 2)
    assert found.parts["rest"] == pytest.approx(1.0 - 0.2)


def test_null_and_text_are_gaps() -> None:
    steps = both((1.0, 1.0), (2.0, 2.0), (3.0, 3.0), data_s=None, forward_s="fast", backward_s=0.4)
    found = measure.measure(PLAN, recorded(steps))
    assert set(found.parts) == {"backward", "rest"}


def test_what_names_no_process_is_one_of_its_own() -> None:
    """As a damaged record has it, beside those that name theirs."""
    odd = {**step("n1", 3, 3.0), "source": 1007.5}
    found = measure.all_steps(recorded([step("n1", 1, 1.0), step("n1", 2, 2.0), odd]))
    assert set(found["process"]) == {"n1.0", "1007.5"}


@pytest.mark.parametrize(
    ("end", "why"),
    [({"ok": False, "why": "no step for 60 s"}, "no step for 60 s"), ({"ok": False}, "the harness gave no reason")],
)
def test_failed_trial_has_no_figures(end: Record, why: str) -> None:
    found = measure.measure(PLAN, recorded(both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5)), **end))
    assert found.failed == why
    assert math.isnan(found.throughput)


def test_what_the_harness_saw_comes_before_how_processes_ended() -> None:
    """It ends the others itself, so that their exits, and what a library said of them, come of the reason."""
    whole, about = both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5)), {"t": 98.0, "trial": "t001"}
    said = {**about, "event": "error", "source": "n1.0", "message": "Gloo: connection closed by peer"}
    ended = {**about, "event": "process_exit", "slot": 0, "pid": 1, "code": -15}
    exits = [{**ended, "node": node} for node in ("n1", "n2")]
    found = measure.measure(PLAN, recorded([*whole, said, *exits], ok=False, why="no step for 61 s"))
    assert found.failed == "no step for 61 s"
    found = measure.measure(PLAN, recorded([*whole, said, *exits], ok=False))
    assert found.failed == "n1.0 ended with exit status -15: Gloo: connection closed by peer", "where it saw nothing"


def test_node_that_never_started_fails_the_trial() -> None:
    found = measure.measure({**PLAN, "nodes": 3}, recorded(both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5))))
    assert found.failed == "1 of 3 nodes started no process"


def test_trial_run_again_counts_from_its_last_start() -> None:
    first = recorded(both((1.0, 1.5), (2.0, 2.5), (3.0, 3.5)))
    again = history.collect([
        {"t": 1.0, "event": "trial_start", "trial": "t001"}, step("n1", 1, 2.0),
        {"t": 5.0, "event": "trial_start", "trial": "t001"}, step("n1", 1, 6.0),
    ]).trials["t001"]  # fmt: skip
    assert len(measure.all_steps(first)) == 6
    assert list(measure.all_steps(again)["t"]) == [6.0]


def test_last_evaluation_counts() -> None:
    evals = [{"split": "test", "metric": "accuracy", "value": value, "baseline": 0.1} for value in (0.5, 0.9)]
    assert measure.last_quality(evals) == {("test", "accuracy"): {"value": 0.9, "baseline": 0.1}}


def test_spans_of_the_timeline_cover_the_step_without_holes() -> None:
    marks = {"begin_t": 0.0, "data_t": 1.0, "forward_t": 2.0, "backward_t": 3.0, "comm_t": 5.0, "optimizer_t": 6.0}
    found = spans(marks, 4.0)
    assert [part for part, _, _ in found] == ["data", "forward", "backward", "wait", "comm", "optimizer"]
    assert all(before[2] == after[1] for before, after in itertools.pairwise(found))


def test_a_coordinator_is_not_missed_among_those_that_make_steps() -> None:
    found = history.History()
    for node, more in (("n1", {}), ("n2", {}), ("n3", {"serves": True})):
        history._process_start(found, {"trial": "t001", "node": node, "slot": 0, **more})
    assert found.trials["t001"].started == ["n1.0", "n2.0"]


def test_one_rank_may_tell_the_steps_of_all() -> None:
    plan = PLAN | {"command": {"tells": "rank 0"}}
    steps = [step("n1", number, float(number), samples=20) for number in (1, 2, 3)]
    assert measure.measure(plan, recorded(steps)).throughput == pytest.approx(20.0)
    assert measure.measure(PLAN, recorded(steps)).failed == "n2.0 recorded 0 of 3 steps"
    assert measure.measure(plan, recorded(steps[:2])).failed == "n1.0 recorded 2 of 3 steps"
    twice = [*steps, *(step("n2", number, float(number), samples=20) for number in (1, 2, 3))]
    assert "2 ranks told steps" in measure.measure(plan, recorded(twice)).failed
