"""`index.html` over a folder of runs: a row each, and how each suite's figures went. Called by `reports.commands`.

It reads what reports have written (`results.json`) and what runs have recorded; nothing is analysed again. The pages
of the runs get a link to it.
"""

from __future__ import annotations

import html as markup
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports import figures, layout, looks, numbers, verdicts
from proving_ground.reports.comparing import series, trend
from proving_ground.reports.figures import Figure

MOST_SERIES = 12  # figures of a suite with a line of their own
LONGEST_LINE = 65_536  # bytes at the end of the harness's events that its last one is in
HEADLINES = (("time_to_recovery", "time to recovery, slowest kind"), ("efficiency", "efficiency"),
             ("busbw", "bus bandwidth"), ("throughput", "throughput"))  # fmt: skip
"""Figure → what it is called where it stands for a whole run; the first that a run has."""
DAMAGED = (RunDirError, KeyError, TypeError, ValueError, AttributeError)
"""What reading a document raises that is not as it was written."""
WIDE, HIGH, EDGE = 150, 34, 4  # drawing units of a sparkline, and of the room around it


@dataclass(frozen=True)
class Entry:
    """One run in the list."""

    run: RunDir
    verdict: str = ""
    headline: str = ""  # `efficiency 92.6 %`
    about: str = ""  # `digits, weak, 8 nodes`
    started_s: float | None = None  # since 1970
    duration_s: float | None = None
    why: str = ""  # there is no verdict

    @property
    def link(self) -> str:
        """Where its page is, seen from the list; empty where there is none."""
        return f"{self.run.suite}/{self.run.run_id}/report.html" if self.run.report.exists() else ""


def write(runs: Path, now_s: float | None = None) -> Path:
    """Write `index.html`, and a link to it into the runs' pages; its path.

    Raises:
        RunDirError: there are no runs.
    """
    found = rundir.all_runs(runs)
    if not found:
        raise RunDirError(f"no runs under {runs}; start with: pg bench run")
    place = runs / "index.html"
    rundir.write_atomic(place, html(found, time.time() if now_s is None else now_s))
    for run in found:
        if run.report.exists() and layout.INDEX in (text := run.report.read_text()):
            rundir.write_atomic(run.report, layout.linked(text))
    return place


def html(runs: Sequence[RunDir], now_s: float) -> str:
    """The page as text."""
    entries = [entry(run) for run in reversed(runs)]
    suites = list(dict.fromkeys(it.run.suite for it in entries))
    return layout.render("index.html.j2", {
        "page_title": f"{len(entries)} runs",
        "title": f"{counted(len(entries), 'run')} of {counted(len(suites), 'suite')}",
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now_s)),
        "entries": [row(it, now_s) for it in entries],
        "counts": counts(entries),
        "signs": looks.SIGN,
        "suites": [{"name": name, "newest": next(it for it in entries if it.run.suite == name),
                    **of_suite([run for run in runs if run.suite == name])} for name in suites],
    })  # fmt: skip


def counted(count: int, word: str) -> str:
    """1 run, 2 runs."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def counts(entries: Sequence[Entry]) -> str:
    """`3 pass, 1 unknown, 1 without a report`."""
    told = [
        (value, sum(it.verdict == value for it in entries))
        for value in (verdicts.PASS, verdicts.FAIL, verdicts.UNKNOWN)
    ]
    without = sum(not it.verdict for it in entries)
    said = [f"{count} {value}" for value, count in told if count] + [f"{without} without a report"] * bool(without)
    return ", ".join(said)


def row(it: Entry, now_s: float) -> dict[str, Any]:
    """One run as the page shows it."""
    started = it.started_s
    return {
        "entry": it,
        "started": time.strftime("%Y-%m-%d %H:%M", time.gmtime(started)) if started is not None else numbers.GAP,
        "age": age(now_s - started) if started is not None else numbers.GAP,
        "duration": numbers.seconds(it.duration_s) if it.duration_s is not None else numbers.GAP,
    }


def age(seconds: float) -> str:
    """`3 h`: the largest whole unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "now"


def entry(run: RunDir) -> Entry:
    """What is known of a run; of one that cannot be read, why."""
    try:
        wall_s = document(run, "provenance").get("wall_s")
        it = Entry(run, started_s=float(wall_s) if wall_s is not None else None, duration_s=duration(run))
        if not run.results.exists():
            return replace(it, why="no report yet")
        found = contract.read(run)
        it = replace(it, verdict=verdicts.overall(found["verdicts"]))
        best = headline(found["figures"])
    except (*DAMAGED, OSError) as error:
        return Entry(run, why=f"cannot be read: {error}")
    return with_headline(it, *best) if best else it


def with_headline(it: Entry, name: str, found: Figure) -> Entry:
    """The run with the figure that stands for it."""
    digits = min(2, numbers.digits(found["median"], found["ci95"]))
    said = f"{name} {numbers.plain(found['median'], digits)} {found['unit']}"
    return replace(it, headline=said, about=about(found["where"]))


def document(run: RunDir, name: str) -> Mapping[str, Any]:
    """One of a run's JSON documents.

    Raises:
        RunDirError: it is missing, or no table.
    """
    found = run.read(name)
    if not isinstance(found, dict):
        raise RunDirError(f"{name}.json is no table")
    return found


def headline(listed: Sequence[Figure]) -> tuple[str, Figure] | None:
    """(name, figure) that stands for a run: its slowest recovery, or its largest size."""
    for name, words in HEADLINES:
        found = [it for it in figures.pick_all(list(listed), name) if not series_reference(it)]
        if found and name == "time_to_recovery":
            return words, max(found, key=lambda it: float(it["median"]))
        if found and name == "busbw":
            return words, max(found, key=lambda it: float(it["median"]))
        if found:
            first = [it for it in found if group(it) == group(found[0])]
            return words, max(first, key=lambda it: int(it["where"].get("nodes", 0)))
    return None


def series_reference(found: Figure) -> bool:
    """Whether it is 100 % by definition."""
    where = found["where"]
    return bool(found["name"] == "efficiency" and where.get("nodes") == where.get("base_nodes"))


def group(found: Figure) -> tuple[Any, Any]:
    """Case and scaling."""
    return found["where"].get("case"), found["where"].get("scaling")


def about(where: Mapping[str, Any]) -> str:
    """`digits, weak, 8 nodes`; `node_kill, allreduce`."""
    said = [
        str(where[key]) for key in ("case", "op", "scaling", "kind", "phase") if where.get(key) not in (None, "step")
    ]
    if "kind" in where:
        said = [it for it in said if it != where.get("case")]
    return ", ".join([*said, *([f"{where['nodes']} nodes"] if "nodes" in where else [])])


def duration(run: RunDir) -> float | None:
    """Seconds from the first to the last event of the harness; None of a run with several sittings, or without any."""
    file = run.events / f"{rundir.HARNESS}.jsonl"
    if not file.exists():
        return None
    with file.open("rb") as lines:
        first = lines.readline()
        lines.seek(max(0, file.stat().st_size - LONGEST_LINE), os.SEEK_SET)
        last = lines.read().splitlines()[-1:]
    try:
        begin, end = json.loads(first), json.loads(last[0])
        return None if end.get(rundir.SITTING) else float(end["t"]) - float(begin["t"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None  # half a line


def of_suite(runs: Sequence[RunDir]) -> dict[str, Any]:
    """How a suite's figures went over the runs that were measured like its newest complete one."""
    alike = measured_alike(runs)
    try:
        found = list(lines(alike))
    except DAMAGED:  # a report that somebody changed: its row says so
        alike, found = [], []
    return {"runs": len(alike), "left_out": len(runs) - len(alike), "lines": found[:MOST_SERIES],
            "more": max(0, len(found) - MOST_SERIES)}  # fmt: skip


def measured_alike(runs: Sequence[RunDir]) -> list[RunDir]:
    """Oldest first; none where no run is complete and has a report."""
    kept: list[RunDir] = []
    for run in reversed(runs):
        try:
            good = run.results.exists() and not series.bad(run) and not (kept and series.unlike(run, kept[0]))
        except DAMAGED:
            good = False
        if good:
            kept.append(run)
    return kept[::-1]


def lines(runs: Sequence[RunDir]) -> Iterator[dict[str, Any]]:
    """A line for each figure that at least two of the runs have."""
    found: dict[str, list[tuple[str, Figure]]] = {}
    for run in runs:
        for it in contract.read(run)["figures"]:
            if it["name"] in ("throughput", "busbw", "efficiency", "time_to_recovery", "ettr") and not series_reference(
                it
            ):
                key = json.dumps([it["name"], it["label"], it["where"]], sort_keys=True)
                found.setdefault(key, []).append((run.run_id, it))
    order = [name for name, _ in HEADLINES]
    for own in sorted(
        found.values(), key=lambda own: order.index(own[0][1]["name"]) if own[0][1]["name"] in order else 9
    ):
        if len(own) > 1 and all(it["median"] > 0 for _, it in own):
            yield one_line(own)


def one_line(own: Sequence[tuple[str, Figure]]) -> dict[str, Any]:
    """First, newest, the change between them, where it changed, and the curve."""
    values, newest = [float(it["median"]) for _, it in own], own[-1][1]
    digits = numbers.digits(newest["median"], newest["ci95"])
    percent = f"{100 * (values[-1] / values[0] - 1):+.1f} %".replace("-", numbers.MINUS)
    steps = [f"{it.percent:+.1f} % from {own[it.index][0]} on".replace("-", numbers.MINUS)
             for it in trend.changes(values)]  # fmt: skip
    fewer = f"fewer than {2 * trend.SHORTEST} runs: no change can be told"
    return {
        "name": {"time_to_recovery": "time to recovery", "ettr": "goodput (ETTR)"}.get(newest["name"], newest["name"]),
        "about": about(newest["where"]), "unit": newest["unit"], "n": len(values),
        "first": numbers.plain(values[0], digits), "newest": numbers.plain(values[-1], digits), "change": percent,
        "found": "; ".join(steps) or (fewer if len(values) < 2 * trend.SHORTEST else "none beyond noise"),
        "spark": spark([(run_id, value) for (run_id, _), value in zip(own, values, strict=True)], newest["unit"]),
    }  # fmt: skip


def spark(points: Sequence[tuple[str, float]], unit: str) -> str:
    """A small curve as SVG: every run is a mark that tells its value; the newest is filled."""
    values = [value for _, value in points]
    low, span = min(values), (max(values) - min(values)) or 1.0
    flat = max(values) == min(values)
    xs = [EDGE + (WIDE - 2 * EDGE) * at / max(1, len(values) - 1) for at in range(len(values))]
    ys = [HIGH / 2 if flat else HIGH - EDGE - (HIGH - 2 * EDGE) * (value - low) / span for value in values]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3.2 if at == len(values) - 1 else 2}" class="tip">'
        f"<title>{markup.escape(name)}: {value:,.4g} {markup.escape(unit)}</title></circle>"
        for at, (x, y, (name, value)) in enumerate(zip(xs, ys, points, strict=True))
    )
    said = markup.escape(f"{len(values)} runs, from {values[0]:,.4g} to {values[-1]:,.4g} {unit}")
    return (
        f'<svg class="spark" role="img" viewBox="0 0 {WIDE} {HIGH}"><title>{said}</title>'
        f'<polyline points="{line}"/>{marks}</svg>'
    )
