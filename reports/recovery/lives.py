"""Which processes ran on which node, and when, by what they and the harness recorded. Called by the checks.

The harness records what it started itself (`process_start`, with the pid that it sees); a launcher and a worker say
their own pid, as their node sees it, when they begin (`launch`, `start`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

from proving_ground.reports.history import number
from proving_ground.reports.recovery.jobs import Job, Record, moment

STARTED, LAUNCHED, WORKING = "process_start", "launch", "start"
EXITS = ("process_exit", "neighbour_exit")  # of the job's nodes, and of the one where they meet

Begun = list[tuple[float, int]]
"""(since when, pid) of the lives of one process, the oldest first."""


class Lives:
    """The lives of a job's processes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun: dict[tuple[str, str], dict[str, Begun]] = {}
        for record in job.of(STARTED, LAUNCHED, WORKING):
            if isinstance(record.get("pid"), int):
                node, event, source = begun_by(record)
                lives = self._begun.setdefault((node, event), {}).setdefault(source, [])
                lives.append((moment(record), int(record["pid"])))

    def newest(self, node: str, event: str, t: float) -> dict[str, tuple[float, int]]:
        """Source → the life that was the newest at a moment, of those that such an event began on a node."""
        sources = self._begun.get((node, event), {})
        found = {source: (bisect_right(lives, (t, math.inf)), lives) for source, lives in sources.items()}
        return {source: lives[at - 1] for source, (at, lives) in found.items() if at}

    def pids(self, node: str, event: str, t: float) -> set[int]:
        """The pids of these."""
        return {pid for _, pid in self.newest(node, event, t).values()}

    @cached_property
    def ended(self) -> dict[object, float]:
        """Pid, as the harness sees it, of what it had started → when its node saw it end."""
        return {it.get("pid"): number(it.get("ended_t", it["t"])) for it in self._job.of(*EXITS)}

    @cached_property
    def odd(self) -> Sequence[tuple[float, str]]:
        """(when, why) of ends that no start answers for, and of starts that follow no end."""
        return list(self._odd())

    def _odd(self) -> Iterator[tuple[float, str]]:
        alive: dict[str, object] = {}
        for record in self._job.of(STARTED, *EXITS):
            name, pid = f"{record.get('node')}.{record.get('slot')}", record.get("pid")
            if record["event"] == STARTED:
                if name in alive:
                    yield moment(record), f"{name} was started again, and nobody recorded its end"
                alive[name] = pid
            elif alive.pop(name, None) != pid:
                yield moment(record), f"{name} pid {pid} ended, and was not running"


def begun_by(record: Record) -> tuple[str, str, str]:
    """(node, event, source) of a record with which a process begins."""
    event, source = str(record["event"]), str(record["source"])
    if event == STARTED:
        node = str(record.get("node"))
        return node, event, f"{node}.{record.get('slot')}"
    return source.partition(".")[0], event, source
