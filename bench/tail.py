"""Follows the event files and logs of a trial in progress. Called by `bench.drive` and `bench.jobview`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path

from proving_ground.training.events import MISTAKE, parsed, sensible

WORDS_MAX = 120  # of a line that is told
WINDOW = 10  # steps over which a rate is taken


class Tail:
    """Reads what was appended to each file since the last time; half lines wait."""

    def __init__(self, files: Mapping[str, Path], *, one_tells: bool = False) -> None:
        """`one_tells`: one process speaks for all, as a trainer that prints on rank 0 only."""
        self._files = files
        self._of_all = max if one_tells else min
        self._offsets = dict.fromkeys(files, 0)
        self._mistaken: set[str] = set()
        self._steps: dict[str, deque[tuple[float, int, int]]] = {name: deque(maxlen=WINDOW) for name in files}

    def read(self) -> int:
        """Take in what is new; the step that every process has reached."""
        for name, file in self._files.items():
            self._read(name, file)
        return self._of_all((steps[-1][1] if steps else 0 for steps in self._steps.values()), default=0)

    @property
    def begun(self) -> bool:
        """Whether any process has told a step."""
        return any(self._steps.values())

    @property
    def mistaken(self) -> Collection[str]:
        """The processes that told last that they were told what cannot be; one behind a launcher may begin again."""
        return frozenset(self._mistaken)

    @property
    def all_mistaken(self) -> bool:
        """Whether there is no other."""
        return len(self._mistaken) == len(self._files)

    def _read(self, name: str, file: Path) -> None:
        lines, self._offsets[name] = appended(file, self._offsets[name])
        for line in lines:
            self._take(name, line)

    def _take(self, name: str, line: bytes) -> None:
        if b'"step"' not in line and b'"error"' not in line:
            return
        try:
            record = parsed(line)
            if record["event"] == "step" and all(sensible(record[key]) for key in ("t", "step", "samples")):
                self._steps[name].append((float(record["t"]), int(record["step"]), int(record["samples"])))
                self._mistaken.discard(name)
            if record["event"] == "error" and record.get("status") == MISTAKE:
                self._mistaken.add(name)
        except (ValueError, KeyError, TypeError):
            return  # what is no event is told when the files are merged

    def rates(self) -> dict[str, float]:
        """Samples/s of each process over its last steps; processes with less than two steps are left out."""
        found = {}
        for name, steps in self._steps.items():
            if len(steps) > 1 and steps[-1][0] > steps[0][0]:
                found[name] = sum(samples for _, _, samples in list(steps)[1:]) / (steps[-1][0] - steps[0][0])
        return found


def appended(file: Path, offset: int) -> tuple[list[bytes], int]:
    """The whole lines of a file from a byte on, and the byte after them; a half line waits, as does a file to come."""
    try:
        with file.open("rb") as lines:
            lines.seek(offset)
            new = lines.read()
    except FileNotFoundError:
        return [], offset
    whole = new[: new.rfind(b"\n") + 1]
    return whole.splitlines(), offset + len(whole)


LIBRARY = re.compile(r"(\[rank\d+\]:)?\[?[IWEFC]\d{4} \d\d:")
"""How a line begins that torch logs, such as a launcher's about the end of a worker."""


def last_line(log: Path, beside: re.Pattern[str] | None = None) -> str:
    """The last line that says something in a log, and does not begin like those; empty if there is none."""
    try:
        lines = log.read_text(errors="replace")[-4000:].splitlines()
    except OSError:
        return ""
    said = (line.strip() for line in reversed(lines))
    found = next((line for line in said if line and not (beside and beside.match(line))), "")
    return found if len(found) <= WORDS_MAX else f"{found[:WORDS_MAX]} …"
