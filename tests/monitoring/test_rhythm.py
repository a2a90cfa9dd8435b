"""How old a job's checkpoint may be, and what is an evaluation, by the job's own rhythm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from proving_ground.monitoring.board import Board
from proving_ground.monitoring.intake import Intake
from proving_ground.monitoring.rhythm import ASSUMED_S, LONGEST_GAP_S, Evaluations, is_to_save

JOB = ("r", "t001")
OURS = {"id": "t001", "nodes": 1, "training": {"checkpoint_every": 10}}
EVALUATED = "training_evaluation_start_timestamp_seconds"


class Told:
    """A job of one worker, whose clock goes on as its events say."""

    def __init__(self, plan: Mapping[str, Any] | None = None) -> None:
        self.board, self.t, self.number = Board(), 0.0, 0
        documents: dict[str, Any] = {"trials": [plan]} if plan else {}
        self.intake = Intake(self.board, "r", documents, {"wall_s": 1000.0, "t": 0.0} if plan else None, 0.0)
        if plan:
            self.intake.take({"t": 0.0, "source": "harness", "trial": "t001", "event": "trial_start"})
        self.tell("start", rank=0, world_size=1, pid=1, wall_s=1000.0)

    def tell(self, event: str, source: str = "n1.0", **fields: Any) -> None:
        self.intake.take({"t": self.t, "source": source, "trial": "t001", "event": event, **fields})

    def steps(self, count: int, every_s: float = 10.0, **fields: Any) -> None:
        for _ in range(count):
            self.t, self.number = self.t + every_s, self.number + 1
            self.tell("step", step=self.number, samples=1, world_size=1, **fields)

    def save(self, durable_s: float = 0.0) -> None:
        about: dict[str, Any] = {"step": self.number, "path": "/c/x", "bytes": 1, "block_s": 0.0}
        self.tell("checkpoint", **about, durable_s=durable_s)

    def value(self, name: str) -> float | None:
        return self.board.get(name, JOB)


def test_before_the_first_save_an_interval_is_assumed() -> None:
    told = Told(OURS)
    assert (told.value("checkpoint_unsaved_seconds"), told.value("checkpoint_usual_seconds")) == (0, ASSUMED_S)
    told.steps(31)
    assert told.value("checkpoint_unsaved_seconds") == 300


def test_the_usual_interval_is_the_jobs_own() -> None:
    told = Told(OURS)
    told.steps(1)
    for _ in range(5):
        told.steps(120)
        told.save()
    assert told.value("checkpoint_usual_seconds") == 1200
    assert told.value("checkpoint_unsaved_seconds") == 0
    told.steps(7)
    assert told.value("checkpoint_unsaved_seconds") == 70


def test_what_stood_still_makes_no_checkpoint_older() -> None:
    told = Told(OURS)
    told.steps(10)
    told.save()
    told.t += 100_000
    told.steps(1)
    assert told.value("checkpoint_unsaved_seconds") == LONGEST_GAP_S


def test_a_long_step_is_training_all_of_it() -> None:
    told = Told(OURS)
    told.steps(3, every_s=300, step_s=300.0)
    assert told.value("checkpoint_unsaved_seconds") == 900


def test_what_is_trained_while_a_checkpoint_is_written_is_not_in_it() -> None:
    told = Told(OURS)
    told.steps(21)
    told.save(durable_s=50)
    assert told.value("checkpoint_unsaved_seconds") == 50


def test_a_job_that_restarts_again_and_again_without_a_save_is_seen() -> None:
    """Each life makes 5 minutes of steps and none saves: what is lost adds up."""
    told = Told(OURS)
    for _ in range(10):
        told.tell("start", rank=0, world_size=1, pid=1, wall_s=1000.0 + told.t)
        told.tell("ready", generation=None)
        told.number = 0
        told.steps(30)
    assert (told.value("checkpoint_unsaved_seconds") or 0) >= 10 * 290


@pytest.mark.parametrize(
    ("plan", "saves"),
    [
        ({}, True),
        ({"command": {"argv": ["x"]}}, True),
        ({"training": {}}, False),
        ({"training": {"checkpoint_every": 0}}, False),
        ({"training": {"checkpoint_interval_s": 3.0}}, True),
        ({"training": {"mtbf_s": 900.0}}, True),
    ],
)
def test_only_a_job_that_is_to_save_can_have_saved_nothing(plan: dict[str, Any], saves: bool) -> None:  # noqa: FBT001
    assert is_to_save(plan) is saves


def test_a_job_that_is_not_to_save_has_no_age() -> None:
    told = Told({"id": "t001", "nodes": 1})
    told.steps(5)
    told.save()
    assert told.value("checkpoint_unsaved_seconds") is None
    assert told.value("checkpoint_usual_seconds") is None


def test_an_evaluation_is_seen_from_its_step_to_its_result() -> None:
    told = Told({"id": "t001", "nodes": 1, "training": {"eval_every": 3}})
    told.steps(2)
    assert told.value(EVALUATED) is None
    told.steps(1)
    assert told.value(EVALUATED) == 1030
    told.t += 360
    told.tell("eval", step=3, split="test", metric="accuracy", value=0.5)
    assert told.value(EVALUATED) is None


def test_an_evaluation_that_told_nothing_is_over_with_the_next_step() -> None:
    told = Told({"id": "t001", "nodes": 1, "training": {"eval_every": 3}})
    told.steps(3)
    assert told.value(EVALUATED)
    told.steps(1)
    assert told.value(EVALUATED) is None


def test_without_a_plan_the_rhythm_of_evaluations_is_learned() -> None:
    told = Told()
    for _ in range(2):
        told.steps(4)
        assert told.value(EVALUATED) is None
        told.tell("eval", step=told.number, split="test", metric="accuracy", value=0.5)
        told.tell("eval", step=told.number, split="test", metric="loss", value=0.5)
    told.steps(4)
    assert told.value(EVALUATED)


def test_a_trainer_of_ones_own_may_say_that_an_evaluation_begins() -> None:
    told = Told()
    told.steps(1)
    told.tell("phase", phase="evaluation", step=1)
    assert told.value(EVALUATED) == 1010
    told.steps(1)
    told.tell("phase", phase="forward", step=2)
    assert told.value(EVALUATED) is None


def test_the_last_step_is_followed_by_an_evaluation_unless_the_plan_says_never() -> None:
    assert Evaluations(every=0, steps=9).due(9)
    assert Evaluations(steps=9).due(9)
    assert not Evaluations(every=-1, steps=9).due(9)
    assert not Evaluations.of({"id": "t001"}).due(9), "the harness' own do not evaluate unless asked"


def test_without_a_plan_a_job_is_to_have_what_it_had_and_to_end_as_its_first_steps_promise() -> None:
    """ReplicaMissing, Evicted and CostOverEstimate need it; no harness says it there."""
    told = Told()
    told.tell("start", source="n2.0", rank=1, world_size=2, pid=1, wall_s=1000.0)
    told.tell("ready", generation=1, steps=1001)
    told.tell("start", source="n1.0", rank=0, world_size=2, pid=1, wall_s=1000.0)
    assert told.value("training_ranks_planned") == 2
    assert told.value("training_nodes_planned") == 2
    told = Told()
    told.tell("ready", generation=1, steps=1001)
    told.steps(100)
    assert told.value("training_seconds_estimated") is None
    told.steps(1)
    assert told.value("training_seconds_estimated") == pytest.approx(1010 + 900 * 10)
    told.steps(500, every_s=50)
    assert told.value("training_seconds_estimated") == pytest.approx(1010 + 900 * 10), "the promise stays"
    assert told.value("training_ranks_planned") == 1


def test_the_first_out_of_memory_that_training_survives_is_an_increase() -> None:
    told = Told()
    labels = (*JOB, "n1", "OutOfMemoryError", "false")
    assert told.board.get("training_errors_total", labels) == 0
    told.tell("error", message="memory does not suffice", kind="OutOfMemoryError", fatal=False)
    assert told.board.get("training_errors_total", labels) == 1
