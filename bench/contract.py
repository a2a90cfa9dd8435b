"""`results.json`, the public contract: its version, and the one place where it is read, older versions included.

Written by `reports` (`reports/README.md` and `reports/results.schema.json` say what is in it); read by listing,
gallery, comparison, monitoring and chaos. A version that is older is read as the newest: what a
later one calls otherwise gets that name, what it added is worked out from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.training.events import sensible

NAME = "proving-ground/results/"
VERSION = 2
SCHEMA = f"{NAME}{VERSION}"

Document = dict[str, Any]
FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "figures": {"name": str, "unit": str, "where": dict, "median": (int, float), "values": list},
    "verdicts": {"check": str, "verdict": str, "where": dict},
    "trials": {"kind": str, "outcome": str, "timeline": dict},
}
"""List → what each of its tables has. `reports/results.schema.json` says all."""
RECOVERY = ("time_to_detect", "resume", "made_up_s", "time_to_recovery", "full_speed_s", "held_s", "after_held_s",
            "lost_steps", "lost_work_s", "lost_node_s", "fault_cost")  # fmt: skip
"""Figures that are made of moments of different nodes: each carries the error bound of their clocks."""


def read(run: RunDir) -> Document:
    """The run's `results.json` as the newest version has it.

    Raises:
        RunDirError: missing, not JSON, of a version that is not known here, or not as a report writes it.
    """
    found = as_newest(run.read("results"), str(run.results))
    if wrong := odd(found):
        raise damaged(run, wrong)
    return found


def damaged(run: RunDir, why: str) -> RunDirError:
    """What a reader raises that meets what no report writes."""
    return RunDirError(f"{run.results}: not as a report writes it ({why}); make it anew: pg reports {run.path}")


def odd(document: Mapping[str, Any]) -> str:
    """What of the parts that every reader leans on is not as a report writes it; empty where all is."""
    for part, fields in FIELDS.items():
        rows = document.get(part)
        if not isinstance(rows, list):
            return f"{part} is no list"
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                return f"{part}, item {number}, is no table"
            for key, kind in fields.items():
                if not isinstance(row.get(key), kind):
                    return f"{part}, item {number}: {key} is {'missing' if key not in row else 'of another kind'}"
    return ""


def as_newest(document: Any, where: str) -> Document:  # noqa: ANN401 - JSON
    """A document of any version that is known, as the newest; `where` is the file's name in what is refused.

    Raises:
        RunDirError: it is of another version, or no such document.
    """
    version = version_of(document)
    if version is None:
        said = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise RunDirError(
            f"{where}: schema {said!r}; this version reads {NAME}1 to {VERSION}: use a newer one, or make it anew "
            "with pg reports"
        )
    for step in range(version, VERSION):
        document = MIGRATIONS[step](document)
    return dict(document)


def version_of(document: Any) -> int | None:  # noqa: ANN401 - JSON
    """Its version; 1 where it says none; None where it is none of those that are known."""
    if not isinstance(document, dict):
        return None
    name, slash, number = str(document.get("schema", f"{NAME}1")).rpartition("/")
    known = {str(it): it for it in range(1, VERSION + 1)}
    return known.get(number) if name + slash == NAME else None


def second(first: Mapping[str, Any]) -> Document:
    """Version 1 as version 2.

    The figure `detect` is called `time_to_detect`; a trial's `replay`, the command that repeats its fault, is called
    `command` (a replay is a job); figures of recovery have `clock_error_s`: it follows from the figures `clock_error`.
    """
    error_s = worst_s(first)

    def figure(it: Document) -> Document:
        name = {"detect": "time_to_detect"}.get(str(it.get("name")), it.get("name"))
        return {**it, "name": name, **({"clock_error_s": error_s} if name in RECOVERY else {})}

    def trial(it: Document) -> Document:
        return {("command" if key == "replay" else key): value for key, value in it.items()}

    figures, trials = each(first.get("figures", []), figure), each(first.get("trials", []), trial)
    return {**first, "schema": f"{NAME}2", "figures": figures, "trials": trials}


def each(value: Any, change: Callable[[Document], Document]) -> Any:  # noqa: ANN401 - JSON
    """A list with its tables changed; what is none stays as it is, for its reader to refuse."""
    return [change(it) if isinstance(it, dict) else it for it in value] if isinstance(value, list) else value


def worst_s(document: Mapping[str, Any]) -> float:
    """The largest error in seconds that was told of a node's clock; 0 where all nodes have the harness' own."""
    figures = document.get("figures")
    tables = [it for it in figures if isinstance(it, dict)] if isinstance(figures, list) else []
    told = [it["values"] for it in tables if it.get("name") == "clock_error" and isinstance(it.get("values"), list)]
    return max((float(ms) for values in told for ms in values if sensible(ms)), default=0.0) / 1000


MIGRATIONS: Mapping[int, Callable[[Mapping[str, Any]], Document]] = {1: second}
"""Version → what makes the next one of it."""
