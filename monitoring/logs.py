"""Ships a run's logs to Loki, by its push API over HTTP. Called by `pg monitoring ship-logs`.

Labels are few, because each combination is a stream of its own in Loki: job, suite, run, trial, node. Rank, step, level
and message are in the line, a JSON object: `{run="…"} | json | rank = 0`. A line that has no time of its own is sent
with that of the line before and a nanosecond more, so that the order stays. Sending again changes nothing: Loki keeps
one of two entries with the same labels, time and text.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import islice

from proving_ground.bench import loglines
from proving_ground.bench.loglines import LogLine
from proving_ground.bench.rundir import RunDir

BATCH = 1000  # lines a request; Loki refuses more than 4 MB by default
TIMEOUT_S = 10.0
PUSH = "/loki/api/v1/push"
JOB = "proving-ground"


class ShippingError(ConnectionError):
    """Loki could not be reached, or refused: one line with what and where."""


def ship(run: RunDir, url: str) -> int:
    """Send every line of a run's logs to the Loki at `url` (without a path); how many were sent.

    Raises:
        RunDirError: there are no logs.
        ShippingError: what was sent before stays sent; the same call again completes it.
    """
    sent = 0
    entries = stamped(run)
    while batch := list(islice(entries, BATCH)):
        push(url, {"streams": streams(run, batch)})
        sent += len(batch)
    return sent


def stamped(run: RunDir) -> Iterator[tuple[int, LogLine]]:
    """(Unix time in ns, line) of every line; within a process' log no time comes twice."""
    clock = loglines.clock(run)
    last: dict[tuple[str, str, int], int] = {}
    for line in loglines.lines(run):
        process = (line.trial, line.node, line.slot)
        moment = round((clock.wall_s + (clock.t if line.t is None else line.t) - clock.t) * 1e9)
        last[process] = max(moment, last.get(process, 0) + 1)
        yield last[process], line


def streams(run: RunDir, batch: Iterable[tuple[int, LogLine]]) -> list[dict[str, object]]:
    """The lines as Loki's streams, one for each trial and node."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for moment, line in batch:
        text = {"slot": line.slot, "rank": line.rank, "step": line.step, "level": line.level, "message": line.message}
        known = {key: value for key, value in text.items() if value not in (None, "")}
        found.setdefault((line.trial, line.node), []).append([str(moment), json.dumps(known)])
    about = {"job": JOB, "suite": run.suite, "run": run.run_id}
    return [{"stream": {**about, "trial": key[0], "node": key[1]}, "values": found[key]} for key in found]


def push(url: str, document: dict[str, object]) -> None:
    """One request.

    Raises:
        ShippingError: as `ship`.
    """
    where = url.rstrip("/") + PUSH
    if not where.startswith(("http://", "https://")):
        raise ShippingError(f"--loki {url}: allowed: http://HOST:PORT or https://HOST:PORT")
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(where, json.dumps(document).encode(), head)  # noqa: S310 - looked at above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - same
            return
    except urllib.error.HTTPError as error:
        raise ShippingError(f"{where}: {error.code}: {first_line(error.read())}") from None
    except OSError as error:
        raise ShippingError(f"{where}: {getattr(error, 'reason', error)}") from None


def first_line(answer: bytes) -> str:
    """What a server says when it refuses, in one line."""
    return (answer.decode(errors="replace").splitlines() or ["no reason given"])[0][:300]
