"""What all takers have in common: each takes in the events of one kind of directory. Used by `monitoring.exporter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proving_ground.bench.rundir import Record
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.clocks import Clocks


class Taker:
    """Takes events in, one by one, and keeps the board up to date."""

    def __init__(self, board: Board, run: str, clock: Mapping[str, float] | None) -> None:
        self._board = board
        self._run = run
        self._clocks = Clocks.of(clock)
        self.refused = 0  # events with fields of the wrong type
        self.over = False  # nothing follows
        self.lock = ""  # file that whoever writes to the directory holds; empty: none
        self.bare = False  # trainers without the harness: nobody says that a job is over, but its own workers
        self.jobs: dict[str, Any] = {}  # in progress

    def take(self, record: Record) -> None:
        """Take one event in; fields of the wrong type are passed over, as if the event were not there."""
        record = self._clocks.placed(record)
        self._board.add("exporter_events_total", (self._run,))
        self._at("exporter_last_event_timestamp_seconds", (self._run,), record)
        try:
            self.react(record)
        except (TypeError, ValueError, KeyError, ArithmeticError):
            self.refused += 1

    def react(self, record: Record) -> None:
        """What an event means.

        Raises:
            TypeError, ValueError, KeyError, ArithmeticError: its fields are not as they should be.
        """
        raise NotImplementedError

    def sealed(self) -> None:
        """The directory is sealed: whoever wrote there is done."""

    def forget(self, trial: str) -> None:
        """A job of which nothing was heard for too long: it was cut off, and nobody will say so."""

    def _at(self, name: str, labels: tuple[str, ...], record: Record) -> None:
        """When an event was, in Unix time, where that is known."""
        if (unix := self._clocks.unix(record)) is not None:
            self._board.set(name, labels, unix)
