"""What our rendezvous does beyond torch's: whose heartbeat counts as missing, and what a change of membership is."""

from __future__ import annotations

import datetime as dt
import gc
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousParameters

from proving_ground.training.recovery import rendezvous
from proving_ground.training.recovery.rendezvous import (
    EXPIRY_S,
    FIRST_CALL_S,
    HEARTBEAT_S,
    LAST_CALL_S,
    STORE_S,
    Handler,
    Observed,
    Timeouts,
)

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def test_a_node_is_dead_when_its_heartbeat_stood_still_on_our_clock() -> None:
    seen = Observed()
    assert seen.dead({"a": NOW, "b": NOW}, 100.0) == []
    assert seen.dead({"a": NOW + dt.timedelta(seconds=1), "b": NOW}, 100.0 + EXPIRY_S + 0.1) == ["b"]


def test_who_finds_the_coordinator_again_later_than_we_do_is_not_struck_off() -> None:
    """Its heartbeat stands still as long as it has no connection; once it is seen to beat, the usual time holds."""
    seen = Observed(since=100.0 + STORE_S)
    for t in (100.0, 100.0 + STORE_S + EXPIRY_S - 0.1):
        assert seen.dead({"a": NOW, "b": NOW}, t) == []
    later = {"a": NOW + dt.timedelta(seconds=1), "b": NOW}
    assert seen.dead(later, 100.0 + STORE_S + EXPIRY_S + 0.1) == ["b"]
    assert seen.dead(later, 100.0 + STORE_S + 2 * EXPIRY_S + 0.2) == ["a", "b"]


def test_a_coordinator_that_does_not_listen_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself torch tries again and again, ever more slowly: it is back long before it looks again."""
    monkeypatch.setattr(c10d_rendezvous_backend, "create_backend", lambda _: pytest.fail("torch tries again and again"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = RendezvousParameters("c10d", f"127.0.0.1:{free.getsockname()[1]}", "job", 1, 1)
    with pytest.raises(RendezvousConnectionError, match=r"no coordinator at .*refused"):
        rendezvous.connected(where)


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_is_wrong_makes_nobody_dead(hours: int) -> None:
    seen = Observed()
    wrong = NOW + dt.timedelta(hours=hours)
    for second in range(10):
        assert seen.dead({"a": wrong + dt.timedelta(seconds=second)}, 100.0 + second) == []


def test_who_left_and_comes_back_is_seen_anew() -> None:
    seen = Observed()
    seen.dead({"a": NOW}, 100.0)
    assert seen.dead({}, 101.0) == []
    assert seen.dead({"a": NOW}, 100.0 + 2 * EXPIRY_S) == []


@pytest.mark.parametrize(("ahead_s", "due"), [(0.0, False), (-2 * HEARTBEAT_S, True), (60.0, True), (-60.0, True)])
def test_a_clock_that_was_set_back_silences_no_node(ahead_s: float, due: bool) -> None:  # noqa: FBT001 - a table's column
    """`ahead_s`: how far ahead of the clock now the node's own last heartbeat is."""
    beat = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ahead_s)
    settings = SimpleNamespace(keep_alive_interval=dt.timedelta(seconds=HEARTBEAT_S))
    context = SimpleNamespace(node="a", state=SimpleNamespace(last_heartbeats={"a": beat}), settings=settings)
    assert rendezvous.beat_due(context) is due
    context.node = "b"
    assert not rendezvous.beat_due(context), "who was struck off does not come back by itself"


def test_the_last_call_is_longer_when_the_job_starts() -> None:
    timeouts = Timeouts()
    assert timeouts.last_call.total_seconds() == FIRST_CALL_S
    timeouts.round = lambda: 1
    assert timeouts.last_call.total_seconds() == LAST_CALL_S


def test_torch_still_has_the_seams_that_are_used() -> None:
    assert dynamic._delay is rendezvous.look_again  # type: ignore[attr-defined]
    assert dynamic._should_keep_alive is rendezvous.beat_due
    assert hasattr(dynamic, "_remove_participant_epilogue")
    assert hasattr(dynamic._BackendRendezvousStateHolder, "_sanitize")


@pytest.fixture
def coordinator() -> Iterator[str]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    yield f"127.0.0.1:{store.port}"
    del store


def alone(endpoint: str) -> Handler:
    """A job of one node that has met."""
    handler = rendezvous.handler(endpoint, "job", (1, 1), "127.0.0.1")
    assert handler.next_rendezvous().world_size == 1
    return handler


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_connecting_again_and_again_leaves_no_descriptor_open(coordinator: str) -> None:
    """Each connection once copied whatever was open, so that it doubled with every reconnection."""
    handler = alone(coordinator)
    handler.connect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        handler.connect()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5
    handler.leave()


def test_nothing_changes_as_long_as_all_are_there(coordinator: str) -> None:
    handler = alone(coordinator)
    assert handler.num_nodes_waiting() == 0
    handler.leave()


def test_a_node_that_was_expelled_notices_at_once(coordinator: str) -> None:
    handler = alone(coordinator)
    handler.leave()  # as if the others had struck it off
    assert handler.num_nodes_waiting() == 1


def test_two_launchers_of_one_process_number_are_two_nodes(coordinator: str) -> None:
    first, second = (rendezvous.handler(coordinator, "job", (1, 2), "127.0.0.1") for _ in range(2))
    assert first._this_node != second._this_node


def test_a_coordinator_without_its_memory_is_told_what_had_been_agreed(coordinator: str) -> None:
    handler = alone(coordinator)
    told: list[str] = []
    handler.tell = told.append
    other = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    handler.connect = rendezvous.handler(f"127.0.0.1:{other.port}", "job", (1, 1), "127.0.0.1").connect
    before = time.monotonic()
    handler._reconnect()
    assert handler._state_holder._observed.since >= before + STORE_S, "the others need their time, too"
    assert told == ["lost", "found"]
    assert handler.num_nodes_waiting() == 0
    handler.leave()
