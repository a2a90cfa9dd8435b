"""Figures and verdicts from the lines of a load. Called by `serving.commands`; a sealed directory in, a document out.

The document is of the form that `reports/results.schema.json` describes. Of each level the first `SETTLE_S` are left
out. Answers a second are those that came in the rest; times and errors are of the requests that began in it, whenever
they ended. A request that never ended was not answered.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports import intervals
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from proving_ground.serving.load import ORDERS, REQUESTS, SEALED
from proving_ground.serving.model import TOLERANCE, difference
from proving_ground.serving.servers import SERVED

SETTLE_S = 1.0  # locust changes the number of users once a second
P99_NEEDS = 100  # requests; of fewer the 99th percentile is but the largest
MORE = 1.1
"""Saturated from the first level on which no higher one gives 10 % more requests a second than it."""
BUSY = 0.9  # of a core, from which locust itself warns that it may be what is slow
DYING_S = 1.0
"""A killed process is gone by then; where it was not, nothing tells what its death has cost."""
Figure = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request: when it began and ended, by the wall clock, whether it was answered, and by which replica."""

    begin_s: float
    end_s: float  # infinite: never
    ok: bool
    error: str
    replica: str  # empty: nothing says which


@dataclass(frozen=True)
class Mark:
    """The begin of a level: when, what of a core locust had used until then, and how many users there were."""

    wall_s: float
    cpu_s: float
    users_before: int


@dataclass(frozen=True)
class Level:
    """So many users from a moment to another, and what counts for it."""

    users: int
    begin: Mark
    end: Mark
    requests: Sequence[Request]  # that began in it
    answered: Sequence[Request]  # that were answered in it, whenever they began

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.answered) / (self.end.wall_s - self.begin.wall_s - SETTLE_S)

    @property
    def cores(self) -> float:
        """What of a core locust used."""
        return (self.end.cpu_s - self.begin.cpu_s) / (self.end.wall_s - self.begin.wall_s)


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
        RunDirError: it is none, was cut off, or is not as it was sealed.
    """
    about = run.read(ORDERS)
    orders, answer = about.pop("orders"), about.pop("answer")
    if differs := rundir.verify(run, SEALED):
        raise RunDirError(f"{run.path}: is not as it was sealed: {'; '.join(differs[:3])}")
    if not run.read("seal")["complete"]:
        raise RunDirError(f"{run.path}: was cut off")
    lines = [json.loads(line) for line in (run.events / f"{REQUESTS}.jsonl").read_text().splitlines()]
    requests = requests_of(lines, answer, replicas_of(run))
    marks = [Mark(it["wall_s"], it["cpu_s"], it["users_before"]) for it in lines if it["event"] == "level"]
    users = list(orders["users"]) * orders["repeats"]
    users += [max(users)] if orders["kill"] else []
    if len(marks) <= len(users):
        raise RunDirError(f"{run.path}: {len(marks)} of {len(users)} levels were begun")
    levels = [level(*it, requests) for it in zip(users, marks[:-1], marks[1:], strict=True)]
    kill = run.read("kill") if orders["kill"] else None
    rest = levels[:-1] if kill else levels
    return Load(run, orders, about, rest, requests, kill, levels[-1] if kill else None)


def replicas_of(run: RunDir) -> dict[int, str]:
    """A request's number → the replica that HAProxy sent it to; empty where there was no HAProxy."""
    log = run.logs / "haproxy.log"
    words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return {int(it[1]): it[2] for it in words if len(it) == 3 and it[0] == SERVED and it[1].isdecimal()}


def requests_of(
    lines: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], replicas: Mapping[int, str]
) -> list[Request]:
    """Every request that was begun; one is answered where the answer is the model's."""
    good = {it["sha256"] for it in lines if it["event"] == "body" and same(it["text"], answer)}
    ends = {it["number"]: it for it in lines if it["event"] == "end"}
    return [
        request(it["wall_s"], ends.get(it["number"]), good, replicas.get(it["number"], ""))
        for it in lines if it["event"] == "begin"
    ]  # fmt: skip


def request(begin_s: float, end: Mapping[str, Any] | None, good: Container[str], replica: str) -> Request:
    """A request from its two lines, or the one."""
    if end is None:
        return Request(begin_s, math.inf, ok=False, error="never ended", replica=replica)
    error = str(end["error"]) or (f"status {end['status']}" if end["status"] != http.client.OK else "")
    error = error or ("" if end["body"] in good else "another answer than the model's")
    return Request(begin_s, begin_s + end["seconds"], not error, error, replica)


def same(text: str, answer: Mapping[str, Any]) -> bool:
    """Whether a body is the model's answer, as `serving.check` holds it to it."""
    try:
        found = json.loads(text)["predictions"]
        return set(found) == set(answer) and all(difference(found[it], answer[it]) <= TOLERANCE for it in answer)
    except (ValueError, KeyError, TypeError):
        return False


def level(users: int, begin: Mark, end: Mark, requests: Sequence[Request]) -> Level:
    """A level with its requests."""
    first_s, last_s = begin.wall_s + SETTLE_S, end.wall_s
    begun = [it for it in requests if first_s <= it.begin_s < last_s]
    return Level(users, begin, end, begun, [it for it in requests if it.ok and first_s <= it.end_s < last_s])


def document(load: Load) -> dict[str, Any]:
    """What `results.json` holds."""
    return {
        "schema": contract.SCHEMA, "suite": load.run.suite, "run_id": load.run.run_id, "cluster": "local",
        "figures": list(figures(load)), "verdicts": list(verdicts(load)), "trials": [],
    }  # fmt: skip


def label_of(load: Load) -> str:
    """`emulated` where users, proxy and replicas share the cores of this machine."""
    return "emulated" if all(map(is_here, load.orders["urls"])) else "real"


def is_here(url: str) -> bool:
    """Whether an address is of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def figures(load: Load) -> Iterator[Figure]:
    """All figures, with the label of this load."""
    return ({**it, "label": label_of(load)} for it in unlabelled(load))


def unlabelled(load: Load) -> Iterator[Figure]:
    """Of each number of users, then of all, then of the kill."""
    by_users = {users: [it for it in load.levels if it.users == users] for users in load.orders["users"]}
    for users, levels in by_users.items():
        where = {"users": users}
        good = [[it for it in one.requests if it.ok] for one in levels]
        yield from made("requests_per_s", "1/s", where, [it.rate for it in levels])
        yield from made("p50", "ms", where, [percentile(them, 50) for them in good if them])
        enough = [them for them in good if len(them) >= P99_NEEDS]
        yield from made("p99", "ms", where, [percentile(them, 99) for them in enough])
        yield from made("longest", "ms", where, [percentile(them, 100) for them in good if them])
        failed = [sum(not it.ok for it in one.requests) / len(one.requests) for one in levels if one.requests]
        yield from made("error_share", "", where, failed, ratio=False)
        yield from made("locust_cores", "cores", where, [it.cores for it in levels], ratio=False)
    if (found := saturation(rates(load))) is not None and not slow_users(load):
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
    yield {"name": name, "unit": unit, "where": dict(where), "n": len(values), "median": middle,
           "ci95": ends, "values": list(values)}  # fmt: skip


def percentile(requests: Sequence[Request], share: float) -> float:
    """Of the seconds that requests took, in ms."""
    return float(np.percentile([it.end_s - it.begin_s for it in requests], share)) * 1000


def rates(load: Load) -> dict[int, float]:
    """Users → answers a second, the median over the repeats."""
    return {users: median(it.rate for it in load.levels if it.users == users) for users in load.orders["users"]}


def slow_users(load: Load) -> str:
    """Why a rate that does not grow may be due to locust and not to the end point; empty where it is not."""
    found = saturation(rates(load)) or math.inf
    for it in load.levels:
        if it.users >= found and it.cores > BUSY:
            return f"locust used {it.cores:.2f} of a core at {it.users} users, more than {BUSY:g}"
        if it.users >= found and it.end.users_before != it.users:
            return f"locust had {it.end.users_before} users instead of {it.users}"
    return ""


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
    begin_s = load.killed.begin.wall_s if load.killed else math.inf
    return [it for it in load.requests if it.begin_s >= begin_s and not it.ok]


def verdicts(load: Load) -> Iterator[dict[str, Any]]:
    """Errors where nothing was broken, and what a kill has cost."""
    end_s = load.killed.begin.wall_s if load.killed else math.inf
    before = [it for it in load.requests if it.begin_s < end_s]
    bad = [it for it in before if not it.ok]
    why = f"{len(bad)} of {len(before)} requests failed" + (f", the first: {bad[0].error}" if bad else "")
    yield judged("errors", FAIL if bad else PASS if before else UNKNOWN, why)
    if load.kill:
        yield judged("lost_requests", *of_kill(load))


def of_kill(load: Load) -> tuple[str, str]:
    """Whether a killed replica has cost more than what it had in hand."""
    kill, gone = load.kill or {}, lost(load)
    flying, dying = in_flight(load), while_dying(load)
    mine, late = ([it for it in them if it.replica == kill["replica"]] for them in (flying, dying))
    outside = [it for it in gone if it not in [*flying, *dying] or it.replica not in ("", kill["replica"])]
    untold = [it for it in gone if it not in outside and not it.replica]
    after = [it for it in load.requests if it.begin_s > kill["after_s"] and it.ok]
    counts = (
        f"{len(gone)} lost: {sum(it in gone for it in mine)} of {len(mine)} in flight at the kill, "
        f"{sum(it in gone for it in late)} of {len(late)} begun while it died (at {kill['replica']}); "
        f"{len(after)} answered after it"
    )
    took_s = kill["after_s"] - kill["before_s"]
    unknown = {
        f"{kill['replica']} still answered after SIGKILL": not kill["gone"],
        f"{kill['replica']} took {took_s:.1f} s to die, more than {DYING_S:g}": took_s > DYING_S,
        f"nothing says at which replica {len(untold)} lost requests were": bool(untold),
        f"no request was in flight at {kill['replica']}": not mine,
    }
    fail = {
        f"{len(outside)} lost requests were not in flight at {kill['replica']}": bool(outside),
        "nothing was answered after the kill": not after,
    }
    for verdict, reasons in ((FAIL, fail if kill["gone"] else {}), (UNKNOWN, unknown)):
        if found := next((why for why, so in reasons.items() if so), None):
            return verdict, f"{found}; {counts}"
    return PASS, counts


def judged(check: str, verdict: str, why: str) -> dict[str, Any]:
    """One verdict."""
    return {"check": check, "verdict": verdict, "why": why, "where": {}}


def overall(document: Mapping[str, Any]) -> str:
    """All verdicts together."""
    found = {it["verdict"] for it in document["verdicts"]}
    return FAIL if FAIL in found else UNKNOWN if UNKNOWN in found else PASS
