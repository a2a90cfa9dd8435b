"""The trainer's event file: one JSON object a line, appended by one process.

This is the whole contract between a trainer and the harness (see `training/README.md`, "Events"). The trainer
writes through `EventWriter`; `bench.rundir` reads. Any other program may append the same lines.
Standard library only, because the harness imports it without torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import string
import time
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "PROVING_GROUND_EVENTS"
"""Environment variable with the path of the file that this process appends its events to."""

EVENTS_OF_LAUNCHER = "PROVING_GROUND_LAUNCH_EVENTS"
"""The same for the events of a node's launcher (`training.recovery.launch`)."""

LOG_VARIABLE = "PROVING_GROUND_LOG"
"""With `_1`, `_2` … behind it: where the further workers of a launcher print. Theirs of EVENTS_VARIABLE are alike."""

MISTAKE = 2
"""Exit status of a process that was told what cannot be, such as to join a job of another configuration."""

GAVE_UP = 3
"""Exit status of a launcher that stopped the job for good."""

LAUNCHER_EVENTS = (
    "launch", "membership", "workers_start", "detected", "coordinator_found", "workers_stopped", "backoff", "gave_up",
    "asked_to_leave",
)  # fmt: skip
"""What the launcher of a node tells in a file of its own; `chaos/README.md` explains them."""

EVENTS: dict[str, tuple[str, ...]] = {
    "start": ("rank", "world_size", "pid", "wall_s"),
    "ready": (),
    "step": ("step", "samples"),
    "share": ("step", "rows"),
    "eval": ("step", "split", "metric", "value"),
    "checkpoint": ("step", "path", "bytes", "block_s"),
    "resume": ("step", "path"),
    "collective": ("op", "bytes", "seconds"),
    "measure": ("name", "unit", "value"),
    "quarantine": ("path", "why"),
    "fingerprint": ("step", "parameters_sha256", "optimizer_sha256", "random_sha256", "lr"),
    "phase": ("phase", "step"),
    "memory": ("rung", "micro_batch"),
    "error": ("message",),
    "end": ("step",),
    **dict.fromkeys(LAUNCHER_EVENTS, ()),
}
"""Event name → fields it must have beside `t` and `event`; more fields are welcome."""

STEP_PARTS = ("data_s", "forward_s", "backward_s", "comm_s", "optimizer_s", "checkpoint_s")
"""Optional fields of a `step`: seconds spent in each part, every one timed on its own. `comm_s` is the exposed part
only: from this rank's last local gradient to the end of the last all-reduce."""

STEP_MARKS = ("begin_t", "data_t", "forward_t", "backward_t", "comm_t", "optimizer_t")
"""Optional fields of a `step`: the moments (same clock as `t`) at which the step began and each part ended."""


DIGITS = 300
ODD = re.compile(r"NaN|Infinity|\d[eE]\+?\d{3}|\d{301}")
LARGEST = 1e15
"""Of a moment and a step."""


def is_moment(name: str, value: object) -> bool:
    """Whether a field is a moment on the clock of who wrote it: `t`, or a name that ends in `_t`."""
    return (name == "t" or name.endswith("_t")) and sensible(value)


class EventError(ValueError):
    """An event that does not follow the contract; the message says what is missing."""


def ends_in_half_a_line(path: Path) -> bool:
    """Whether a killed process left one; a pipe or a device has none."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class EventWriter:
    """Appends events to one file; each event is one `write`, so a killed process leaves at most one half line.

    Whoever comes after it begins a line of its own.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if ends_in_half_a_line(Path(path)):
            os.write(self._file, b"\n")

    def emit(self, event: str, **fields: object) -> None:
        """Append one event at the present moment of the monotonic clock (seconds)."""
        record = {"t": time.monotonic(), "event": event, **fields}
        os.write(self._file, (json.dumps(record, separators=(",", ":")) + "\n").encode())

    def close(self) -> None:
        """Close the file; no event can follow."""
        os.close(self._file)


class NoEvents:
    """Stands in for `EventWriter` where nobody listens (a trainer started by hand)."""

    def emit(self, event: str, **fields: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def open_events() -> EventWriter | NoEvents:
    """The writer for the file named by PROVING_GROUND_EVENTS, whose folder is made; a silent one when it is not set."""
    path = told_path()
    if path is None:
        return NoEvents()
    path.parent.mkdir(parents=True, exist_ok=True)
    return EventWriter(path)


def take_own_files() -> None:
    """Of a launcher's further workers: each writes events and output to files of its own, where it was told them."""
    slot = os.environ.get("LOCAL_RANK")
    if file := os.environ.get(f"{EVENTS_VARIABLE}_{slot}"):
        os.environ[EVENTS_VARIABLE] = file
    if file := os.environ.get(f"{LOG_VARIABLE}_{slot}"):
        log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)


def told_path() -> Path | None:
    """What PROVING_GROUND_EVENTS says; it may name $VARIABLES: `$LOCAL_RANK` gives each process its own file."""
    told = os.environ.get(EVENTS_VARIABLE)
    return Path(string.Template(told).safe_substitute(os.environ)) if told else None


def parsed(line: bytes | str) -> Any:  # noqa: ANN401 - JSON
    """The value on a line of an event file.

    What strict JSON and arithmetic cannot have stays as the text that it was: NaN, Infinity, 1e999, a number of more
    than 300 digits.

    Raises:
        ValueError: no JSON, or nested too deeply.
    """
    text = line if isinstance(line, str) else line.decode(errors="replace")
    try:
        if ODD.search(text):
            return json.loads(text, parse_constant=str, parse_float=finite, parse_int=finite)
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def finite(text: str) -> int | float | str:
    """The number that a text is, if it is one that can be computed with; else the text."""
    if len(text) > DIGITS or not math.isfinite(float(text)):
        return text
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def check_event(record: object) -> dict[str, Any]:
    """Return the record if it follows the contract.

    Raises:
        EventError: not an object, no numeric `t`, an unknown name, or a required field missing.
    """
    if not isinstance(record, dict):
        raise EventError(f"an event is a JSON object, not {type(record).__name__}")
    t, name = record.get("t"), record.get("event")
    if not sensible(t):
        raise EventError(f"event {name!r}: `t` must be a number of seconds, not {str(t)[:40]!r}")
    if name not in EVENTS:
        raise EventError(f"unknown event {name!r}; allowed: {', '.join(EVENTS)}")
    missing = [field for field in EVENTS[name] if field not in record]
    if missing:
        raise EventError(f"event {name!r} lacks {', '.join(missing)}")
    if "step" in EVENTS[name] and not (sensible(record["step"]) and record["step"] == int(record["step"])):
        raise EventError(f"event {name!r}: `step` must be a whole number, not {str(record['step'])[:40]!r}")
    return record


def sensible(value: object) -> bool:
    """Whether it is a number that can be computed with: no NaN, not infinite, not beyond all measure."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
