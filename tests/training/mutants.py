"""Exact mode made wrong on purpose, in a rank's own process: by `tests.training.test_exact` through `ranks.start`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

POISON = ("nan", "inf", "1e30")
"""What a gradient is multiplied by."""


def float_sums() -> None:
    """Gradients of shards and ranks are added as floats."""
    from training import exact  # noqa: PLC0415 - in the rank's process

    def add(values: Tensor, sums: Tensor, most: float) -> None:
        del most
        sums[:-1] += values * exact.SCALE

    def floating(bucket: Any, *arguments: Any) -> None:
        made(bucket, *arguments)
        bucket.sums = bucket.sums.float()

    made: Callable[..., None] = exact.Bucket.__init__
    exact.Bucket.__init__ = floating  # type: ignore[method-assign, assignment]
    exact.add = add
    exact.ExactTold.add = lambda *_: None  # type: ignore[method-assign]


def float_shards() -> None:
    """The shards of a rank are added as floats, and only their sum is cast."""
    from training.exact import ExactExchange  # noqa: PLC0415 - in the rank's process

    take = ExactExchange._take

    def last_only(self: ExactExchange, bucket: Any) -> None:
        bucket.waiting = len(bucket.parameters)
        if self._last:
            take(self, bucket)

    ExactExchange._take = last_only  # type: ignore[method-assign]


def dropout_by_rank() -> None:
    """Random numbers follow from the rank."""
    from training import exact  # noqa: PLC0415 - in the rank's process

    seed_all, rank = exact.seed_all, int(os.environ["RANK"])
    exact.seed_all = lambda *numbers: seed_all(*numbers[:2], rank)


def dropout_runs_on() -> None:
    """Random numbers go on from shard to shard."""
    from training import exact  # noqa: PLC0415 - in the rank's process

    exact.seed_all = lambda *_: None


def scale_of_its_own() -> None:
    """One rank takes another scale than the others."""
    from training import exact  # noqa: PLC0415 - in the rank's process

    exact.SCALE *= 2 ** (int(os.environ["RANK"]) == 1)


def scale_by_world() -> None:
    """The scale follows from the number of ranks: agreed, but rounding differs between sizes."""
    from training import exact  # noqa: PLC0415 - in the rank's process

    exact.SCALE = 2.0**20 / int(os.environ["WORLD_SIZE"])


def poisoned(factor: str) -> None:
    """Rank 1's third step: the loss is fine, the gradient is not."""
    if os.environ["RANK"] != "1":
        return
    from training.models import Digits  # noqa: PLC0415 - in the rank's process

    loss, calls = Digits.loss, [0]

    def bad(self: Digits, model: Any, batch: Any) -> Tensor:
        value = loss(self, model, batch)
        calls[0] += 1
        if calls[0] == 1 + 2 * 3 + 1:  # the warm-up, two steps of three shards (of 8 on 3 ranks), the next
            value.register_hook(lambda gradient: gradient * float(factor))  # type: ignore[no-untyped-call]
        return value

    Digits.loss = bad  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (float_sums, float_shards, dropout_by_rank, dropout_runs_on, scale_of_its_own, scale_by_world)
}


def become(name: str) -> None:
    """Make this process wrong."""
    if name in MUTANTS:
        MUTANTS[name]()
    elif name in POISON:
        poisoned(name)
