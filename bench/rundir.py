"""The run directory: its layout, its sealing, and the reading and merging of its events.

The one module that knows the layout (`bench/README.md`). Written through by `bench.run`, read by `reports` and
`monitoring`; standard library only, so that a report can be made on any machine.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import heapq
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from proving_ground.training.events import EventError, check_event, parsed, sensible
from proving_ground.training.typed import shown, unknown

Record = dict[str, Any]

HARNESS = "harness"
LOOK_AHEAD = 100  # lines of an event file that may be out of order
FILE_BUFFER = 2**14  # bytes; hundreds of event files are read side by side
SITTING = "sitting"
"""Field of the harness' events from a run's second sitting on: which one it was."""
FORMAT = 1
"""Of a run directory, in `provenance.json`; one without is of format 1. A higher one is for a newer reader."""
LOCK = "harness.lock"
"""Locked for as long as a harness writes to the run; what a dead process held is free."""
INTERRUPTED = "interrupted"
"""Folder of what attempts left that did not end well."""
SEALED = ("spec.json", "plan.json", "provenance.json", "calibration.json", "prediction.json", "history.jsonl")


class RunDirError(ValueError):
    """A run directory that cannot be used: one line with what and where."""


@dataclass(frozen=True)
class RunDir:
    """One run's directory. Properties are paths; nothing is cached."""

    path: Path

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.path.parent.name

    @property
    def run_id(self) -> str:
        """`<UTC time>-<id>`; unique on this machine."""
        return self.path.name

    @property
    def events(self) -> Path:
        """One JSON Lines file for each process and one for the harness."""
        return self.path / "events"

    @property
    def logs(self) -> Path:
        """What the processes printed."""
        return self.path / "logs"

    @property
    def scratch(self) -> Path:
        """Configs and checkpoints of the trials; removed before sealing."""
        return self.path / "scratch"

    @property
    def history(self) -> Path:
        """All events in one order."""
        return self.path / "history.jsonl"

    @property
    def results(self) -> Path:
        """Derived by `reports`."""
        return self.path / "results.json"

    @property
    def report(self) -> Path:
        """Derived by `reports`."""
        return self.path / "report.html"

    def read(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """The JSON document `name`.json.

        Raises:
            RunDirError: missing, unreadable or not JSON.
        """
        file = self.path / f"{name}.json"
        try:
            return json.loads(file.read_text())
        except FileNotFoundError:
            raise RunDirError(f"{self.path}: {name}.json is missing; is this a run directory?") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunDirError(f"{file}: cannot be read as JSON: {error}") from None

    def write(self, name: str, document: object) -> None:
        """Write the JSON document `name`.json whole or not at all."""
        write_atomic(self.path / f"{name}.json", json.dumps(document, indent=1, sort_keys=True) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` with `text`; a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    os.replace(temporary, path)  # noqa: PTH105 - says atomic to a reader


def create(root: Path, suite: str, documents: Mapping[str, Any] = MappingProxyType({})) -> RunDir:
    """Make `root/<suite>/<UTC time>-<id>/` with its folders and these documents, then point `latest` there."""
    run_id = new_id()
    run = RunDir(root / suite / run_id)
    for folder in (run.events, run.logs, run.scratch):
        folder.mkdir(parents=True)
    for name, document in documents.items():
        run.write(name, document)
    point_latest(root / suite / "latest", Path(run_id))
    point_latest(root / "latest", Path(suite) / run_id)
    return run


def new_id() -> str:
    """The UTC time and the fraction of its second: names sort in the order of creation."""
    now = time.time()
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{int(now % 1 * 0x10000):04x}"


def point_latest(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to `target`, replacing an older one in one step."""
    temporary = link.with_name(f".latest-{secrets.token_hex(4)}")
    temporary.symlink_to(target)
    os.replace(temporary, link)  # noqa: PTH105 - says atomic to a reader


def find(root: Path, name: str | None = None, what: str = "run", mark: str = "spec.json") -> RunDir:
    """The run that a person means: a path, a run id, a suite's newest, or (`latest` or None) the newest of all.

    `mark` is the file that every one of them has, `what` its name for people.

    Raises:
        RunDirError: there is no such run; names the known ones nearby.
    """
    if name is None or name == "latest":
        candidates = [root / "latest"]
    else:
        candidates = [Path(name), root / name / "latest", *root.glob(f"*/{glob.escape(name)}")]
    for path in candidates:
        if there(path / mark):
            return readable(RunDir(path.resolve()))
    known = all_runs(root, mark)[::-1]
    if not known:
        raise RunDirError(f"no {what} {shown(name or 'latest')} under {root}; newest {plural(what)}: none yet")
    names = ["latest", *dict.fromkeys(run.suite for run in known), *(run.run_id for run in known)]
    raise RunDirError(f"{root}: {unknown(what, name, names)}")


def there(path: Path) -> bool:
    """Whether there is such a file; a name that no file system takes names none."""
    try:
        return path.exists()
    except OSError:
        return False


def plural(what: str) -> str:
    """Several of them."""
    return f"{what}es" if what.endswith("h") else f"{what}s"


def newest(root: Path) -> str:
    """Where `latest` leads; empty where nothing was run yet."""
    link = root / "latest"
    return str(link.readlink()) if link.is_symlink() else ""


def readable(run: RunDir) -> RunDir:
    """The same run, if it is of a format that is known here.

    Raises:
        RunDirError: it is of a newer one.
    """
    origin = run.read("provenance") if (run.path / "provenance.json").exists() else {}
    found = origin.get("format", 1) if isinstance(origin, dict) else 1
    if not isinstance(found, int) or found > FORMAT:
        raise RunDirError(f"{run.path}: format {found!r}; this version reads up to {FORMAT}: use a newer one")
    return run


@contextmanager
def held(run: RunDir, name: str = LOCK) -> Iterator[None]:
    """The run is this process's for as long as this lasts; another lock is another `name`.

    Raises:
        RunDirError: another process has it.
    """
    with (run.path / name).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: what is forked must not keep it
        except OSError:
            raise RunDirError(f"{run.path}: in progress: another harness writes to it") from None
        yield
        (run.path / name).unlink(missing_ok=True)


def in_progress(run: RunDir, name: str = LOCK) -> bool:
    """Whether another process's harness writes to the run."""
    try:
        with (run.path / name).open("r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def all_runs(root: Path, mark: str = "spec.json") -> list[RunDir]:
    """Every run under `root`, oldest first: the folders that have this file."""
    paths = (file.parent for file in root.glob(f"*/*/{mark}") if not file.parent.is_symlink())
    return [RunDir(path) for path in sorted(paths, key=lambda path: path.name)]


def read_events(file: Path, warnings: list[str] | None = None) -> Iterator[Record]:
    """The records of one event file in the order of `t`, each with `source` and `trial` from the file's name.

    What a crash leaves behind is passed over and told in `warnings`: a half-written last line, a line that is no event,
    records out of order (they are sorted).
    """
    notes = warnings if warnings is not None else []
    records = list(_parse(file, notes))
    if any(moment(later) < moment(earlier) for earlier, later in pairwise(records)):
        notes.append(f"{file.name}: records out of order, sorted")
        records.sort(key=moment)
    return iter(records)


def moment(record: Record) -> tuple[int, float]:
    """When it was: the sitting, and the time within. A reboot between two sittings sets the clock back."""
    return int(record.get(SITTING, 1)), float(record["t"])


def sittings(run: RunDir) -> dict[str, int]:
    """Trial → the sitting that its files are of: a trial is never resumed, it begins anew."""
    file = run.events / f"{HARNESS}.jsonl"
    records = read_events(file) if file.exists() else iter(())
    return {str(it["trial"]): moment(it)[0] for it in records if it.get("event") == "trial_start" and "trial" in it}


def _parse(file: Path, notes: list[str]) -> Iterator[Record]:
    trial, _, source = file.stem.partition(".")
    name: Record = {"source": source, "trial": trial} if source else {"source": HARNESS}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                notes.append(f"{file.name}: line {number} is half written, left out")
                return
            try:
                record = parsed(line)
                yield {**name, **(check_event(record) if source else of_harness(record))}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                notes.append(f"{file.name}: line {number} left out: {error}")


def of_harness(record: Record) -> Record:
    """The record, if it says when it was, and in which sitting; the harness' events have no other rules.

    Raises:
        EventError: it does not.
    """
    if not sensible(record.get("t")):
        raise EventError(f"event {record.get('event')!r}: `t` must be a number of seconds")
    if not isinstance(record.get(SITTING, 1), int):
        raise EventError(f"event {record.get('event')!r}: `{SITTING}` must be a whole number")
    return {**record, "t": float(record["t"])}


def read_unmerged(run: RunDir, warnings: list[str] | None = None) -> Iterator[Record]:
    """The records of all event files in the order of time (ties: by file name), with the warnings of `read_events`."""
    known = sittings(run)
    streams = [read_events(file, warnings) for file in sorted(run.events.glob("*.jsonl"))]

    def order(record: Record) -> tuple[int, float]:
        sitting, t = moment(record)
        return (sitting if record["source"] == HARNESS else known.get(str(record.get("trial")), sitting)), t

    return heapq.merge(*streams, key=order)


def recorded(run: RunDir) -> Iterator[Record]:
    """The history; of a run in progress, or cut off, what its processes have left so far.

    Raises:
        RunDirError: nothing was recorded, or the history is damaged.
    """
    if run.history.exists():
        return read_history(run)
    if not any(run.events.glob("*.jsonl")):
        raise RunDirError(f"{run.path}: no events")
    return read_unmerged(run)


def merge(run: RunDir) -> list[str]:
    """Write `history.jsonl` from all event files, ordered by `t` (ties: by file name); what was odd, as lines."""
    notes: list[str] = []
    temporary = run.history.with_name(".history.new")
    with temporary.open("w") as out:
        for record in read_unmerged(run, notes):
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
    temporary.replace(run.history)
    return notes


def read_history(run: RunDir, parse: Callable[[bytes], Any] = parsed) -> Iterator[Record]:
    """The merged history, record by record, in constant memory; `parse` may be a faster JSON parser.

    Raises:
        RunDirError: there is none, or it is damaged (a sealed file never is).
    """
    try:
        with run.history.open("rb") as lines:
            for line in lines:
                yield read_line(line, parse)
    except FileNotFoundError:
        raise RunDirError(
            f"{run.path}: history.jsonl is missing: the run was not finished; pg bench run --resume {run.path}"
        ) from None
    except ValueError as error:
        raise RunDirError(f"{run.history}: damaged: {error}") from None


def read_compared(run: RunDir, parse: Callable[[bytes], Any], differences: list[str]) -> Iterator[Record]:
    """The merged history, as `read_history`; at its end `differences` says where it is not what the event files say.

    Raises:
        RunDirError: there is none, or it is damaged.
    """
    originals = Originals(run, parse)
    yield from read_history(run, originals.parsed)
    if not originals.all_the_same and (found := difference(run)):
        differences.append(f"history.jsonl is not what the event files say: {found}")


def difference(run: RunDir) -> str:
    """The first record in which the history is not what merging the event files gives; empty where there is none."""
    both = zip_longest(read_unmerged(run), read_history(run))
    for number, (own, merged) in enumerate(both, 1):
        if own != merged:
            return f"line {number} is {told(merged)} instead of {told(own)}"
    return ""


def told(record: Record | None) -> str:
    """A record in a few words."""
    if record is None:
        return "missing"
    about = " ".join(str(record[key]) for key in ("trial", "source", "event", "step") if key in record)
    return f"{about} at {record.get('t')} s"


class Originals:
    """The lines of the event files, read beside a history that should be their merger.

    This is quick and may cry wolf: what is no event (a half-written line, say) is not passed over here. Where it does
    not find all the same, `difference` compares record by record, as `merge` reads them.
    """

    def __init__(self, run: RunDir, parse: Callable[[bytes], Any]) -> None:
        self._parse = parse
        self._files: dict[str, list[Original]] = {}
        for file in sorted(run.events.glob("*.jsonl")):
            original = Original(file, parse)
            self._files.setdefault(original.name, []).append(original)
        self._newest_t = float("-inf")
        self._same = True

    def parsed(self, line: bytes) -> Any:  # noqa: ANN401 - JSON
        """A line of the history, parsed, and seen to be one of the next of an event file."""
        record = self._parse(line)
        try:
            source, t = record["source"], record["t"]
            for file in self._files.get(source if source == HARNESS else f"{record['trial']}.{source}", ()):
                if file.took(line, record):
                    break
            else:
                self._same = False
            if t < self._newest_t:
                self._same = False
            self._newest_t = t
        except (ValueError, LookupError, TypeError):
            self._same = False
        return record

    @property
    def all_the_same(self) -> bool:
        """Whether every line of the history was one of a file, in the order of time, and none is left over."""
        return self._same and not any(it.ahead for files in self._files.values() for it in files)


class Original:
    """One event file, open while it is read: the lines that may be its next ones in the order of `t`.

    A process that writes from two threads leaves some a little out of order; so a few are looked at.
    """

    def __init__(self, file: Path, parse: Callable[[bytes], Any]) -> None:
        trial, _, source = file.stem.partition(".")
        self.name = file.stem if source else HARNESS
        self._parse = parse
        self._about: Record = {"source": source, "trial": trial} if source else {"source": HARNESS}
        self._prefix = json.dumps(self._about, separators=(",", ":")).encode()[:-1] + b","
        self._lines = self._read(file)
        self.ahead: list[bytes] = []
        self._read_on()

    @staticmethod
    def _read(file: Path) -> Iterator[bytes]:
        with file.open("rb", buffering=FILE_BUFFER) as lines:
            yield from lines

    def _read_on(self) -> None:
        """One more line to look at, if there is one."""
        self.ahead += islice(self._lines, 1)

    def took(self, line: bytes, record: Record) -> bool:
        """Whether a line of the history is one of the next of this file, which then is done with."""
        for look, own in enumerate(self.ahead):  # grows meanwhile
            if line == self._prefix + own[1:] or record == {**self._about, **self._parse(own)}:
                del self.ahead[look]
                if not self.ahead:
                    self._read_on()
                return True
            if look + 1 == len(self.ahead) < LOOK_AHEAD:
                self._read_on()
        return False


def read_line(line: bytes, parse: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - JSON
    """A record of the history; strict parsers refuse NaN, which older histories have as Python writes it."""
    try:
        return parse(line)
    except ValueError:
        return parsed(line)


def sealed_files(run: RunDir, names: Iterable[str]) -> list[Path]:
    """The files that a seal covers, in a stable order; `names` are those beside the folders."""
    named = [run.path / name for name in names if (run.path / name).exists()]
    folders = (run.events, run.logs, run.path / INTERRUPTED)
    return named + sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def seal(run: RunDir, *, complete: bool, names: Iterable[str] = SEALED) -> None:
    """Write `seal.json` with the SHA-256 of every collected file; an incomplete run is sealed as such."""
    files = {str(path.relative_to(run.path)): sha256(path) for path in sealed_files(run, names)}
    run.write("seal", {"complete": complete, "files": files})


def verify(run: RunDir, names: Iterable[str] = SEALED) -> list[str]:
    """What differs from the seal, one line a file; empty when nothing does.

    Raises:
        RunDirError: the run was never sealed, or the seal is damaged.
    """
    document = run.read("seal")
    recorded = document.get("files") if isinstance(document, dict) else None
    if not isinstance(recorded, dict):
        raise RunDirError(f"{run.path}: seal.json: has no table of files")
    present = {str(path.relative_to(run.path)): path for path in sealed_files(run, names)}
    missing = [f"{name}: missing" for name in recorded if name not in present]
    whole = any(name.startswith(INTERRUPTED) for name in recorded)  # runs of before sealed no failed attempts
    extra = [
        f"{name}: not in the seal"
        for name in present
        if name not in recorded and (whole or not name.startswith(INTERRUPTED))
    ]
    changed = [f"{name}: changed" for name, path in present.items() if recorded.get(name, "") not in ("", sha256(path))]
    return sorted(missing + extra + changed)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
