"""Kubernetes' events on the harness' clock: each once, those of the run alone, no surer than they are."""

from __future__ import annotations

import time
from typing import Any

import pytest

from proving_ground.bench.clusters.remote.story import ServerClock, Story, seconds

CREATED = "2026-01-01T00:00:10Z"
CREATED_S = 1_767_225_610.0


def event(kind: str, name: str, at: str, uid: str = "u", count: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": kind, "name": name}, "metadata": {"uid": uid, "creationTimestamp": CREATED},
        "lastTimestamp": at, "count": count, **more,
    }  # fmt: skip


def story(ahead_s: float = 0.0) -> Story:
    return Story("pg-1", ServerClock(ahead_s, 0.2), {"host-a"})


def test_the_job_bounds_the_clock_of_the_api_server() -> None:
    assert seconds(CREATED) == CREATED_S
    found = ServerClock.of_object(CREATED, CREATED_S - 100.0, CREATED_S - 99.5)
    assert (found.ahead_s, found.error_s) == (100.25, 0.75)  # by their word it was between 99.5 and 101
    for at_s in (0.0, 0.4, 0.999):  # whenever in its second it really was made, and the clocks agree
        found = ServerClock.of_object(CREATED, CREATED_S + at_s - 0.1, CREATED_S + at_s + 0.1)
        assert abs(found.ahead_s) <= found.error_s


@pytest.mark.parametrize("ahead_s", [0.0, 86_400.0])
def test_a_moment_is_on_the_harness_clock_and_says_how_wrong_it_may_be(ahead_s: float) -> None:
    now, now_t = time.time(), time.monotonic()
    coarse = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + ahead_s))
    (found,) = story(ahead_s).more([event("Pod", "pg-1-0-abc", coarse, reason="Started", message="it\n runs")])
    assert (found["about"], found["node"], found["reason"], found["message"]) == (
        "Pod/pg-1-0-abc", "n1", "Started", "it runs",
    )  # fmt: skip
    assert abs(found["at_t"] - now_t) < found["error_s"] + 0.5
    assert found["error_s"] == 0.7
    fine = event("Pod", "pg-1-1-abc", "", eventTime="2026-01-01T00:00:10.250000Z")
    assert [it["error_s"] for it in story().more([fine])] == [0.2]


def test_each_is_told_once_and_again_when_it_came_again() -> None:
    made, once = story(), event("Pod", "pg-1-0-abc", CREATED)
    assert [it["times"] for it in made.more([once])] == [1]
    assert list(made.more([once])) == []
    assert [it["times"] for it in made.more([event("Pod", "pg-1-0-abc", CREATED, count=3)])] == [3]


def test_only_what_is_about_the_run_and_its_machines() -> None:
    events = [
        event("Job", "pg-1", "2026-01-01T00:00:12Z", "a"), event("Pod", "pg-2-0-abc", CREATED, "b"),
        event("Node", "host-a", "2026-01-01T00:00:11Z", "c"), event("Node", "host-b", CREATED, "d"),
    ]  # fmt: skip
    assert [(it["about"], it["node"]) for it in story().more(events)] == [("Node/host-a", ""), ("Job/pg-1", "")]
