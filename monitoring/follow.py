"""Follows a run's event files while they are written; half lines wait, and a file may be cut or made again.

Called by `monitoring.exporter` (and whoever else wants to see a run live).
"""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from proving_ground.bench.rundir import HARNESS, Record, RunDir, of_harness
from proving_ground.training import events
from proving_ground.training.events import check_event

CHUNK = 1 << 18  # bytes read at a time
LINE_MAX = 1 << 20  # a line that is longer is none
LEDGER = "trials.jsonl"  # of a search: beside its events


@dataclass
class EventFile:
    """One event file, held open, so that what was written before it was moved aside is read too."""

    path: Path
    about: Record
    refused: int = 0  # whole lines that were no events
    _file: BinaryIO | None = None
    _half: bytes = b""
    _skip: bool = False  # in the middle of a line that is too long

    def new(self) -> Iterator[Record]:
        """The events that were appended since the last call, each with `source` and `trial`."""
        while (file := self._open()) is not None:
            for line in self._lines(file):
                if (record := self._event(line)) is not None:
                    yield record
            if not self._replaced(file):
                return
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file:
            self._file.close()
        self._file, self._half, self._skip = None, b"", False

    def _open(self) -> BinaryIO | None:
        if self._file is None:
            try:
                self._file = self.path.open("rb", buffering=0)
            except OSError:  # not there (yet), or not for us
                return None
        elif os.fstat(self._file.fileno()).st_size < self._file.tell():  # cut: what is there now is new
            self._file.seek(0)
            self._half, self._skip = b"", False
        return self._file

    def _replaced(self, file: BinaryIO) -> bool:
        """Whether there is another file of this name now."""
        try:
            return self.path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except OSError:
            return False

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        """The whole lines up to the present end; the half one waits."""
        while chunk := file.read(CHUNK):
            *lines, self._half = (self._half + chunk).split(b"\n")
            if lines and self._skip:
                lines.pop(0)
                self._skip = False
            yield from lines
            if len(self._half) > LINE_MAX:
                self.refused += not self._skip
                self._half, self._skip = b"", True

    def _event(self, line: bytes) -> Record | None:
        """The event on a line; None, and counted, if it is none."""
        try:
            record = parsed(line)
            if self.about["source"] != HARNESS:
                return {**self.about, **check_event(record)}
            return {**self.about, **of_harness(record), "event": str(record["event"])}
        except (ValueError, KeyError, TypeError, AttributeError):
            self.refused += 1
            return None


@dataclass
class Follower:
    """All event files of a run, also those that are made later."""

    run: RunDir
    files: dict[str, EventFile] = field(default_factory=dict)

    def new(self) -> Iterator[Record]:
        """What was appended to any file since the last call, in the order of `t` as far as the files are."""
        self.found()
        return heapq.merge(*(file.new() for file in self.files.values()), key=moment)

    def found(self) -> None:
        """Take up the files that were made since the last call."""
        for path in [*sorted(self.run.events.glob("*.jsonl")), *self.run.path.glob(LEDGER)]:
            if path.name not in self.files:
                self.files[path.name] = EventFile(path, about(path))

    def silent_s(self, trial: str | None = None) -> float:
        """Seconds since an event file of the run, or of one job, was last written to; 0 where there is none."""
        newest = 0.0
        for file in self.files.values():
            if trial in (None, file.about.get("trial")):
                with contextlib.suppress(OSError):  # moved aside
                    newest = max(newest, file.path.stat().st_mtime)
        return time.time() - newest if newest else 0.0

    @property
    def refused(self) -> int:
        """Lines that were no events."""
        return sum(file.refused for file in self.files.values())

    def close(self) -> None:
        """Let go of all files."""
        for file in self.files.values():
            file.close()
        self.files.clear()


def parsed(line: bytes) -> dict[str, Any]:
    """The object on a line; what strict JSON refuses (NaN, 1e999) is read as text (`training.events.parsed`).

    Raises:
        ValueError: no JSON.
    """
    try:
        record: dict[str, Any] = orjson.loads(line)
    except ValueError:
        record = events.parsed(line)
    return record


def about(path: Path) -> Record:
    """Whose events a file has, by its name (`bench.rundir`)."""
    trial, _, source = path.stem.partition(".")
    return {"source": source, "trial": trial} if source else {"source": HARNESS}


def moment(record: Record) -> float:
    """When it was, on the run's clock."""
    return float(record["t"])
