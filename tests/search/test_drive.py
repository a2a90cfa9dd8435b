"""What a sitting records and hands to Tune, without a Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search import ledger
from search.drive import Budget, Recorder
from search.ledger import Ledger
from search.spec import search_from
from search.store import SearchDir
from search.trial import saving
from tests.search.recorded import ASKED
from training import train
from training.events import NoEvents


class Tunes:
    """A trial, as far as the recorder looks at it."""

    def __init__(self, name: str, lr: float = 0.1) -> None:
        self.name, self.config = name, {"lr": lr}

    def __str__(self) -> str:
        return self.name


def recorder(folder: Path, asked: dict[str, Any]) -> Recorder:
    run_dir = SearchDir(folder)
    return Recorder(run_dir, search_from({**ASKED, **asked}, "made"), Ledger(run_dir.ledger, 1), [])


def report(made: Recorder, name: str, step: int, **more: Any) -> None:
    trial: Any = Tunes(name)
    made.on_trial_result(0, [], trial, {"step": step, "value": 0.5, **more})


@pytest.mark.parametrize(("cut", "why"), [("", "asha"), ("budget: 40 steps were made", ledger.BUDGET)])
def test_who_ended_a_trial_is_told(cut: str, why: str, tmp_path: Path) -> None:
    made, trial = recorder(tmp_path, {}), Tunes("t001")
    made.on_trial_start(0, [], trial)  # type: ignore[arg-type]
    report(made, "t001", 10)
    made.cut = cut
    made.on_trial_complete(0, [], trial)  # type: ignore[arg-type]
    assert ledger.trials(ledger.read(tmp_path / "trials.jsonl"))["t001"].why == why


def test_steps_are_those_of_this_sitting(tmp_path: Path) -> None:
    made = recorder(tmp_path, {"algorithm": "pbt"})
    for step in (10, 20):
        report(made, "t001", step)
    report(made, "t002", 30, resumed_step=20, resumed_sha256="aa", resumed_t=3.0)
    report(made, "t002", 40, resumed_step=20, resumed_sha256="aa", resumed_t=3.0)
    report(made, "t001", 40, resumed_step=30, resumed_sha256="bb", resumed_t=5.0)
    assert made.made == 20 + 20 + 10


@pytest.mark.parametrize(("before", "over"), [(0, False), (30, True)])
def test_a_budget_counts_the_steps_of_earlier_sittings(before: int, over: bool, tmp_path: Path) -> None:  # noqa: FBT001
    made = recorder(tmp_path, {"budget_steps": 40})
    budget = Budget(search_from({**ASKED, "budget_steps": 40}, "made"), made, before, 0.0)
    report(made, "t001", 10)
    assert budget.stop_all() is over
    assert bool(made.cut) is over


class Evaluations(NoEvents):
    """The steps of a training's evaluations."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def emit(self, event: str, **fields: Any) -> None:
        if event == "eval" and fields["metric"] == "accuracy":
            self.steps.append(fields["step"])


def test_a_training_that_was_killed_between_its_last_checkpoint_and_its_value_tells_it(tmp_path: Path) -> None:
    search = search_from({**ASKED, "algorithm": "pbt", "steps": 4, "eval_every": 2}, "made")
    config = search.config({"lr": 0.05}, **saving(search, tmp_path))
    first, again = Evaluations(), Evaluations()
    train(config, first, lambda _: None)
    train(config, again, lambda _: None)
    assert (first.steps, again.steps) == ([2, 4], [4])
