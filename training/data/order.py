"""Which sample is learned from when, and by which rank: a pure function of (seed, epoch, step).

Called by `training.loop`. Nothing is stored: the order of an epoch is a keyed permutation that is evaluated where it
is needed, so a data set of any size costs no memory, a resumed run goes on exactly where it stopped, and the global
batch of a step is the same for every number of ranks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Values = NDArray[np.uint64]

ROUNDS = 6
"""Feistel rounds: four make a pseudo-random permutation (Luby and Rackoff, 1988), two more for a weak mixer."""


def steps_in_epoch(rows: int, global_batch: int) -> int:
    """Optimizer steps in one pass over `rows` samples; the last one may be smaller."""
    return -(-rows // global_batch)


def epoch_of(step: int, rows: int, global_batch: int, *, carry: bool = False) -> int:
    """The epoch in which optimizer step `step` (from 0) begins."""
    return step * global_batch // rows if carry else step // steps_in_epoch(rows, global_batch)


def global_batch_rows(rows: int, global_batch: int, seed: int, step: int, *, carry: bool = False) -> Rows:
    """The samples of optimizer step `step`, of all ranks together; each comes once an epoch, in that epoch's order.

    An epoch's last batch is as small as what is left; or, with `carry`, filled up from the next epoch, so that all
    steps are of one size (a benchmark wants that).
    """
    if not carry:
        epoch = epoch_of(step, rows, global_batch)
        first = (step - epoch * steps_in_epoch(rows, global_batch)) * global_batch
        return permute(np.arange(first, min(first + global_batch, rows)), rows, seed, epoch)
    stream = np.arange(step * global_batch, (step + 1) * global_batch)
    epochs = stream // rows
    return np.concatenate([permute(stream[epochs == one] % rows, rows, seed, int(one)) for one in np.unique(epochs)])


def share(batch: Rows, rank: int, world_size: int) -> Rows:
    """The part of a batch that one rank learns from; parts are disjoint, cover it, differ by at most one sample."""
    return batch[len(batch) * rank // world_size : len(batch) * (rank + 1) // world_size]


def shards_of(rank: int, world_size: int, shards: int) -> range:
    """The logical shards that one rank computes; every shard is one rank's."""
    return range(shards * rank // world_size, shards * (rank + 1) // world_size)


def passes(samples: int, accumulate: int, micro_batch: int) -> int:
    """Micro-batches of a rank that has so many samples of a step: `accumulate` or more, of `micro_batch` at most."""
    return max(1, min(samples, max(accumulate, -(-samples // micro_batch) if micro_batch else 1)))


def at_once(samples: int, accumulate: int, micro_batch: int) -> int:
    """Samples of the largest of these micro-batches."""
    return -(-samples // passes(samples, accumulate, micro_batch))


def micro_batches(batch: Rows, count: int) -> list[Rows]:
    """A rank's part cut into at most `count` non-empty pieces of nearly equal size; none for an empty part."""
    return [piece for piece in np.array_split(batch, count) if len(piece)]


def permute(positions: Rows, rows: int, seed: int, epoch: int) -> Rows:
    """Where the keyed permutation of range(`rows`) sends `positions`.

    A Feistel network over a rectangle of width × height just large enough; the few values that fall outside the range
    are sent on until they are inside ("cycle walking", Black and Rogaway, 2002).
    """
    width = math.isqrt(max(1, rows - 1)) + 1
    sides = np.uint64(width), np.uint64(-(-rows // width))
    keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    values = _feistel(positions.astype(np.uint64), sides, keys)
    while (outside := values >= np.uint64(rows)).any():
        values[outside] = _feistel(values[outside], sides, keys)
    return values.astype(np.int64)


def _feistel(values: Values, sides: tuple[np.uint64, np.uint64], keys: Values) -> Values:
    width, height = sides
    row, column = values // width, values % width
    for number, key in enumerate(keys):
        if number % 2:
            row = (row + mix(column ^ key) % height) % height
        else:
            column = (column + mix(row ^ key) % width) % width
    return row * width + column


def mix(values: Values) -> Values:
    """The finaliser of SplitMix64: every input bit reaches every output bit; arithmetic wraps at 64 bits by intent."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
