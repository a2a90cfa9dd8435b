"""A job as its event files show it while it runs. Called by `bench.drive` for a trial with faults.

Schedules and nemeses look at it: who has which rank, how far the job is, whether all take part, what was told.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench.jobstate import STEPS_KEPT, JobState, Worker
from proving_ground.bench.spec import Trial
from proving_ground.bench.tail import appended
from proving_ground.training.events import parsed, sensible

Record = dict[str, Any]
FEW = 5  # steps, from which on their median says how long one takes


@dataclass
class JobView:
    """What schedules and nemeses see of a trial's job (`bench.jobstate`); `refresh` takes in what was told since."""

    trial: Trial
    nodes: Sequence[str]  # that train
    coordinator: str | None
    folder: Path
    control: Path | None
    checkpoints: str | None  # their folder on the volume
    now: Callable[[], float]
    begin_t: float = 0.0
    marks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # node → its labels and zone
    state: JobState = field(init=False)
    told: list[Record] = field(default_factory=list)  # since the refresh before
    _offsets: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = JobState({"command": self.trial.command})

    def refresh(self) -> None:
        """Read what was appended to the event files."""
        self.told = list(self._new())
        for record in self.told:
            self.state.take(record)

    def _new(self) -> Iterator[Record]:
        for file in sorted(self.folder.glob(f"{self.trial.id}.*.jsonl")):
            lines, self._offsets[file] = appended(file, self._offsets.get(file, 0))
            for line in lines:
                try:
                    record = parsed(line)
                    if record["event"] and sensible(record["t"]) and sensible(record.get("step", 0)):
                        yield {**record, "source": file.name.split(".", 1)[1].removesuffix(".jsonl")}
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # half a line of a killed process, told when the files are merged

    @property
    def workers(self) -> dict[str, Worker]:
        """The trainers, by the names of their event files."""
        return self.state.workers

    @property
    def elapsed_s(self) -> float:
        """Seconds since the trial's processes were started."""
        return self.now() - self.begin_t

    @property
    def step(self) -> int:
        """The newest step that any rank has made."""
        return max((worker.step for worker in self.workers.values()), default=0)

    @property
    def generation(self) -> int:
        """How often the ranks have met, as far as told."""
        return self.state.generation

    def steady(self, steps: int, since_t: float, beyond: int = 0) -> bool:
        """Whether all ranks, at full strength, have made at least so many steps together since a moment.

        And whether they are beyond a step: what was lost of the work before is made up.
        """
        return not self.unsteady(steps, since_t, beyond)

    def unsteady(self, steps: int, since_t: float, beyond: int = 0) -> str:
        """Why it is not steady, in words; empty when it is."""
        enough, whole = min(steps, STEPS_KEPT), self.trial.ranks
        begun = sum(it.world_size > 0 for it in self.workers.values())
        if begun < whole:
            return f"{begun} of {whole} trainers have told that they started"
        full = self._full()
        if len(full) < whole:
            return f"{len(full)} of {whole} ranks have met at full strength"
        for it in full:
            who = it.node if self.trial.ranks_per_node == 1 else f"rank {it.rank} on {it.node}"
            if (made := sum(t > since_t for t in newest(it.times, enough))) < enough:
                return f"{who} has told {made} of {enough} steps"
            if it.step <= beyond:
                return f"{who} makes up for lost work: step {it.step} of {beyond + 1}"
        return ""

    def step_s(self, steps: int, since_t: float = -math.inf) -> float:
        """Seconds of a step at full strength: the median of up to the last so many since a moment, of the slowest rank.

        NaN where a rank has made fewer than `FEW`, or one is missing.
        """
        times = [[t for t in newest(it.times, steps + 1) if t > since_t] for it in self._full()]
        if len(times) < self.trial.ranks or any(len(it) <= FEW for it in times):
            return math.nan
        return max(median(after - before for before, after in pairwise(it)) for it in times)

    def _full(self) -> list[Worker]:
        """Those of the newest generation, where that is at full strength."""
        return [it for it in self.state.members.values() if it.world_size == self.trial.ranks]

    def rank0(self) -> str | None:
        """The node with rank 0, as far as told."""
        return self.workers[name].node if (name := self.writer()) else None

    def writer(self) -> str | None:
        """The worker with rank 0, `n2.1`, as far as told."""
        return next((name for name, it in self.state.members.items() if it.rank == 0), None)

    def joiners(self) -> tuple[str, ...]:
        """Nodes with a trainer that has started and has not met the others yet, while these are a generation."""
        members = self.state.members
        waiting = {it.node for it in self.workers.values() if it.pid is not None and not it.met} if members else set()
        return tuple(name for name in self.nodes if name in waiting)

    def ranks_of(self, nodes: Sequence[str]) -> list[int]:
        """The ranks on some nodes."""
        return [it.rank for it in self.workers.values() if it.node in nodes and it.rank is not None]

    def pids(self) -> dict[str, dict[int, str]]:
        """Node → its workers, in their order there: pid, as the node sees it, → name, `n2.1`."""
        found: dict[str, dict[int, str]] = {}
        for name, worker in sorted(self.workers.items(), key=lambda it: (len(it[0]), it[0])):
            if worker.pid is not None:
                found.setdefault(worker.node, {})[worker.pid] = name
        return found


def newest(times: deque[float], count: int) -> list[float]:
    """The last so many, in their order, without a look at all that are kept."""
    return list(islice(reversed(times), count))[::-1]
