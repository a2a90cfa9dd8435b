"""One sitting of a search on a private Ray. Called by `search.driver`.

What it knows of earlier sittings stands in the ledger, and nowhere else: trials that have ended are not run again, what
was cut off is begun anew with the parameters that it had, and Optuna and ASHA are told what the others have learned.
Ray's words, and Tune's, go to where this process' output goes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from proving_ground.search import ledger, store
from proving_ground.search.ledger import Ledger, Trial
from proving_ground.search.points import points
from proving_ground.search.spec import Bounds, Params, Search
from proving_ground.search.times import read, spent
from proving_ground.search.trial import run
from proving_ground.training.typed import one_line

STEP, VALUE, LABEL = "step", "value", "trial"
BEST = "best"  # so far: what Optuna learns from, whether a trial ends now or ended before a resume
OBJECT_STORE_BYTES = 100_000_000  # nothing large passes through it
DIED = "its worker died"
KEPT = 4  # checkpoints of a trial that others may still copy


@dataclass(frozen=True)
class Left:
    """What is left to do: label and parameters of each trial, where they are known."""

    labels: tuple[str, ...]
    points: tuple[Params, ...]


def left(search: Search, known: Mapping[str, Trial]) -> Left:
    """The trials that have not ended, cut off ones first; Optuna says itself where the others are."""
    labels = [f"t{number:03}" for number in range(1, search.planned + 1)]
    planned = {} if search.algorithm == "optuna" else dict(zip(labels, points(search), strict=True))
    open_now = [it for it in labels if not (it in known and known[it].ended)]
    begun = [it for it in open_now if it in known]
    order = begun + [it for it in open_now if it not in known]
    found = [known[it].params if it in known else planned[it] for it in order if it in known or it in planned]
    return Left(tuple(order), tuple(found))


def domain(bounds: Bounds) -> Any:  # noqa: ANN401 - Tune's domains have no common type
    """Bounds as Tune has them."""
    if bounds.kind == "choice":
        return tune.choice(list(bounds.values))
    low, high = bounds.ends
    if bounds.kind == "int":
        return tune.randint(int(low), int(high) + 1)
    return tune.loguniform(low, high) if bounds.kind == "loguniform" else tune.uniform(low, high)


def mutations(bounds: Bounds) -> Any:  # noqa: ANN401 - same
    """What PBT perturbs a parameter to; of a choice, which it would multiply, to its neighbours in the list."""
    return list(bounds.values) if bounds.kind == "choice" else domain(bounds)


def distribution(bounds: Bounds) -> optuna.distributions.BaseDistribution:
    """Bounds as Optuna has them."""
    if bounds.kind == "choice":
        return optuna.distributions.CategoricalDistribution(bounds.values)
    low, high = bounds.ends
    if bounds.kind == "int":
        return optuna.distributions.IntDistribution(int(low), int(high))
    return optuna.distributions.FloatDistribution(low, high, log=bounds.kind == "loguniform")


def searcher(search: Search, known: Mapping[str, Trial], todo: Left) -> Any:  # noqa: ANN401 - Tune has two kinds
    """What gives Tune its points."""
    if search.algorithm != "optuna":
        named = [{**it, LABEL: label} for label, it in zip(todo.labels, todo.points, strict=True)]
        most = 0 if search.algorithm == "pbt" else search.concurrent  # a population takes turns in the slots
        return BasicVariantGenerator(points_to_evaluate=named, max_concurrent=most)
    space = {name: distribution(it) for name, it in search.bounds.items()}
    sampler = optuna.samplers.TPESampler(seed=search.seed + len(known))
    made = Labelled(
        todo.labels,
        space,
        metric=BEST,
        mode=search.mode,
        points_to_evaluate=[dict(it) for it in todo.points],
        sampler=sampler,
    )
    for trial in known.values():
        best = trial.best(search.mode)
        if trial.ended:
            made.add_evaluated_point(
                dict(trial.params), best[1] if best else 0.0, error=best is None or trial.state == ledger.FAILED
            )
    return ConcurrencyLimiter(made, search.concurrent)


class Labelled(OptunaSearch):
    """Optuna's next point, with the label of the trial that tries it."""

    def __init__(self, labels: Sequence[str], space: Mapping[str, Any], **more: Any) -> None:  # noqa: ANN401 - handed on
        super().__init__(dict(space), **more)
        self._labels = list(labels)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The point."""
        found = super().suggest(trial_id)
        return found and {**found, LABEL: self._labels.pop(0)}


def label(trial: TuneTrial) -> str:
    """The label of a trial that is being made; later its parameters may be another's, copied with its weights."""
    return str(trial.config[LABEL])


class Past:
    """A trial of an earlier sitting, as far as a scheduler looks at it."""

    def __init__(self, label: str) -> None:
        self.trial_id = label


def scheduler(search: Search, known: Mapping[str, Trial]) -> TrialScheduler:
    """What ends trials early, or has them copy each other."""
    if search.algorithm == "asha":
        return asha(search, known)
    if search.algorithm != "pbt":
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    return PopulationBasedTraining(
        time_attr=STEP, metric=VALUE, mode=search.mode, perturbation_interval=search.every,
        hyperparam_mutations={name: mutations(it) for name, it in search.bounds.items()},
        quantile_fraction=search.quantile, custom_explore_fn=partial(within, search),
    )  # fmt: skip


def asha(search: Search, known: Mapping[str, Trial]) -> AsyncHyperBandScheduler:
    """ASHA, with the values of trials that have ended on its rungs; what was cut off begins anew, and tells its own."""
    made = AsyncHyperBandScheduler(
        time_attr=STEP, metric=VALUE, mode=search.mode, max_t=search.steps,
        grace_period=search.grace_steps or search.every, reduction_factor=search.factor,
    )  # fmt: skip
    for trial in (it for it in known.values() if it.ended):
        past: Any = Past(trial.id)
        made.on_trial_add(None, past)  # type: ignore[arg-type] # it does not look at the controller
        for step, value in trial.curve:
            made.on_trial_result(None, past, {STEP: step, VALUE: value})  # type: ignore[arg-type] # same
    return made


def within(search: Search, config: dict[str, Any]) -> dict[str, Any]:
    """Perturbed parameters, brought back between their bounds."""
    for name, bounds in search.bounds.items():
        if bounds.kind != "choice":
            low, high = bounds.ends
            config[name] = min(max(config[name], low), high)
    return config


class Recorder(tune.Callback):
    """Writes the ledger as Tune tells what happens."""

    def __init__(
        self, run_dir: store.SearchDir, search: Search, book: Ledger, records: Sequence[ledger.Record]
    ) -> None:
        self._run_dir, self._search, self._book = run_dir, search, book
        self._begun: set[str] = set()
        self._saved = {it["sha256"]: it["trial"] for it in records if it["event"] == ledger.REPORTED and "sha256" in it}
        self._lost = {it["trial"] for it in records if it["event"] == ledger.LOST}
        self._told: set[tuple[str, float]] = set()  # trial, and moment from which on it went on from a checkpoint
        self.steps: dict[str, int] = {}
        self.made = 0  # steps, in this sitting
        self.cut = ""  # why the budget ended the search, once it has

    def ready(self, seconds: float) -> None:
        """Ray took so long to start."""
        self._book.append(ledger.READY, seconds=seconds)

    def params(self, config: Params) -> Params:
        """What of a trial's parameters the space has."""
        return {name: config[name] for name in self._search.space}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object) -> None:
        """A trial begins; one that was paused goes on, which is none."""
        del iteration, trials, info
        self.begins(trial)

    def begins(self, trial: TuneTrial) -> None:
        """A trial begins, unless it has: of a worker that died before its first word Tune tells the error alone."""
        if (name := str(trial)) not in self._begun:
            self._begun.add(name)
            self._book.append(ledger.STARTED, trial=name, params=self.params(trial.config))

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: object
    ) -> None:
        """A trial told its metric."""
        del iteration, trials, info
        name, step = str(trial), int(result[STEP])
        begun = (name, float(result.get("resumed_t", 0)))
        self.made += step - (self.steps.get(name, 0) if begun in self._told else int(result.get("resumed_step", 0)))
        self.copied(name, trial.config, result, new=begun not in self._told)
        self._told.add(begun)
        self.steps[name] = step
        saved = {"sha256": result["saved_sha256"]} if result.get("saved_sha256") else {}
        if saved:
            self._saved[saved["sha256"]] = name
        self._book.append(ledger.REPORTED, trial=name, step=step, value=float(result[VALUE]), **saved)

    def copied(self, name: str, config: Params, result: Mapping[str, Any], *, new: bool) -> None:
        """A trial goes on from a checkpoint that another one saved, by the checkpoint's hash."""
        digest = result.get("resumed_sha256", "")
        donor = self._saved.get(digest, name)
        if donor != name and new:
            self._book.append(
                ledger.COPIED, trial=name, donor=donor, step=result["resumed_step"], sha256=digest,
                params=self.params(config),
            )  # fmt: skip

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object) -> None:
        """A trial is through, or was ended early."""
        del iteration, trials, info
        name = str(trial)
        if self.steps.get(name, 0) >= self._search.steps:
            self._book.append(ledger.FINISHED, trial=name)
        elif name in self._begun:
            self._book.append(ledger.STOPPED, trial=name, why=ledger.BUDGET if self.cut else ledger.ASHA)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object) -> None:
        """A trial failed; of a worker that died, out of memory, say, the trial has one more try."""
        del iteration, trials, info
        self.begins(trial)
        name = str(trial)
        why = reason(self._run_dir.of_trial(name))
        event = ledger.LOST if why == DIED and name not in self._lost else ledger.FAILED
        self._book.append(event, trial=name, why=why)


def reason(file: Path) -> str:
    """Why a trial failed: what its worker told last, in one line; a worker that was killed tells nothing."""
    last = [it for it in read(file) if it["event"] in ("start", "error")][-1:]
    return one_line(str(last[0].get("message"))) if last and last[0]["event"] == "error" else DIED


class Budget(tune.Stopper):
    """Ends the search when its budget is used up."""

    def __init__(self, search: Search, recorder: Recorder, spent_steps: int, spent_s: float) -> None:
        self._search, self._recorder, self._spent_steps = search, recorder, spent_steps
        self._end_t = time.monotonic() + (search.budget_s or 0) - spent_s

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether a trial has made all of its steps."""
        del trial_id
        return int(result[STEP]) >= self._search.steps

    def stop_all(self) -> bool:
        """Whether all trials are to end."""
        steps = self._spent_steps + self._recorder.made
        if self._search.budget_steps is not None and steps >= self._search.budget_steps:
            self._recorder.cut = f"budget: {steps} steps were made"
        elif self._search.budget_s is not None and time.monotonic() >= self._end_t:
            self._recorder.cut = f"budget: {self._search.budget_s:g} s are over"
        return bool(self._recorder.cut)


def sitting(run_dir: store.SearchDir, search: Search) -> int:
    """Run what is left to run; 1 where another sitting has to go on, since workers died."""
    records = ledger.read(run_dir.ledger)
    known, before = ledger.trials(records), ledger.sittings(records)
    ledger.check_params(known, search.space, run_dir.ledger)
    book = Ledger(run_dir.ledger, before + 1)
    about = {"concurrent": search.concurrent, "planned": search.planned}
    book.append(ledger.SITTING, pid=os.getpid(), wall_s=time.time(), **about)
    todo = left(search, known)
    recorder = Recorder(run_dir, search, book, records)
    budget = Budget(search, recorder, *spent(run_dir, records))
    if todo.labels and not budget.stop_all():
        fit(run_dir, search, known, todo, recorder, budget)
    lost = left(search, ledger.trials(ledger.read(run_dir.ledger))).labels and not recorder.cut
    if not lost:
        book.append(ledger.OVER, why=recorder.cut or "every trial has ended", wall_s=time.time())
    ray.shutdown()  # from here on nobody looks for its raylet
    return int(bool(lost))


def fit(
    run_dir: store.SearchDir, search: Search, known: Mapping[str, Trial], todo: Left, recorder: Recorder, budget: Budget
) -> None:
    """Have Tune run the trials."""
    random.seed(search.seed + len(known))  # of what PBT perturbs
    begin = time.monotonic()
    ray.init(
        num_cpus=search.concurrent, num_gpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=OBJECT_STORE_BYTES, _temp_dir=str(run_dir.ray),
    )  # fmt: skip
    recorder.ready(time.monotonic() - begin)
    space = {name: domain(it) for name, it in search.bounds.items()} | {LABEL: ""}
    tuner = tune.Tuner(
        partial(run, folder=str(run_dir.path)),
        param_space={} if search.algorithm == "optuna" else space,
        tune_config=tune.TuneConfig(
            search_alg=searcher(search, known, todo), scheduler=scheduler(search, known), num_samples=len(todo.labels),
            reuse_actors=True, trial_name_creator=label, trial_dirname_creator=label,
        ),
        run_config=tune.RunConfig(
            name="tune", storage_path=str(run_dir.scratch), verbose=0, stop=budget, callbacks=[recorder],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=KEPT if search.algorithm == "pbt" else None),
        ),
    )  # fmt: skip
    tuner.fit()


def main(folder: str) -> int:
    """One sitting of the search in this directory; the exit status."""
    run_dir = store.SearchDir(Path(folder))
    return sitting(run_dir, store.asked(run_dir))
