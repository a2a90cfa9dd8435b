"""Changes what a sealed run recorded, and seals it again.

Used by the tests of reports and by `tests.validations.tampering`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from proving_ground.bench import rundir

Record = dict[str, Any]
Change = Callable[[list[Record]], Iterable[Record]]


def rewrite(run: rundir.RunDir, change: Change, *, complete: bool = True) -> rundir.RunDir:
    """The run with other records, each in the file of the process that it is said to be of; merged and sealed."""
    files: dict[str, list[Record]] = {file.name: [] for file in run.events.glob("*.jsonl")}
    for record in sorted(change(list(rundir.read_history(run))), key=lambda it: float(it["t"])):
        files.setdefault(file_of(record), []).append(record)
    for name, records in files.items():
        lines = [json.dumps(as_written(it), separators=(",", ":")) + "\n" for it in records]
        (run.events / name).write_text("".join(lines))
    return resealed(run, complete=complete)


def resealed(run: rundir.RunDir, *, complete: bool = True) -> rundir.RunDir:
    """The run with a history that follows from its event files, and a seal that fits."""
    rundir.merge(run)
    rundir.seal(run, complete=complete)
    return run


def file_of(record: Record) -> str:
    """The event file that a record of the history is from."""
    source = str(record.get("source", rundir.HARNESS))
    return f"{source}.jsonl" if source == rundir.HARNESS else f"{record['trial']}.{source}.jsonl"


def as_written(record: Record) -> Record:
    """The record without what the file's name says."""
    known = ("source",) if record.get("source", rundir.HARNESS) == rundir.HARNESS else ("source", "trial")
    return {key: value for key, value in record.items() if key not in known}
