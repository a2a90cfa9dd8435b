"""Who takes part in a live job: the seat at the coordinator, and the group of processes that sum gradients.

Called by `live`. Built on torchft's lower half: its lighthouse (the coordinator) agrees on the members, and a
process group is made anew for every membership. What is closed here, each a defect met in trials:

- A coordinator that comes back numbers its quorums from 1 again, and an equal number would keep an old group: a smaller
  number gives up the seat, other members under the same number are a new group, and a group's keys in the store are its
  members' own.
- A request that failed leaves its seat unusable: the next one is made anew, with a fresh store.
- Two members that cannot reach each other would fail for ever: after a failure all look whom they reach, and of two
  that do not the one with the higher number goes.
- On an overloaded machine heartbeats of a member that lives may come late: the others, who have just added up with it
  and whose connections to it stand, wait a little before they go on without it.
- What a life asked for behind a broken link arrives when the link is whole again, after that life: who has no store
  any more takes no part, and if nobody else is new, nothing changes.
- A sum under way may outlive the group's connections by its whole time-out, and aborting a group waits for it: such a
  sum is left behind, with the group.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, BroadcastOptions

from proving_ground.training.recovery.lighthouse import HEARTBEAT_S
from proving_ground.training.recovery.lines import PROBE_S, Lines, knocks

if TYPE_CHECKING:
    from collections.abc import Sequence

QUORUM_S = 5.0  # for the members to agree; longer than they wait for a straggler
CONNECT_S = 2.0  # to the coordinator, and to our own store
GROUP_S = 1.5  # for all members to find each other; of two that cannot, a third hears nothing before
LOOK_S = 0.1  # how often connections are looked at while somebody lets us wait
PARDON_S = 0.65  # for a member that the coordinator misses and that gave no sign of having ended
ASK_S = 0.05  # between two questions meanwhile


class BrokenError(Exception):
    """The step in hand cannot be done by these members; the message says why, `why` in a word."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why

    def anew(self) -> BrokenError:
        """The same without where it came from: a traceback would hold the group's operations, and so the group."""
        return BrokenError(self.why, str(self))


class CutOffError(BrokenError):
    """A member before us cannot be reached, though the coordinator sees it: we go."""

    def __init__(self, member: Member) -> None:
        super().__init__("unreachable", f"no way to {member.address}, which the coordinator reaches")
        self.member = member


@dataclass(frozen=True)
class Place:
    """Where the coordinator of a live job is, our own address and number, nodes at least and at most."""

    coordinator: str  # host:port
    address: str
    number: int  # ranks follow the numbers
    nodes: tuple[int, int]


@dataclass(frozen=True)
class Member:
    """One member, as its name at the coordinator says."""

    number: int
    address: str
    port: int  # its store's
    settings: str  # hash of what must be the same everywhere

    @property
    def name(self) -> str:
        """In the order of the members' numbers."""
        return f"{self.number:05d}@{self.address}|{self.port}|{self.settings}"

    @staticmethod
    def read(name: str) -> Member:
        """From a name at the coordinator; torchft adds its own suffix for a life."""
        number, _, rest = name.rpartition(":")[0].partition("@")
        address, port, settings = rest.split("|")
        return Member(int(number), address, int(port), settings)


@dataclass
class Seat:
    """One life at the coordinator: a store for the groups that we may host, a server with heartbeats, its client.

    `line` is a connection that says nothing: it ends when the coordinator does, which the client would not notice.
    """

    me: Member
    store: Any
    server: Any
    client: Any
    line: socket.socket
    pool: ThreadPoolExecutor
    asked: Future[Any] | None = None  # who takes part in the next step

    @staticmethod
    def take(place: Place, settings: str) -> Seat:
        """Begin to be seen by the coordinator.

        Raises:
            TimeoutError, RuntimeError: it does not answer.
        """
        from torchft.coordination import ManagerClient, ManagerServer  # noqa: PLC0415 - not on every platform

        host, _, port = place.coordinator.rpartition(":")
        line = socket.create_connection((host, int(port)), PROBE_S)
        line.settimeout(0.0)
        seconds = timedelta(seconds=CONNECT_S)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            place.address, 0, is_master=True, wait_for_workers=False, timeout=seconds
        )
        me = Member(place.number, place.address, store.port, settings)
        server = ManagerServer(
            replica_id=f"{me.name}:{time.monotonic_ns():x}", lighthouse_addr=f"http://{place.coordinator}",
            hostname=place.address, bind=f"{place.address}:0", store_addr=f"{place.address}:{store.port}",
            world_size=1, heartbeat_interval=timedelta(seconds=HEARTBEAT_S), connect_timeout=seconds, quorum_retries=0,
        )  # fmt: skip
        client = ManagerClient(server.address(), connect_timeout=seconds)
        return Seat(me, store, server, client, line, ThreadPoolExecutor(1, thread_name_prefix="quorum"))

    def ask(self, step: int, failures: int) -> None:
        """Begin to ask who takes part in a step; once for each `answer`."""
        self.asked = self.pool.submit(
            self.client._quorum, group_rank=0, step=step, checkpoint_metadata="", shrink_only=False,  # noqa: SLF001
            timeout=timedelta(seconds=QUORUM_S), init_sync=False, commit_failures=failures,
        )  # fmt: skip

    def answer(self) -> Any:  # noqa: ANN401 - torchft's QuorumResult
        """What was asked.

        Raises:
            TimeoutError, RuntimeError: no agreement, or the coordinator has ended meanwhile.
        """
        asked, self.asked = self.asked, None
        assert asked is not None  # noqa: S101 - the caller has asked
        while asked not in wait([asked], LOOK_S).done:
            if not self.connected():
                raise RuntimeError("it has ended")
        return asked.result()

    def connected(self) -> bool:
        """Whether the coordinator that we began with is still there, as far as its machine has told us."""
        try:
            return self.line.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def leave(self) -> None:
        """No heartbeat any more, and no store: whoever is still told of us sees that this life is over."""
        self.server.shutdown()
        self.store = None
        self.line.close()
        self.pool.shutdown(wait=False)


@dataclass
class Members:
    """The members of a live job as this process knows them."""

    place: Place
    settings: str
    timeout_s: float = 10.0  # of a sum
    rank: int = 0
    size: int = 0  # 0: there is no group
    newest_step: int = 0  # that a member has
    failures: int = 0  # attempts since the last committed step
    names: tuple[str, ...] = ()  # of the group
    broken: BrokenError | None = None  # why the group is of no use any more
    _seat: Seat | None = None
    _number: int = -1  # of the last quorum
    _group: Any = field(default=None)
    _flying: list[dist.Work] = field(default_factory=list)  # since the last committed step
    _behind: list[tuple[Any, list[dist.Work]]] = field(default_factory=list)  # groups with what has not ended in them
    _lines: Lines = field(default_factory=Lines)

    def meet(self, step: int) -> bool:
        """Agree on the members of the next step; whether they are others than before. Returns with a group.

        Raises:
            BrokenError: there was no agreement, or not all members could be reached.
        """
        doubted: dict[str, float] = {}  # since when we know that the coordinator is late about whom
        while True:
            asked_t = time.monotonic()  # not when the answer came: we may have stood still ourselves
            found = self._agree(step)
            known_t, names = time.monotonic(), tuple(found.replica_ids)
            doors = self._doors(found)
            ended = [name for name, door in doors.items() if door == "refused"]
            if self.broken is None and self.names == tuple(name for name in names if name not in ended):
                return False
            if all(asked_t - doubted.setdefault(name, known_t) >= PARDON_S for name in (*self._late(found), *ended)):
                break
            time.sleep(ASK_S)
        if len(names) < self.place.nodes[0]:
            raise BrokenError("no_quorum", f"{len(names)} of at least {self.place.nodes[0]} nodes are there")
        self.newest_step = found.max_step
        self.names, self.rank, self.size = (), found.replica_rank, len(names)
        self._look_for_gaps([Member.read(name) for name, door in doors.items() if door == "silent"])
        self._connect(found, names)
        return True

    def _late(self, found: Any) -> list[str]:  # noqa: ANN401 - torchft's QuorumResult
        """Who is missed, though their sums of the last step have arrived and all connections stand."""
        missed = [name for name in self.names if name not in found.replica_ids]
        return missed if missed and self.broken is None and not self.forsaken() else []

    def _agree(self, step: int) -> Any:  # noqa: ANN401 - torchft's QuorumResult
        try:
            if self._seat is None:
                self._seat = Seat.take(self.place, self.settings)
            if self._seat.asked is None:
                self._seat.ask(step, self.failures)
            found = self._seat.answer()
        except (OSError, RuntimeError) as error:  # a TimeoutError is an OSError
            there = self._seat is not None and self._seat.connected()
            self.leave()
            why = str(error).partition("\n")[0][:80]
            if there:
                raise BrokenError("no_quorum", f"no agreement at the coordinator: {why}") from None
            raise BrokenError("no_coordinator", f"the coordinator does not answer: {why}") from None
        restarted, self._number = found.quorum_id < self._number, found.quorum_id
        if restarted:
            self.leave()
            raise BrokenError("no_coordinator", "the coordinator started anew")
        return found

    def _doors(self, found: Any) -> dict[str, str]:  # noqa: ANN401 - as above
        """What comes of a connection to the stores of those with whom we have no group."""
        group = self.names if self.broken is None else ()
        others = [name for at, name in enumerate(found.replica_ids) if at != found.replica_rank and name not in group]
        return dict(zip(others, knocks([(it.address, it.port) for it in map(Member.read, others)]), strict=True))

    def _look_for_gaps(self, silent: Sequence[Member]) -> None:
        """After an attempt that failed, with whom cannot be reached.

        Raises:
            CutOffError: one with a lower number: we go.
            BrokenError: one with a higher number: it goes.
        """
        if silent and self.failures:
            first = min(silent, key=lambda member: member.number)
            if first.number < self.place.number:
                raise CutOffError(first)
            raise BrokenError("unreachable", f"no way to {first.address}, which has to go")

    def _connect(self, found: Any, names: tuple[str, ...]) -> None:  # noqa: ANN401 - as above
        """Make the group of these members."""
        from torchft import ProcessGroupGloo  # noqa: PLC0415 - not on every platform

        self._behind = [(group, works) for group, works in self._behind if not all(it.is_completed() for it in works)]
        self._group = self._group or ProcessGroupGloo(timeout=timedelta(seconds=GROUP_S))
        # A coordinator that came back gives numbers a second time; names of lives are never used again.
        about = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        where = f"{found.store_address}/live/{found.quorum_id}/{about}"
        addresses = {socket.gethostbyname(Member.read(name).address) for name in names}
        self.broken = None  # what broke the group before is over: an error is this one's from here on
        try:
            with self._lines.watching(tuple(addresses)):
                self._group.configure(where, self.names, self.rank, self.size)
        except (RuntimeError, TimeoutError) as error:
            raise self.fail(error) from None
        self.names = names

    def start_sum(self, values: torch.Tensor) -> dist.Work:
        """Begin to sum a tensor over the members in place.

        An error is raised by `.wait()`, never here: DDP's hook must not fail in the middle of backward.
        """
        options = AllreduceOptions()
        options.timeout = timedelta(seconds=self.timeout_s)
        return self._start("allreduce", values, options)

    def start_broadcast(self, values: torch.Tensor, first: int) -> dist.Work:
        """Begin to send a tensor of one member's to all others."""
        options = BroadcastOptions()
        options.timeout = timedelta(seconds=self.timeout_s)
        options.rootRank = first
        return self._start("broadcast", values, options)

    def _start(self, what: str, values: torch.Tensor, options: Any) -> dist.Work:  # noqa: ANN401 - torch's
        work = None
        if self.broken is None:
            try:
                work = getattr(self._group, what)([values], options)
                self._flying.append(work)
            except RuntimeError as error:
                self.fail(error)
        return Summing(self, work)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Some whole numbers of every member, on every member."""
        table = torch.zeros(self.size, len(numbers), dtype=torch.int64)
        table[self.rank] = torch.tensor(list(numbers))
        self.start_sum(table).wait()
        rows: list[list[int]] = table.tolist()
        return rows

    def fail(self, error: Exception) -> BrokenError:
        """Note that the group is of no use any more, and cut our connections: the others shall not wait for us."""
        if self.broken is None:
            message = " ".join(str(error).rpartition("] ")[2].split())[:120]  # before it, places in Gloo's sources
            timed_out = "timed out" in message.lower() or "timeout" in message.lower()
            self.broken = BrokenError("peer_silent" if timed_out else "peer_lost", message)
            self._cut()
        return self.broken.anew()

    def forsaken(self) -> bool:
        """Whether a connection of the group has ended."""
        return self._lines.ended()

    def _cut(self) -> None:
        """Let go of the group: nobody shall wait for us, and we for nobody.

        What does not end by that goes on until its time-out, in memory that nobody uses any more. Its group is kept
        until then: to abort or destroy one waits for its threads.
        """
        self._lines.cut()
        deadline = time.monotonic() + LOOK_S
        if not all(ended_within(work, deadline - time.monotonic()) for work in self._flying):
            self._behind.append((self._group, self._flying))
            self._group = None
        elif self._group is not None:
            self._group.abort()
        self._flying = []

    def give_up_attempt(self, error: BrokenError) -> None:
        """The attempt has failed: the next is made by a new group."""
        if self.broken is None:
            self._cut()
        self.broken, self.names = error.anew(), ()
        self.failures += 1

    def committed(self, step: int, *, ask: bool) -> None:
        """The attempt has succeeded; `ask` for the members of the next step while this one is finished and recorded."""
        self.failures, self._flying = 0, []
        if ask and self._seat is not None:
            self._seat.ask(step, 0)

    def leave(self) -> None:
        """Give up the seat: no heartbeat any more, and the next meeting is a new life."""
        if self._seat is not None:
            self._seat.leave()
        self._seat, self.names, self._number = None, (), -1
        if self.broken is None:
            self._cut()
            self.broken = BrokenError("left", "left the group")


class Summing(dist._Work):  # type: ignore[name-defined,misc] # noqa: SLF001 - the base that Python may extend
    """A sum on its way; waiting for one that failed cuts our connections and raises BrokenError."""

    def __init__(self, members: Members, work: dist.Work | None) -> None:
        super().__init__()
        self._members, self._work = members, work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the sum is there."""
        del timeout
        if self._work is None or self._members.broken is not None:
            raise (self._members.broken or BrokenError("peer_lost", "the group is gone")).anew()
        forsaken = False
        while not ended_within(self._work, LOOK_S):
            if forsaken:  # for a whole look: what had arrived before the end has been read by now
                raise self._members.fail(ConnectionError("a connection has ended, and the sum has not"))
            forsaken = self._members.forsaken()
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._members.fail(error) from None
        return True


def ended_within(work: dist.Work, seconds: float) -> bool:
    """Whether a collective ends within some time, well or not."""
    with contextlib.suppress(RuntimeError):
        work.wait(timedelta(seconds=max(seconds, 0.001)))  # 0 would mean for ever
        return True
    return work.is_completed()
