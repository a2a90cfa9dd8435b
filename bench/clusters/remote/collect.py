"""What a node's processes wrote, put into the run's files as it arrives. Called by `remote.node`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from proving_ground.bench.agent.files import inside
from proving_ground.bench.clusters.remote.clock import NodeClock


class Collector:
    """The files of one node's present incarnation: how much of each has arrived, and where it goes."""

    def __init__(self, run: Path, clock: NodeClock, gap: Callable[[str, int, int], None]) -> None:
        """`gap` is told of bytes that will never come: (file, first, up to)."""
        self._run, self._clock, self._gap = run, clock, gap
        self.arrived: dict[str, int] = {}
        self._half: dict[str, bytes] = {}

    def take(self, name: str, offset: int, more: bytes) -> None:
        """Write what is new of a file; what has arrived before is left out."""
        have = self.arrived.get(name, 0)
        if offset > have:
            self._gap(name, have, offset)
            have = offset
        new = more[have - offset :]
        self.arrived[name] = have + len(new)
        if name.endswith(".jsonl"):
            new = self._lines(name, new)
        self._append(name, new)

    def _lines(self, name: str, new: bytes) -> bytes:
        """Whole lines in harness time; a half one waits for its end."""
        *whole, self._half[name] = (self._half.get(name, b"") + new).split(b"\n")
        return b"".join(self._clock.shifted(line + b"\n") for line in whole)

    def _append(self, name: str, content: bytes) -> None:
        if content:
            with inside(self._run, name).open("ab") as file:
                file.write(content)

    def drop(self, names: Iterable[str]) -> None:
        """These have arrived whole, and are gone from the node."""
        for name in names:
            self._append(name, self._half.pop(name, b""))
            self.arrived.pop(name, None)

    def by_trial(self) -> dict[str, list[str]]:
        """Trial → its files that have begun to arrive."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.arrived):
            found.setdefault(trial_of(name), []).append(name)
        return found

    def over(self) -> None:
        """No more will come of this incarnation: half lines stand as they are."""
        for name, half in self._half.items():
            self._append(name, half)
        self._half.clear()
        self.arrived.clear()


def trial_of(name: str) -> str:
    """The trial that a file is of, by its name: `events/t003.n1.0.jsonl`."""
    return name.rpartition("/")[2].partition(".")[0]
