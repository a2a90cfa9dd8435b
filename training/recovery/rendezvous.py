"""Where the nodes of a job agree on who takes part: torch elastic's rendezvous, with its known defects closed.

Called by `training.recovery.launch`. The store behind it is `pg training coordinator`, on a machine of its own. What
differs from torch's own handler:

- A node is dead when its heartbeat has not changed for `EXPIRY_S` on *our* clock; torch compares clocks of machines,
  and a node whose clock is set back sends no heartbeat until it has caught up.
- That a node was expelled, this one or another, is a change of membership at once; torch waits until somebody new
  knocks, for ever if need be.
- A coordinator that is gone stops nobody; one that comes back without its memory is told what had been agreed.
- Heartbeats and looks several times a second; torch's settings take whole seconds, and it looks once a second.
- A rebooted node is another node, even if it has the same address and process number.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import secrets
import socket
import stat
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HEARTBEAT_S = 0.4
MISSED = 5  # heartbeats: a busy machine delays one, not five in a row
EXPIRY_S = HEARTBEAT_S * MISSED
LOOK_S = 0.1
LAST_CALL_S = 1.0  # how long a smaller world waits for one more node before it goes on
FIRST_CALL_S = 20.0  # the same when the job starts: nodes come up one by one
JOIN_S = 60  # how long a node waits for the others
STORE_S = 3  # an answer of the store that takes longer is none


def look_again(seconds: float | tuple[float, float]) -> None:
    """Wait before the next look at the shared state."""
    del seconds  # torch asks for a second, which cannot be set
    time.sleep(LOOK_S)


def beat_due(context: Any) -> bool:  # noqa: ANN401 - torch's _RendezvousContext
    """Whether our heartbeat is to be renewed; a clock that was set back must not silence us for as long as that."""
    beat = context.state.last_heartbeats.get(context.node)
    return beat is not None and abs(datetime.now(UTC) - beat) >= context.settings.keep_alive_interval


vars(dynamic).update(_delay=look_again, _should_keep_alive=beat_due)


class Timeouts(dynamic.RendezvousTimeout):
    """torch's time-outs, with a longer last call in the first round."""

    round: Callable[[], int] = staticmethod(lambda: 0)

    @property
    def last_call(self) -> timedelta:
        """How long those who are there wait for more."""
        return timedelta(seconds=LAST_CALL_S if self.round() else FIRST_CALL_S)


@dataclass
class Observed:
    """When each node's heartbeat was last seen to change, on this machine's monotonic clock."""

    seen: dict[Any, tuple[datetime, float]] = field(default_factory=dict)
    since: float = -math.inf  # who has not been seen to beat until then is given `EXPIRY_S` more

    def dead(self, heartbeats: dict[Any, datetime], now: float) -> list[Any]:
        """The nodes whose heartbeat has stood still for longer than `EXPIRY_S`; forgets nodes that left."""
        first = max(now, self.since)
        self.seen = {node: self.seen.get(node, (beat, first)) for node, beat in heartbeats.items()}
        for node, beat in heartbeats.items():
            if self.seen[node][0] != beat:
                self.seen[node] = (beat, now)
        return [node for node, (_, t) in self.seen.items() if now - t > EXPIRY_S]


class Unrecorded:
    """Leaves out torch's own event records: each walks the stack through all source files, for half a second."""

    def _record(self, *_what: object, **_about: object) -> None:
        pass


class Executor(Unrecorded, dynamic._DistributedRendezvousOpExecutor):  # noqa: SLF001 - torch has no public seam
    """Carries out what a rendezvous asks for."""


class StateHolder(Unrecorded, dynamic._BackendRendezvousStateHolder):  # noqa: SLF001 - same
    """The shared state as this node sees it; the dead are struck off by what this node has observed itself."""

    def __init__(self, backend: Any, settings: Any) -> None:  # noqa: ANN401 - untyped in torch
        super().__init__(backend, settings)
        self._observed = Observed()

    def use(self, backend: Any) -> None:  # noqa: ANN401 - untyped in torch
        """Go on with another connection; while there was none nobody's heartbeat could be seen.

        The others find the coordinator again in their own time: an attempt takes them up to `STORE_S`.
        """
        self._backend, self._observed = backend, Observed(since=time.monotonic() + STORE_S)

    def _sanitize(self) -> None:
        state = self._state
        self._dead_nodes = self._observed.dead(state.last_heartbeats, time.monotonic())
        removed = False
        for node in self._dead_nodes:
            del state.last_heartbeats[node]
            removed |= state.participants.pop(node, None) is not None
            state.wait_list.discard(node)
            state.redundancy_list.discard(node)
        if removed:
            dynamic._remove_participant_epilogue(state, self._settings)  # noqa: SLF001 - same


class Handler(Unrecorded, dynamic.DynamicRendezvousHandler):
    """torch's handler, but every change of who takes part counts, and the coordinator may come and go."""

    connect: Callable[[], tuple[Any, Any]]
    """Makes a new connection to the store: (backend, store)."""
    _state_holder: StateHolder
    tell: Callable[[str], None] = staticmethod(lambda _what: None)
    """Hears when the coordinator is lost and when it is found again."""
    _remembered: bytes | None = None  # what all agreed on, should the coordinator forget it
    _agreed = 0
    _lost = False
    leaving = False  # nothing that happens to the others matters any more

    def num_nodes_waiting(self) -> int:
        """Nodes that wait to be let in; at least 1 when those who agreed are not all there any more.

        0 while the coordinator does not answer: training needs it only to agree anew.
        """
        if self.leaving:
            return 0
        try:
            waiting: int = super().num_nodes_waiting()
        except RendezvousConnectionError:
            self._reconnect()
            return 0
        state = self._state_holder.state
        here = state.complete and self._this_node in state.participants
        return max(waiting, int(not here or len(state.participants) != self._agreed))

    def next_rendezvous(self) -> Any:  # noqa: ANN401 - torch's RendezvousInfo
        """Meet; waits for a coordinator that does not answer.

        Raises:
            RendezvousError: it did not answer, or not enough nodes came, for `JOIN_S`.
        """
        deadline = time.monotonic() + JOIN_S
        while True:
            try:
                info = super().next_rendezvous()
            except RendezvousConnectionError:
                if time.monotonic() > deadline:
                    raise
                self._reconnect()
            else:
                self._agreed, self._remembered = info.world_size, pickle.dumps(self._state_holder.state)
                return info

    @property
    def round(self) -> int:
        """How often nodes have met before."""
        return int(self._state_holder.state.round)

    def leave(self) -> None:
        """Go, so that the others need not wait until it shows; a coordinator that does not answer is no matter."""
        self._stop_heartbeats()
        if self._lost:
            return
        with contextlib.suppress(RendezvousError):
            self._op_executor.run(dynamic._RendezvousExitOp(), self._get_deadline(self._settings.timeout.close))  # noqa: SLF001 - same

    def _reconnect(self) -> None:
        """Try once to reach the coordinator again; one that has lost its memory is told what had been agreed."""
        if not self._lost:
            self._lost = True
            self.tell("lost")
        try:
            backend, store = self.connect()
            if self._remembered and backend.get_state() is None:
                backend.set_state(self._remembered)
        except RendezvousConnectionError:
            time.sleep(LOOK_S)
            return
        with self._heartbeat_lock:
            self._state_holder.use(backend)
            self._store, self._lost = store, False
        self.tell("found")


def handler(endpoint: str, job: str, nodes: tuple[int, int], address: str) -> Handler:
    """A rendezvous through the store at `endpoint` (host:port) for a job of at least and at most so many nodes.

    Raises:
        RendezvousConnectionError: the store does not answer for `JOIN_S`.
    """
    where = RendezvousParameters(
        backend="c10d", endpoint=endpoint, run_id=job, min_nodes=nodes[0], max_nodes=nodes[1], is_host="false",
        read_timeout=STORE_S,
    )  # fmt: skip
    connect = functools.partial(connected, where)
    backend, store = patiently(connect)
    seconds = {"join": JOIN_S, "close": STORE_S, "heartbeat": EXPIRY_S}
    timeouts = Timeouts(**{name: timedelta(seconds=value) for name, value in seconds.items()})
    settings = dynamic.RendezvousSettings(
        job, *nodes, timeouts,
        keep_alive_interval=timedelta(seconds=HEARTBEAT_S), keep_alive_max_attempt=MISSED,
    )  # fmt: skip
    # A rebooted machine may give the same process number again; taken for the dead one, it would never be let in.
    node = dynamic._NodeDesc(address, os.getpid(), secrets.randbelow(2**31))  # noqa: SLF001 - same
    holder = StateHolder(backend, settings)
    made = Handler(node, settings, backend.name, store, holder)
    made._op_executor = Executor(node, holder, settings)  # noqa: SLF001 - same
    timeouts.round = lambda: made.round
    made.connect = connect
    return made


def connected(where: RendezvousParameters) -> tuple[Any, Any]:
    """A connection to the store, (backend, store), on which no answer within `STORE_S` is an error.

    torch leaves that to the server; without it a node that was cut off sits in a read until TCP tries again, which it
    does ever less often.

    Raises:
        RendezvousConnectionError: nobody listens there, which torch itself would find out more and more slowly.
    """
    host, _, digits = where.endpoint.rpartition(":")
    port = int(digits)
    try:
        socket.create_connection((host.strip("[]"), port), STORE_S).close()
    except OSError as error:
        raise RendezvousConnectionError(f"no coordinator at {where.endpoint}: {error}") from error
    backend, store = c10d.create_backend(where)
    for number in sockets() if hasattr(socket, "TCP_USER_TIMEOUT") else ():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.getpeername()[1] == port:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STORE_S * 1000)
    return backend, store


def sockets() -> list[int]:
    """The descriptors of this process that are sockets: a copy of any other would be refused, and stay open."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the one that the folder was read by is gone
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                found.append(int(entry.name))
    return found


def patiently(connect: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `connect` returns
    """What `connect` returns, tried again until `JOIN_S` have passed: a coordinator may start after its nodes."""
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            return connect()
        except RendezvousConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)


def serve(port: int) -> None:
    """Be the coordinator: the store that the nodes meet at, until the process is ended.

    Raises:
        RuntimeError: the port is taken.
    """
    _store = dist.TCPStore(  # type: ignore[attr-defined]
        "0.0.0.0",  # noqa: S104 - the nodes are other machines
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
    )
    while True:
        time.sleep(3600)
