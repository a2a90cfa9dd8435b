"""What a sitting records and hands to Tune, without a Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from proving_ground.search import drive, ledger
from proving_ground.search.drive import Budget, Left, Recorder
from proving_ground.search.ledger import Ledger
from proving_ground.search.spec import search_from
from proving_ground.search.store import SearchDir
from proving_ground.search.trial import Listener, saving
from proving_ground.training import train
from proving_ground.training.events import NoEvents
from tests.search.recorded import ASKED, write


def silent(made: Recorder, name: str, *, begun: bool = True) -> None:
    """Its worker died."""
    trial: Any = Tunes(name)
    if begun:
        made.on_trial_start(0, [], trial)
    made.on_trial_error(0, [], trial)


def test_a_trial_whose_worker_died_is_begun_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = write(tmp_path, [])
    run_dir.ledger.unlink()
    search = search_from({**ASKED, "trials": 1}, "made")

    def fit(_run_dir: object, _search: object, _known: object, todo: Left, made: Recorder, _budget: object) -> None:
        assert todo.labels == ("t001",)
        silent(made, "t001")

    monkeypatch.setattr(drive, "fit", fit)
    assert drive.sitting(run_dir, search) == 1  # another sitting goes on
    assert not ledger.trials(ledger.read(run_dir.ledger))["t001"].ended
    assert drive.sitting(run_dir, search) == 0
    records = ledger.read(run_dir.ledger)
    assert [it["event"] for it in records if it["sitting"] == 1] == ["sitting", "started", "lost"]
    assert [it["event"] for it in records if it["sitting"] == 2] == ["sitting", "started", "failed", "over"]
    assert ledger.repeated(records) == []


def test_a_trial_whose_worker_died_before_its_first_word_has_its_parameters(tmp_path: Path) -> None:
    made = recorder(tmp_path, {})
    silent(made, "t001", begun=False)
    assert ledger.trials(ledger.read(tmp_path / "trials.jsonl"))["t001"].params == {"lr": 0.1}


def test_a_trial_that_says_why_it_failed_has_failed(tmp_path: Path) -> None:
    made = recorder(tmp_path, {})
    file = SearchDir(tmp_path).of_trial("t001")
    file.parent.mkdir()
    file.write_text('{"t":1,"event":"error","message":"the loss is nan"}\n')
    silent(made, "t001")
    assert ledger.trials(ledger.read(tmp_path / "trials.jsonl"))["t001"].why == "the loss is nan"


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


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a listener hands to Tune."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", lambda metrics, **_: found.append(metrics))
    return found


@pytest.mark.parametrize(("mode", "best"), [("max", [0.5, 0.9, 0.9]), ("min", [0.5, 0.5, 0.2])])
def test_optuna_learns_from_the_best_value_so_far(
    mode: str, best: list[float], reports: list[dict[str, Any]], tmp_path: Path
) -> None:
    listener = Listener(tmp_path / "events", "accuracy", mode, None)
    for step, value in enumerate((0.5, 0.9, 0.2), 1):
        listener.emit("eval", step=step, metric="accuracy", value=value)
    assert [it["value"] for it in reports] == [0.5, 0.9, 0.2]
    assert [it["best"] for it in reports] == best


def test_a_metric_that_an_evaluation_lacks_is_refused_at_the_next_step(
    reports: list[dict[str, Any]], tmp_path: Path
) -> None:
    listener = Listener(tmp_path / "events", "acuracy", "max", None)
    listener.emit("step", step=1, samples=1)
    listener.emit("eval", step=1, metric="accuracy", value=0.5)
    listener.emit("eval", step=1, metric="loss", value=0.5)
    with pytest.raises(ValueError, match="never reported; the trainer told accuracy, loss"):
        listener.emit("step", step=2, samples=1)
    assert reports == []


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
