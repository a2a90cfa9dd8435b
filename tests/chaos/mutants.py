"""Trainers with one defect each, all of them defects that real systems have had. Started by `test_mutants.py`.

Each is an `--entry` of the launcher: it puts the defect in and then runs the ordinary trainer. A defect shows only in
an incarnation that goes on from a checkpoint, so that the undisturbed twin has none.
"""

from __future__ import annotations

from typing import Any

from training import __main__ as trainer
from training import checkpoint, loop, order, saving
from training.stores import MANIFEST


def right(words: list[str]) -> int:
    """No defect: what the others are compared with."""
    return trainer.main(words)


def no_recovery(words: list[str]) -> int:
    """A worker that does not start again."""

    def fails(_job: loop.Job, _parts: dict[str, Any]) -> None:
        raise RuntimeError("cannot go on")

    vars(saving)["restore"] = fails
    return trainer.main(words)


def stale_learning_rate(words: list[str]) -> int:
    """The schedule begins anew after a recovery."""
    exact = loop.set_learning_rate
    begun: dict[str, int] = {}

    def stale(job: loop.Job) -> float:
        first = begun.setdefault("step", job.step)
        now, job.step = job.step, job.step - first
        try:
            return exact(job)
        finally:
            job.step = now

    vars(loop)["set_learning_rate"] = stale
    return trainer.main(words)


def data_ahead(words: list[str]) -> int:
    """After a recovery the loader is one step ahead of the weights."""
    exact = order.global_batch_rows
    resumed: dict[str, bool] = {}

    def note(job: loop.Job, parts: dict[str, Any]) -> None:
        restore(job, parts)
        resumed["yes"] = True

    def ahead(rows: int, batch: int, seed: int, step: int, *, carry: bool) -> order.Rows:
        return exact(rows, batch, seed, step + bool(resumed), carry=carry)

    restore = saving.restore
    vars(saving)["restore"] = note
    vars(order)["global_batch_rows"] = ahead
    return trainer.main(words)


def samples_dropped(words: list[str]) -> int:
    """After a recovery the last sample of a rank's share is never learned from."""
    exact = order.share
    resumed: dict[str, bool] = {}

    def note(job: loop.Job, parts: dict[str, Any]) -> None:
        restore(job, parts)
        resumed["yes"] = True

    def dropped(rows: order.Rows, rank: int, size: int) -> order.Rows:
        mine = exact(rows, rank, size)
        return mine[:-1] if resumed and rank == 1 else mine

    restore = saving.restore
    vars(saving)["restore"] = note
    vars(order)["share"] = dropped
    return trainer.main(words)


def optimizer_forgotten(words: list[str]) -> int:
    """The optimizer's moments are not restored."""
    exact = saving.restore

    def forgets(job: loop.Job, parts: dict[str, Any]) -> None:
        fresh = job.optimizer.state_dict()
        exact(job, parts)
        job.optimizer.load_state_dict(fresh)

    vars(saving)["restore"] = forgets
    return trainer.main(words)


def checksum_off(words: list[str]) -> int:
    """A damaged checkpoint is loaded as if nothing were wrong with it."""
    read = checkpoint.read

    def trusting(store: Any, name: str, part: str) -> tuple[Any, str]:
        content, digest = read(store, name, part)
        if part != MANIFEST:
            about = checkpoint.unseal(read(store, name, MANIFEST)[0].getvalue(), name)[0]
            digest = about["files"][part]["sha256"]
        return content, digest

    vars(checkpoint)["read"] = trusting
    return trainer.main(words)
