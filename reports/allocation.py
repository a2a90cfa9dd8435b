"""How a run had its machines: its time in the queue, and what the site counted. Called by both kinds of report.

Both belong to the run, and none of it to a trial. The site's moments are whole seconds on its own clock: they are
shown, and nothing is measured with them. What functions here are given are the run's `queued`, `cluster_up` and
`accounting` events, in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from proving_ground.reports import numbers
from proving_ground.reports.figures import DECIMALS, Figure

Record = Mapping[str, Any]
COUNTED = {"node": "nodes", "CPU": "cpus", "GPU": "gpus"}
"""What hours are of → the field of a begin that says how many."""
MOST_WHY = 3  # reasons in a sentence


@dataclass(frozen=True)
class Wait:
    """How long one sitting of a run stood in the queue, and for what, in the engine's words."""

    seconds: float
    why: tuple[str, ...]

    @property
    def words(self) -> str:
        """`41 s: Resources`."""
        took = f"{self.seconds:.{0 if self.seconds >= 10 else 1}f} s"
        more = ", …" if len(self.why) > MOST_WHY else ""
        return f"{took}: {', then '.join(self.why[:MOST_WHY])}{more}" if self.why else took


def waits(told: Sequence[Record]) -> list[Wait]:
    """One for each time that the machines were had; older runs did not say."""
    found, why = list[Wait](), list[str]()
    for it in told:
        if it["event"] == "queued" and not it.get("node"):  # of a node that was lost: in its recovery
            why.append(reason(str(it.get("why", ""))))
        elif it["event"] == "cluster_up":
            if (queued_s := it.get("queued_s")) is not None:
                found.append(Wait(float(queued_s), tuple(dict.fromkeys(why))))
            why = []
    return found


def reason(said: str) -> str:
    """`Resources` of `job 7 is pending: Resources`."""
    return said.partition(": ")[2] or said


def begins(told: Sequence[Record]) -> list[Mapping[str, Any]]:
    """Every begin of the run's jobs that the site's accounting has."""
    return [begin for it in told if it["event"] == "accounting" for begin in it.get("begins", ())]


def why_not(told: Sequence[Record]) -> str:
    """Why what the site counted is not known, or not all of it; empty: it is."""
    asked = [it for it in told if it["event"] == "accounting"]
    if why := next((str(it["why"]) for it in asked if it.get("why")), ""):
        return why
    sittings = sum(it["event"] == "cluster_up" for it in told)
    return f"{sittings - len(asked)} of {sittings} sittings did not ask" if 0 < len(asked) < sittings else ""


def hours(told: Sequence[Record]) -> dict[str, float]:
    """What hours are of → how many of them; what the site does not count is left out."""
    found = {
        of: sum(float(it["elapsed_s"]) * float(it.get(field) or 0) for it in begins(told)) / 3600
        for of, field in COUNTED.items()
    }
    return {of: value for of, value in found.items() if value}


def figures(told: Sequence[Record], plan: Mapping[str, Any]) -> Iterator[Figure]:
    """The run's seconds in the queue, and the hours that it is charged for, where all of that is known."""
    labels = {str(trial.get("label", "emulated")) for trial in plan["trials"]}
    label = "real" if labels == {"real"} else "emulated"
    if values := [it.seconds for it in waits(told)]:
        yield figure("queued_s", "s", label, values)
    for of, value in hours(told).items() if not why_not(told) else ():
        yield figure("charged_hours", "h", label, [value], of=of)


def figure(name: str, unit: str, label: str, values: Sequence[float], **where: str) -> Figure:
    """One row of the contract; what was seen once has no interval."""
    every = [round(value, DECIMALS) for value in values]
    return {
        "name": name, "unit": unit, "label": label, "where": where, "n": len(every), "median": median(every),
        "ci95": None, "values": every,
    }  # fmt: skip


def charged(told: Sequence[Record]) -> str:
    """`0.05 node-hours, 3.2 CPU-hours in 2 begins`; empty where the site counted nothing."""
    found, count = hours(told), len(begins(told))
    if not found:
        return ""
    said = ", ".join(f"{numbers.short(value)} {of}-hours" for of, value in found.items())
    least = "at least " if why_not(told) else ""
    return f"{least}{said} in {count} begin{'s' * (count != 1)}"


def facts(told: Sequence[Record]) -> list[tuple[str, str]]:
    """For the list at the end of a page: (`in the queue`, `41 s: Resources`) …."""
    why, counted = why_not(told), charged(told)
    account = "; ".join(filter(None, [counted, why]))
    waited = "; ".join(it.words for it in waits(told))
    return [it for it in (("in the queue", waited), ("the site's accounting", account)) if it[1]]


def lines(told: Sequence[Record]) -> list[str]:
    """The same for the terminal; that a site counts nothing is no news there."""
    queue = [f"In the queue {it.words}" for it in waits(told)]
    counted = charged(told)
    return [f"{it}." for it in (*queue, *([f"The site's accounting: {counted}"] if counted else []))]


def table(told: Sequence[Record]) -> dict[str, Any]:
    """What the page shows of the site's accounting: `rows`, a begin each, and what is to be said of them."""
    rows = [
        {**it, "elapsed": numbers.short(float(it["elapsed_s"])), "times": [readable(str(it[key])) for key in TIMES]}
        for it in begins(told)
    ]
    return {"rows": rows, "gpus": any(it.get("gpus") for it in rows), "words": charged(told), "why": why_not(told)}


TIMES = ("submit", "eligible", "start", "end")


def readable(moment: str) -> str:
    """`2026-11-25 17:34:01 UTC`; without the zone where it is not known; a gap for what did not come."""
    return moment.replace("T", " ").replace("+00:00", " UTC") or numbers.GAP
