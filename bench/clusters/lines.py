"""Printed lines → events, for a trainer of the user's own that writes no event file. Called by `bench.clusters.agent`.

Runs in a small process between the trainer and its log. Each line goes to the log as it is; one that a pattern of the
suite finds something in also becomes an event at the moment it was read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from training.events import EVENTS, EventError, EventWriter, check_event

Emit = Callable[..., None]


class LineEvents:
    """Turns the lines of one process into events.

    A field is a named group of the pattern: `step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)`. Required fields that the
    line does not have are filled in where they are known: `rank`, `world_size` and `samples` from the environment, the
    last `step`, `pid`, `wall_s`. A line that still lacks one is no event.
    """

    def __init__(self, pattern: Mapping[str, str], env: Mapping[str, str], pid: int, emit: Emit) -> None:
        self._patterns = {event: re.compile(regex) for event, regex in pattern.items()}
        self._known: dict[str, Any] = {"pid": pid}
        for field, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE"), ("samples", "PROVING_GROUND_BATCH")):
            if env.get(variable, "").isdecimal():
                self._known[field] = int(env[variable])
        self._emit = emit

    def start(self) -> None:
        """The process has begun; a pattern for `start` would say so itself."""
        if "start" not in self._patterns:
            self._offer("start", {})

    def line(self, text: str) -> None:
        """One printed line, without its end."""
        for event, regex in self._patterns.items():
            if found := regex.search(text):
                self._offer(
                    event, {name: number(value) for name, value in found.groupdict().items() if value is not None}
                )

    def _offer(self, event: str, fields: dict[str, Any]) -> None:
        known = self._known | {"wall_s": time.time()}
        record = {name: known[name] for name in EVENTS.get(event, ()) if name in known} | fields
        try:
            check_event({"t": 0, "event": event, **record})
        except EventError:
            return
        if "step" in record:
            self._known["step"] = record["step"]
        self._emit(event, **record)


def number(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text.replace(",", "") if kind is int else text)
        except ValueError:
            continue
    return text


def pump(source: int, log: int, events: Path, line_events: Callable[[Emit], LineEvents]) -> None:
    """Copy `source` to `log` until its end, turning lines into events on the way."""
    writer = EventWriter(events)
    lines = line_events(writer.emit)
    lines.start()
    rest = b""
    while chunk := os.read(source, 65536):
        os.write(log, chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.line(line.decode(errors="replace").rstrip("\r"))
    if rest:
        lines.line(rest.decode(errors="replace"))
    writer.close()
