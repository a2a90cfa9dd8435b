"""What the processes of a run printed, as one merged list: each line with its run, node, rank, step and time.

Called by `bench.commands` (`pg bench logs`) and by `monitoring.logs`, which ships it. Rank and step are not in
the lines: they are what the process' event file says for that moment. A line's own time is the stamp that PyTorch
printed, or for the trainer's progress the event of that step. A line without either keeps its place in its file and
the time of the line before: it was printed then or later (`timed` is false).
"""

from __future__ import annotations

import heapq
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.jobstate import Worker
from proving_ground.bench.rundir import Record, RunDir, RunDirError
from proving_ground.training.events import sensible
from proving_ground.training.typed import unknown

STAMP = re.compile(r"^\[?(?P<level>[IWEFC])(?P<date>\d{4} \d\d:\d\d:\d\d\.\d{6})")  # glog's, as PyTorch prints it
STAMPED = "%Y%m%d %H:%M:%S.%f"
PROGRESS = re.compile(r"^step (\d+)/\d+ ")
LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "fatal", "C": "fatal"}
SLACK_S = 10.0  # a stamp that is further outside its trial was made by a clock that cannot be trusted


@dataclass(frozen=True)
class LogLine:
    """One printed line. `t` is on the run's clock; rank, step: of the process at `t`, None where nobody said."""

    run: str
    trial: str
    node: str
    slot: int
    t: float | None  # None: not even the start of its process is known
    timed: bool  # false: `t` is the time of the line before; it was printed then or later
    rank: int | None
    step: int | None  # the last one that the process had done
    level: str  # info, warning, error, fatal; empty where the line does not say
    message: str

    def record(self) -> Record:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """Which lines: None means all. `since` is `fault` (the trial's first), a fault's id, or seconds into the run."""

    trial: str | None = None
    node: str | None = None  # a node, or a process such as n2.0
    rank: int | None = None
    since: str | None = None


@dataclass
class Life:
    """What the event file of one process tells: when it had which rank, when it ended which step."""

    starts: list[float] = field(default_factory=list)
    ranks: list[tuple[float, int]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)

    def at(self, t: float) -> tuple[int | None, int | None]:
        """(rank, step) at a moment; a process that started again has done no step yet."""
        start, rank, step = (bisect_right(it, key) - 1 for it, key in (
            (self.starts, t), (self.ranks, (t, math.inf)), (self.steps, (t, math.inf)),
        ))  # fmt: skip
        begun = self.starts[start] if start >= 0 else -math.inf
        made = step >= 0 and self.steps[step][0] >= begun
        return self.ranks[rank][1] if rank >= 0 else None, self.steps[step][1] if made else None

    def end_of(self, step: int, after: float) -> float | None:
        """When it ended a step, the first time at or after a moment."""
        return next((t for t, number in self.steps if number == step and t >= after), None)


@dataclass(frozen=True)
class Clock:
    """The run's clock and the wall clock, read together when the run began."""

    t: float
    wall_s: float
    utc_offset_s: float

    def of_stamp(self, text: str) -> float:
        """A printed stamp, which has no year, on the run's clock."""
        began = datetime.fromtimestamp(self.wall_s + self.utc_offset_s, UTC)
        printed = datetime.strptime(f"{began.year}{text}", STAMPED).replace(tzinfo=UTC)
        if printed < began - timedelta(days=180):
            printed = printed.replace(year=began.year + 1)
        return self.t + (printed - began).total_seconds()


@dataclass
class TrialTimes:
    """What the harness recorded of one trial, as far as its lines need it."""

    begin_t: float = -math.inf
    end_t: float = math.inf
    processes: dict[str, float] = field(default_factory=dict)  # name → its first start
    faults: dict[str, float] = field(default_factory=dict)  # id → when it was injected
    skewed: set[str] = field(default_factory=set)  # nodes whose wall clock was set wrong


def lines(run: RunDir, wanted: Wanted | None = None) -> Iterator[LogLine]:
    """The wanted lines of all processes in the order of their times.

    Raises:
        RunDirError: there is no log of that trial and node, or no such fault.
    """
    wanted = wanted or Wanted()
    trials, files = recorded(run), chosen(run, wanted)
    begin = since(run, trials, wanted.since)
    merged = heapq.merge(*(of_file(run, file, trials) for file in files), key=lambda pair: pair[0])
    for order, line in merged:
        if order >= begin.get(line.trial, begin[""]) and wanted.rank in (None, line.rank):
            yield line


def chosen(run: RunDir, wanted: Wanted) -> list[Path]:
    """The log files of the wanted trial and node."""
    found = []
    trials: dict[str, None] = {}
    nodes: dict[str, None] = {}
    for file in sorted(run.logs.glob("*.log")):
        trial, _, name = file.stem.partition(".")
        trials[trial] = nodes[name.partition(".")[0]] = nodes[name] = None
        if wanted.trial in (None, trial) and wanted.node in (None, name, name.partition(".")[0]):
            found.append(file)
    for what, named, known in (("trial", wanted.trial, trials), ("node", wanted.node, nodes)):
        if named is not None and named not in known and known:
            raise RunDirError(f"{run.path}: {unknown(what, named, known)}")
    if not found:
        raise RunDirError(f"{run.path}: no log of trial {wanted.trial or 'any'} and node {wanted.node or 'any'}")
    return found


def recorded(run: RunDir) -> dict[str, TrialTimes]:
    """What the harness recorded of every trial; nothing where its file is missing."""
    trials: dict[str, TrialTimes] = {}
    file = run.events / f"{rundir.HARNESS}.jsonl"
    for record in rundir.read_events(file) if file.exists() else ():
        if "trial" in record:
            _take(trials.setdefault(str(record["trial"]), TrialTimes()), record)
    return trials


def _take(trial: TrialTimes, record: Record) -> None:
    event, t = record.get("event"), float(record["t"])
    if event == "trial_start":
        trial.begin_t = t
    elif event == "trial_end":
        trial.end_t = t
    elif event == "process_start":
        trial.processes.setdefault(f"{record.get('node')}.{record.get('slot')}", t)
    elif event == "fault_begin":
        begun = record.get("inject_t")
        trial.faults[str(record.get("fault"))] = float(begun) if sensible(begun) else t  # type: ignore[arg-type]
        trial.skewed.update(_clocks_set(record))


def _clocks_set(record: Record) -> Iterable[str]:
    """The nodes whose wall clock a fault set wrong, by what its evidence measured of their clocks."""
    evidence = record.get("evidence")
    ahead_s = evidence.get("ahead_s") if isinstance(evidence, dict) else None
    return ahead_s if isinstance(ahead_s, dict) else ()


def since(run: RunDir, trials: Mapping[str, TrialTimes], asked: str | None) -> dict[str, float]:
    """Trial → the moment from which its lines are wanted; under "" for all other trials.

    Raises:
        RunDirError: no such fault, or no number.
    """
    if asked is None:
        return {"": -math.inf}
    first = {name: min(trial.faults.values()) for name, trial in trials.items() if trial.faults}
    named = {name: trial.faults[asked] for name, trial in trials.items() if asked in trial.faults}
    found = first if asked == "fault" else named
    if found:
        return {"": math.inf, **found}
    try:
        return {"": clock(run).t + float(asked)}
    except ValueError:
        known = ", ".join(dict.fromkeys(it for trial in trials.values() for it in trial.faults)) or "none in this run"
        raise RunDirError(f"--since {asked}: allowed: fault, a fault's id ({known}), seconds into the run") from None


def clock(run: RunDir) -> Clock:
    """The run's two clocks.

    Raises:
        RunDirError: nobody wrote them down.
    """
    try:
        made = run.read("provenance")
        found = Clock(float(made["t"]), float(made["wall_s"]), float(made.get("utc_offset_s", 0)))
        found.of_stamp("0101 00:00:00.000000")  # it is a moment that there is
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, OSError) as error:
        raise RunDirError(f"{run.path}: provenance.json lacks t or wall_s: {error}") from None
    return found


def of_file(run: RunDir, file: Path, trials: Mapping[str, TrialTimes]) -> Iterator[tuple[float, LogLine]]:
    """(moment to sort by, line) of one log, in its own order."""
    name, _, process = file.stem.partition(".")
    node, _, slot = process.partition(".")
    trial, clocks = trials.get(name, TrialTimes()), clock(run)
    life = life_of(run.events / f"{file.stem}.jsonl")
    order: float = trial.processes.get(process, trial.begin_t)
    for text in file.read_text(errors="replace").splitlines():
        stamp = STAMP.match(text)
        t = time_of(text, stamp if node not in trial.skewed else None, trial, clocks, life, order)
        order = order if t is None else max(order, t)
        said = t if t is not None else order if math.isfinite(order) else None
        rank, step = life.at(order)
        level = LEVELS[stamp["level"]] if stamp else ""
        yield order, LogLine(run.run_id, name, node, int(slot or 0), said, t is not None, rank, step, level, text)


def time_of(
    text: str, stamp: re.Match[str] | None, trial: TrialTimes, clocks: Clock, life: Life, after: float
) -> float | None:
    """When a line was printed, if it can be known."""
    if stamp:
        try:
            t = clocks.of_stamp(stamp["date"])
        except ValueError:  # a day that there is not: it only looks like a stamp
            return None
        return t if trial.begin_t - SLACK_S <= t <= trial.end_t + SLACK_S else None
    progress = PROGRESS.match(text)
    return life.end_of(int(progress[1]), after) if progress else None


def life_of(file: Path) -> Life:
    """What an event file tells of its process; nothing where there is none."""
    life, worker = Life(), Worker("")
    for record in rundir.read_events(file) if file.exists() else ():
        worker.take(record)
        if record["event"] == "step":
            life.steps.append((record["t"], record["step"]))
        elif record["event"] in ("start", "ready") and worker.rank is not None:
            life.ranks.append((record["t"], worker.rank))
        if record["event"] == "start":
            life.starts.append(record["t"])
    return life


def shown(line: LogLine, begin_t: float) -> str:
    """A line for a terminal: seconds into the run (`≥`: then or later), trial, process, rank, step, what it said."""
    when: Any = "-" if line.t is None else f"{'' if line.timed else '≥'}{line.t - begin_t:.3f}"
    rank = "" if line.rank is None else f"rank {line.rank}"
    step = "" if line.step is None else f"step {line.step}"
    return f"{when:>10} {line.trial} {f'{line.node}.{line.slot}':<6} {rank:<7} {step:<9} {line.message}"
