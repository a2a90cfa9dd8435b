"""Figures and verdicts from the lines of a load. Called by `serving.commands`; a sealed directory in, a document out.

The document is of the form that `reports/results.schema.json` describes. A request counts for the level in which it
began, unless that was in the level's first `SETTLE_S`, or it ended in a later level.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.rundir import RunDir, RunDirError
from reports import intervals
from serving.load import ORDERS, REQUESTS

SETTLE_S = 1.0  # locust changes the number of users once a second
P99_NEEDS = 100  # requests; of fewer the 99th percentile is but the largest
MORE = 1.1
"""Saturated from the first level on which no higher one gives 10 % more requests a second than it."""
LABEL = "emulated"
"""Users, proxy and replicas share one machine's cores."""
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
Figure = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request: when it began and ended, by the wall clock, and whether it was answered."""

    begin_s: float
    end_s: float
    ok: bool
    error: str


@dataclass(frozen=True)
class Level:
    """So many users from a moment to another, and the requests that count for it."""

    users: int
    begin_s: float
    end_s: float
    requests: Sequence[Request]

    @property
    def counted_s(self) -> float:
        """What the requests are counted over."""
        return self.end_s - self.begin_s - SETTLE_S


@dataclass(frozen=True)
class Load:
    """A load as it was recorded."""

    run: RunDir
    orders: Mapping[str, Any]
    about: Mapping[str, Any]
    levels: Sequence[Level]  # without the one of the kill
    requests: Sequence[Request]
    kill: Mapping[str, Any] | None
    killed: Level | None


def read(run: RunDir) -> Load:
    """A load out of its directory.

    Raises:
        RunDirError: it is none, or was cut off.
    """
    about = run.read(ORDERS)
    orders = about.pop("orders")
    if not run.read("seal")["complete"]:
        raise RunDirError(f"{run.path}: was cut off")
    lines = [json.loads(line) for line in (run.events / f"{REQUESTS}.jsonl").read_text().splitlines()]
    begun = [float(it["wall_s"]) for it in lines if it["event"] == "level"]
    requests = [
        Request(it["wall_s"], it["wall_s"] + it["seconds"], not it["error"] and it["status"] == 200, it["error"])
        for it in lines if it["event"] == "request"
    ]  # fmt: skip
    users = list(orders["users"]) * orders["repeats"]
    users += [max(users)] if orders["kill"] else []
    if len(begun) <= len(users):
        raise RunDirError(f"{run.path}: {len(begun)} of {len(users)} levels were begun")
    levels = [
        level(number, begin_s, end_s, requests)
        for number, begin_s, end_s in zip(users, begun[:-1], begun[1:], strict=True)
    ]
    kill = run.read("kill") if orders["kill"] else None
    rest = levels[:-1] if kill else levels
    return Load(run, orders, about, rest, requests, kill, levels[-1] if kill else None)


def level(users: int, begin_s: float, end_s: float, requests: Sequence[Request]) -> Level:
    """A level with its requests."""
    first = begin_s + SETTLE_S
    return Level(users, begin_s, end_s, [it for it in requests if first <= it.begin_s and it.end_s <= end_s])


def document(load: Load) -> dict[str, Any]:
    """What `results.json` holds."""
    return {
        "schema": "proving-ground/results/1", "suite": load.run.suite, "run_id": load.run.run_id, "cluster": "local",
        "figures": list(figures(load)), "verdicts": list(verdicts(load)), "trials": [],
    }  # fmt: skip


def figures(load: Load) -> Iterator[Figure]:
    """Of each number of users, then of all, then of the kill."""
    by_users = {users: [it for it in load.levels if it.users == users] for users in load.orders["users"]}
    for users, levels in by_users.items():
        where = {"users": users}
        good = [[it for it in one.requests if it.ok] for one in levels]
        rates = [len(them) / one.counted_s for them, one in zip(good, levels, strict=True)]
        yield from made("requests_per_s", "1/s", where, rates)
        yield from made("p50", "ms", where, [percentile(them, 50) for them in good if them])
        enough = [them for them in good if len(them) >= P99_NEEDS]
        yield from made("p99", "ms", where, [percentile(them, 99) for them in enough])
        failed = [sum(not it.ok for it in one.requests) / len(one.requests) for one in levels if one.requests]
        yield from made("error_share", "", where, failed, ratio=False)
    if (found := saturation({users: rate(levels) for users, levels in by_users.items()})) is not None:
        yield from made("saturation_users", "users", {}, [float(found)], ratio=False)
    if load.kill:
        flying = in_flight(load)
        yield from made("in_flight_at_kill", "requests", {}, [float(len(flying))], ratio=False)
        yield from made("lost_at_kill", "requests", {}, [float(len(lost(load)))], ratio=False)


def made(
    name: str, unit: str, where: Mapping[str, Any], values: Sequence[float], *, ratio: bool = True
) -> Iterator[Figure]:
    """One figure, or none where nothing was measured."""
    if not values:
        return
    middle = median(values)
    positive = ratio and all(it > 0 for it in values)
    interval = (
        intervals.ratio_interval(middle, intervals.constant_draws(values))
        if positive
        else intervals.plain_interval(middle, values)
    )
    ends = list(interval) if interval and all(map(math.isfinite, interval)) else None
    yield {"name": name, "unit": unit, "label": LABEL, "where": dict(where), "n": len(values), "median": middle,
           "ci95": ends, "values": list(values)}  # fmt: skip


def percentile(requests: Sequence[Request], share: float) -> float:
    """Of the seconds that requests took, in ms."""
    return float(np.percentile([it.end_s - it.begin_s for it in requests], share)) * 1000


def rate(levels: Sequence[Level]) -> float:
    """Answers a second, the median over the repeats."""
    return median(sum(request.ok for request in it.requests) / it.counted_s for it in levels)


def saturation(rates: Mapping[int, float]) -> int | None:
    """Users at which the end point is saturated; None where the highest level does not show that.

    The first level than which no higher one gives 10 % more answers a second.
    """
    ordered = sorted(rates)
    for place, users in enumerate(ordered[:-1]):
        if rates[users] > 0 and max(rates[it] for it in ordered[place + 1 :]) < MORE * rates[users]:
            return users
    return None


def in_flight(load: Load) -> list[Request]:
    """Requests that were begun before the replica was shot, and had not ended."""
    kill = load.kill or {}
    return [it for it in load.requests if it.begin_s <= kill["before_s"] <= it.end_s]


def while_dying(load: Load) -> list[Request]:
    """Requests that were begun after that, while the kernel still took connections for the dead process."""
    kill = load.kill or {}
    return [it for it in load.requests if kill["before_s"] < it.begin_s <= kill["after_s"]]


def lost(load: Load) -> list[Request]:
    """Requests of the kill's level that were not answered."""
    begin_s = load.killed.begin_s if load.killed else math.inf
    return [it for it in load.requests if it.begin_s >= begin_s and not it.ok]


def verdicts(load: Load) -> Iterator[dict[str, Any]]:
    """Errors where nothing was broken, and what a kill has cost."""
    end_s = load.killed.begin_s if load.killed else math.inf
    before = [it for it in load.requests if it.begin_s < end_s]
    bad = [it for it in before if not it.ok]
    why = f"{len(bad)} of {len(before)} requests failed" + (f", the first: {bad[0].error}" if bad else "")
    yield judged("errors", FAIL if bad else PASS if before else UNKNOWN, why)
    if load.kill:
        yield judged("lost_requests", *of_kill(load))


def of_kill(load: Load) -> tuple[str, str]:
    """Whether a killed replica has cost more than what was in flight."""
    kill, gone, flying, dying = load.kill or {}, lost(load), in_flight(load), while_dying(load)
    outside = [it for it in gone if it not in flying and it not in dying]
    after = [it for it in load.requests if it.begin_s > kill["after_s"] and it.ok]
    counts = (
        f"{len(gone)} lost: {sum(it in flying for it in gone)} of {len(flying)} in flight at the kill, "
        f"{sum(it in dying for it in gone)} of {len(dying)} begun while it died; {len(after)} answered after it"
    )
    if not kill["gone"]:
        return UNKNOWN, f"{kill['replica']} still answered after SIGKILL; {counts}"
    if outside:
        return FAIL, f"{len(outside)} lost requests were not in flight at the kill; {counts}"
    if not after:
        return FAIL, f"nothing was answered after the kill; {counts}"
    if not flying:
        return UNKNOWN, f"no request was in flight at the kill; {counts}"
    return PASS, counts


def judged(check: str, verdict: str, why: str) -> dict[str, Any]:
    """One verdict."""
    return {"check": check, "verdict": verdict, "why": why, "where": {}}


def overall(document: Mapping[str, Any]) -> str:
    """All verdicts together."""
    found = {it["verdict"] for it in document["verdicts"]}
    return FAIL if FAIL in found else UNKNOWN if UNKNOWN in found else PASS
