"""Measures data loading: `pg training loading`, one process a rank.

Shards are streamed, a few fetched ahead, in an order drawn for each round, each rank taking its part; so the data may
be larger than memory, and the memory that it took is measured beside the rate. Where the address is a folder, the
shards are dropped from the system's cache before each round: what is read comes from the disk (a tmpfs has no other
place).
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proving_ground.training.checkpoints.stores import MANIFEST, Store, open_store
from proving_ground.training.config import ConfigError
from proving_ground.training.device.resident import resident_bytes
from proving_ground.training.exchange.communication import identity

if TYPE_CHECKING:
    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.measuring.programs import Loading

DISK_VARIABLE = "PROVING_GROUND_DISK"
"""Environment variable with the folder of the node's own disk, where the cluster gives one."""

MIB, KIB = 2**20, 2**10
NAME = "shards"
SEED = 1


def run(settings: Loading, events: EventWriter | NoEvents, tell: Callable[[str], None]) -> None:
    """Read this rank's shards, round after round, and tell rate and memory of each.

    Raises:
        ConfigError: an address that is none.
        OSError: the disk is full, the storage did not answer.
    """
    rank, size = identity()
    with place(settings.address, f"loading-{rank}" if size > 1 else "loading") as address:
        store = opened(address)
        shards, before = settings.data_mb // settings.shard_mb, resident_bytes()
        prepare(store, shards, settings.shard_mb * MIB)
        events.emit("ready", shards=shards)
        mine = list(range(rank, shards, size)) if settings.address else list(range(shards))
        where = {"address": kind(settings.address), "data_mb": shards * settings.shard_mb}
        for number in range(1, settings.rounds + 1):
            uncache(address)
            measured = read(store, mine, settings, number, before)
            for name, unit, value in measured:
                events.emit("measure", step=number, name=name, unit=unit, value=value, where=where)
            events.emit("step", step=number, samples=int(measured[0][2]))
            tell(f"round {number}: " + ", ".join(f"{name} {value:.1f} {unit}" for name, unit, value in measured[1:]))
        events.emit("end", step=settings.rounds, reason="done")


def kind(address: str) -> str:
    """What an address is, for figures: a scheme, or `disk`."""
    return address.partition("://")[0] if "://" in address else "disk"


class place:  # noqa: N801 - used as a function: `with place(address, name) as address`
    """The address asked for, or a new folder on the node's disk that is gone afterwards."""

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._folder = None if address else tempfile.TemporaryDirectory(prefix=name, dir=os.environ.get(DISK_VARIABLE))

    def __enter__(self) -> str:
        return self._folder.name if self._folder else self._address

    def __exit__(self, *_: object) -> None:
        if self._folder:
            self._folder.cleanup()


def opened(address: str) -> Store:
    """The store at an address.

    Raises:
        ConfigError: it is none.
    """
    try:
        return open_store(address)
    except ValueError as error:
        raise ConfigError(f"address = {address}: {error}") from None


def prepare(store: Store, shards: int, size: int) -> None:
    """Write the shards, unless they are there; two ranks that do it at once write the same."""
    with contextlib.suppress(FileNotFoundError), store.open(NAME, MANIFEST):
        return
    store.begin(NAME)
    for number in range(shards):
        with store.create(NAME, part(number)) as file:
            file.write(np.random.default_rng([SEED, number]).bytes(size))
    store.commit(NAME, b"{}", lambda: None)


def part(number: int) -> str:
    """A shard's name."""
    return f"{number:05}.bin"


def uncache(address: str) -> None:
    """Ask the system to forget a folder's files, where it can."""
    if "://" in address or not hasattr(os, "posix_fadvise"):
        return
    for path in Path(address).rglob("*.bin"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(
    store: Store, mine: Sequence[int], settings: Loading, number: int, before: int | None
) -> list[tuple[str, str, float]]:
    """One round: samples read, and what was measured: name, unit, value. `before`: bytes that the process had."""
    order = random.Random(f"{SEED} {number}").sample(mine, len(mine))  # noqa: S311 - an order that can be repeated
    most, waits, samples = 0, 0.0, 0
    begin = mark = time.monotonic()
    for batch in batches(store, order, settings):
        waits += time.monotonic() - mark
        samples += len(batch)
        most = max(most, resident_bytes() or 0)
        mark = time.monotonic()
    seconds = time.monotonic() - begin
    found = [
        ("load_samples", "samples", float(samples)),
        ("load_rate", "samples/s", samples / seconds),
        ("load_bandwidth", "MB/s", samples * settings.sample_kb * KIB / 1e6 / seconds),
        ("load_wait", "ms", 1000 * waits * settings.batch / max(1, samples)),
    ]
    return found + ([("load_memory", "MB", (most - before) / 1e6)] if before is not None else [])


def batches(store: Store, order: Sequence[int], settings: Loading) -> Iterator[np.ndarray]:
    """Arrays of (up to `batch`, bytes of a sample), shard after shard, at most `prefetch` + 1 shards in memory."""
    size = settings.sample_kb * KIB
    for content in ahead(lambda number: fetch(store, number), order, settings.prefetch):
        samples = np.frombuffer(content, dtype=np.uint8)[: len(content) // size * size].reshape(-1, size)
        for first in range(0, len(samples), settings.batch):
            yield samples[first : first + settings.batch].copy()


def fetch(store: Store, number: int) -> bytes:
    """One shard."""
    with store.open(NAME, part(number)) as file:
        return file.read()


def ahead(get: Callable[[int], bytes], order: Sequence[int], count: int) -> Iterator[bytes]:
    """The results of `get` in order, `count` of them fetched ahead by threads."""
    if count == 0:
        yield from map(get, order)
        return
    with ThreadPoolExecutor(count) as pool:
        flying = [pool.submit(get, number) for number in order[:count]]
        for number in range(len(order)):
            content = flying.pop(0).result()
            if number + count < len(order):
                flying.append(pool.submit(get, order[number + count]))
            yield content
            del content
