"""One trial, in a worker of Ray's: the trainer as it is, and a listener that hands each evaluation to Tune.

Called by Tune with a trial's parameters. The trainer's events go to a file of the search's directory, as in a run.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ray import tune

from proving_ground.search.spec import Params, Search
from proving_ground.search.store import SearchDir, asked
from proving_ground.search.times import TUNE
from proving_ground.training import train
from proving_ground.training.events import EventWriter
from proving_ground.training.typed import one_line


class Listener(EventWriter):
    """The trainer's events: written to a file, and the wanted metric told to Tune, which may end the trial there."""

    def __init__(self, path: Path, metric: str, mode: str, saved: Path | None) -> None:
        super().__init__(path)
        self._metric, self._better, self._saved = metric, max if mode == "max" else min, saved
        self._best: float | None = None
        self.told: dict[str, None] = {}  # names of metrics, in their order
        self._resumed: dict[str, Any] = {}
        self._checkpoint = ""

    def emit(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write it; hand on what is the metric.

        Raises:
            ValueError: the metric is no number, or an evaluation has passed without it.
        """
        super().emit(event, **fields)
        if event == "step" and self.told:
            check_told(self._metric, self.told)
        elif event == "checkpoint":
            self._checkpoint = fields["sha256"]
        elif event == "resume":
            self._resumed = {
                "resumed_step": fields["step"], "resumed_sha256": fields["sha256"], "resumed_t": time.monotonic(),
            }  # fmt: skip
        elif event == "eval":
            self.told[fields["metric"]] = None
            if fields["metric"] == self._metric:
                self._report(fields["step"], fields["value"])

    def _report(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"{self._metric} is {value} at step {step}")
        saved = tune.Checkpoint.from_directory(self._saved) if self._saved and self._checkpoint else None
        self._best = float(value if self._best is None else self._better(value, self._best))
        begin = time.monotonic()
        told = {"step": step, "value": float(value), "best": self._best, "saved_sha256": self._checkpoint}
        try:
            tune.report({**told, **self._resumed}, checkpoint=saved)
        finally:  # Tune ends a trial by an exit from within
            super().emit("measure", name=TUNE, unit="s", value=time.monotonic() - begin)


def run(config: dict[str, Any], folder: str) -> None:
    """Train with these parameters, on from the trial's own checkpoint or another trial's where there is one.

    Raises:
        ValueError: the metric was no number, or never told.
    """
    where = Path(folder)
    search = asked(SearchDir(where))
    name = tune.get_context().get_trial_name()
    saves = search.algorithm == "pbt"
    saved = where / "scratch" / name if saves else None
    if saved:
        take_over(saved)
    listener = Listener(SearchDir(where).of_trial(name), search.metric, search.mode, saved)
    try:
        learn(search, {it: config[it] for it in search.space}, listener, saved)
    except Exception as error:
        listener.emit("error", message=one_line(str(error) or type(error).__name__), fatal=True)
        raise
    finally:
        listener.close()


def learn(search: Search, params: Params, listener: Listener, saved: Path | None) -> None:
    """Train.

    Raises:
        ValueError: the metric was no number, or never told.
    """
    train(search.config(params, **saving(search, saved)), listener, silent)
    check_told(search.metric, listener.told)


def check_told(metric: str, told: Collection[str]) -> None:
    """That an evaluation tells the metric; seen after the first one, not when a long trial is through.

    Raises:
        ValueError: it does not.
    """
    if metric not in told:
        raise ValueError(f"metric {metric!r} was never reported; the trainer told {', '.join(told) or 'none at all'}")


def saving(search: Search, saved: Path | None) -> dict[str, Any]:
    """Keys of the trainer by which each evaluation has its checkpoint, durable before it is told."""
    if saved is None:
        return {}
    return {
        "checkpoint_dir": str(saved), "checkpoint_every": search.every, "checkpoint_async": False,
        "keep_checkpoints": 1,
    }  # fmt: skip


def take_over(saved: Path) -> None:
    """Put the checkpoint that Tune gives this trial, if it does, in the place of its own."""
    given = tune.get_checkpoint()
    if given is None:
        return
    with given.as_directory() as source:
        fresh = saved.with_name(f".{saved.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh)
        shutil.rmtree(saved, ignore_errors=True)
        fresh.rename(saved)


def silent(_line: str) -> None:
    """What the trainer tells people; nobody watches a single trial."""
