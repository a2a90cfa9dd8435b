"""Where the weights of a job come from, generation by generation, for the replay of it. Called by `bench.drive`.

A replay (`training.judging.replay`) makes the same steps in worlds of the same sizes, undisturbed. What is written for
it says only which sizes, and whose state each rank went on from. `reports.recovery` finds the lineage again by itself,
and compares only steps that both made in a world of one size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.bench.protocols import TrialFiles
from proving_ground.bench.rundir import read_events
from proving_ground.bench.spec import Trial

Record = Mapping[str, Any]
Made = tuple[int, int]
"""(generation, step)."""


class LineageError(Exception):
    """A job that cannot be made again; the message says why."""


@dataclass(frozen=True)
class Stretch:
    """Steps `first` to `last` of a generation; `origin` says of each rank whose state before it goes on from."""

    generation: int
    first: int
    last: int
    origin: tuple[int, ...]


@dataclass
class Seen:
    """What the workers of a job recorded, by generation."""

    ranks: dict[int, dict[str, int]] = field(default_factory=dict)  # generation → worker → its rank
    worlds: dict[int, int] = field(default_factory=dict)
    resumes: dict[int, dict[str, Record]] = field(default_factory=dict)  # generation → worker → what it went on from
    made: dict[Made, set[str]] = field(default_factory=dict)
    shares: dict[Made, set[str]] = field(default_factory=dict)  # a share counts once another has recorded the step

    def generations(self, step: int) -> list[int]:
        """Those that made a step."""
        return sorted(generation for generation, made in self.made if made == step)

    def first(self, generation: int) -> int:
        """The first step of a generation; 0: it made none."""
        return min((step for of, step in self.made if of == generation), default=0)

    def newest(self) -> Made:
        """The last step that a whole generation made."""
        whole = [it for it, by in self.made.items() if len(by | self.shares.get(it, set())) >= self.worlds[it[0]]]
        if not whole:
            raise LineageError("no step of the whole job was recorded")
        return max(whole)


def seen(workers: Mapping[str, Iterable[Record]]) -> Seen:
    """Sort the records of each worker by generation; a `resume` may come before the `ready` that names its own."""
    found = Seen()
    for worker, records in workers.items():
        generation, waiting = 0, None
        for record in records:
            event = record["event"]
            if event == "start":
                generation, waiting = 0, None
            elif event == "resume":
                waiting = record
            elif event == "ready":
                generation = int(record["generation"])
                found.ranks.setdefault(generation, {})[worker] = int(record["rank"])
                found.worlds[generation] = int(record["world_size"])
                if waiting:
                    found.resumes.setdefault(generation, {})[worker], waiting = waiting, None
            elif event in ("step", "share"):
                known = found.made if event == "step" else found.shares
                at = int(record.get("generation", generation)), int(record["step"])
                known.setdefault(at, set()).add(worker)
    return found


def stretches(found: Seen, workers: Sequence[str]) -> list[Stretch]:
    """The stretches of the newest step's lineage, the oldest first; `workers` are all that there can be, by number.

    Raises:
        LineageError: something that it takes was not recorded.
    """
    generation, last = found.newest()
    chain: list[Stretch] = []
    while True:
        parent, since = went_on_from(found, generation)
        chain.append(Stretch(generation, since + 1, last, origins(found, generation, parent, workers)))
        if not parent:
            return chain[::-1]
        if parent >= generation:
            raise LineageError(f"generation {generation} went on from step {since}, and nobody recorded who made it")
        generation, last = parent, since


def went_on_from(found: Seen, generation: int) -> Made:
    """(generation, step) that a generation went on from; (0, 0): it began anew."""
    resumed = found.resumes.get(generation, {})
    ranks = found.ranks[generation]
    if resumed:
        record = resumed[min(resumed, key=lambda worker: ranks[worker])]
        since, named = int(record["step"]), record.get("of_generation")
    else:
        since, named = found.first(generation) - 1, None
    if since <= 0:
        return 0, 0
    earlier = [it for it in found.generations(since) if it < generation]
    return (int(named) if named is not None else max(earlier, default=generation)), since


def origins(found: Seen, generation: int, parent: int, workers: Sequence[str]) -> tuple[int, ...]:
    """Of each rank of a generation: the rank, in the world before, whose state it went on from.

    Raises:
        LineageError: a rank was not recorded.
    """
    by_rank = {rank: worker for worker, rank in found.ranks[generation].items()}
    size = found.worlds[generation]
    if sorted(by_rank) != list(range(size)):
        raise LineageError(f"generation {generation}: not every rank of {size} recorded that it was ready")
    if not parent:
        return tuple(range(size))
    return tuple(origin(found, generation, parent, by_rank[rank], workers) for rank in range(size))


def origin(found: Seen, generation: int, parent: int, worker: str, workers: Sequence[str]) -> int:
    """One worker's, in the world before: its own rank, its giver's, or that of a checkpoint's part."""
    before = found.ranks.get(parent, {})
    since = range(generation, parent, -1)  # a membership that made no step may have been between
    record = next((told[worker] for it in since if worker in (told := found.resumes.get(it, {}))), None)
    if record is None and worker in before:
        return before[worker]
    if record is None:
        raise LineageError(f"{worker} has a part in generation {generation}, and did not record what it went on from")
    peer = record.get("peer")
    if peer is not None:
        giver = workers[int(peer)]
        return origin(found, generation, parent, giver, workers) if giver != worker else 0
    own = found.ranks[generation][worker]
    return own if own < found.worlds[parent] else 0


def write(trial: Trial, replayed: Trial, files: TrialFiles, nodes: Sequence[str]) -> list[Stretch]:
    """Find the lineage of a job and write it where its replay reads it; empty, and no file: its size never changed.

    Raises:
        LineageError: it cannot be made again.
    """
    workers = [f"{node}.{slot}" for node in nodes for slot in range(replayed.ranks_per_node)]
    recorded = {
        worker: read_events(file) for worker in workers if (file := files.event_file(replayed.id, worker)).exists()
    }
    try:
        found = stretches(seen(recorded), workers)
    except (KeyError, TypeError, ValueError) as error:
        raise LineageError(f"a record of it cannot be read: {type(error).__name__}: {error}") from None
    if {len(it.origin) for it in found} == {replayed.ranks}:
        return []
    about = {"seeded": trial.seeded, "stretches": [asdict(it) for it in found]}
    file_of(trial, files).write_text(json.dumps(about))
    return found


def file_of(trial: Trial, files: TrialFiles) -> Path:
    """Where a replay finds its lineage."""
    return files.scratch / f"{trial.id}.lineage.json"
