"""One simulated job: real membership logic on virtual machines, seeded faults, and what must always be so.

Real are the rendezvous (`training.recovery.rendezvous`, with torch's state machine below it), the rules of retries
(`launch.Retries`) and of time-outs (`training.exchange.patience`), the fence of checkpoints
(`training.checkpoints`) and the node agent (`bench.keeper`). Workers, network, clock and torch's loop around all that
are imitated. Called by `tests.validations.simulation`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, cast

from greenlet import getcurrent, greenlet
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError

from proving_ground.bench.keeper import BY_HAND_MAX, Keeper
from proving_ground.bench.protocols import ProcessExit, ProcessSpec
from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.events import GAVE_UP
from proving_ground.training.exchange import patience
from proving_ground.training.recovery import rendezvous
from proving_ground.training.recovery.launch import GaveUpError, Retries
from tests.validations.virtual import (
    Checkpoints,
    Coordinator,
    Line,
    Lock,
    World,
)

JOB = "job"
LIMIT_S = 400.0  # of virtual time, after the last fault was healed: several waits of a minute for a node fit in
CALM_DELAY_S, DELAY_S = 0.1, 0.25  # of a message, one way, at most
STALL_S = 1.8  # a step that takes longer than others by up to this is slow, not dead
AGREED_STEPS = 3  # that the whole job makes after all is healed


class ViolationError(AssertionError):
    """Something that must always be so is not; begins with the invariant's name."""


@dataclass
class Worker:
    """A node's worker; `steps` are those it made."""

    node: Machine
    state: str = "runs"  # or failed, killed
    steps: int = 0
    hangs: bool = False
    met: bool = False
    alone: bool = False  # the others have ended; one that hangs notices when it goes on


@dataclass
class Machine:
    """A node: its launcher's process, its worker."""

    name: str
    process: greenlet | None = None
    worker: Worker | None = None
    born: float = 0.0

    def end_worker(self, state: str = "killed") -> None:
        """The worker ends."""
        if self.worker and self.worker.state == "runs":
            self.worker.state = state


@dataclass(frozen=True)
class Fault:
    """What is done when to which node, for how long."""

    t: float
    kind: str
    node: int
    other: int
    hold_s: float


KINDS = ("worker_kill", "hang", "node_kill", "launcher_kill", "coordinator_kill", "cut", "cut_coordinator", "pair")


@dataclass
class Job:
    """All that takes part."""

    world: World
    sort: str
    machines: list[Machine]
    least: int
    coordinator: Coordinator = field(default_factory=Coordinator)
    down: set[str] = field(default_factory=set)
    cut: set[frozenset[str]] = field(default_factory=set)
    ended: dict[str, ProcessExit] = field(default_factory=dict)
    claims: dict[int, object] = field(default_factory=dict)
    meetings: dict[Any, list[Worker]] = field(default_factory=dict)
    first_seen: dict[Any, float] = field(default_factory=dict)
    whole_steps: int = 0
    violation: ViolationError | None = None

    def __post_init__(self) -> None:
        specs = [ProcessSpec("c", 0, (), serves=True), *(ProcessSpec(it.name, 0, ()) for it in self.machines)]
        self.keeper = Keeper(specs, self.start, lambda: self.world.now)

    @property
    def calm(self) -> bool:
        """Whether nothing is done that should interrupt training."""
        return self.sort in ("calm", "coordinator")

    @property
    def poisoned(self) -> bool:
        """Whether no worker can ever make a step."""
        return self.sort == "poisoned"

    # --- what is imitated

    def connects(self, one: str, other: str) -> bool:
        """Whether packets pass between two nodes; `c` is the coordinator's."""
        return frozenset((one, other)) not in self.cut

    def connect(self, where: Any) -> tuple[Any, Any]:
        """Stands for `training.recovery.rendezvous.connected`."""
        name = str(where.endpoint).partition(":")[0]
        most = CALM_DELAY_S if self.calm else DELAY_S
        try:
            line = Line(self.coordinator, lambda: self.connects(name, "c"), lambda: self.world.delay_s(most))
        except RuntimeError as error:
            raise RendezvousConnectionError(str(error)) from None
        return c10d.C10dRendezvousBackend(cast("Any", line), JOB), line

    def start(self, spec: ProcessSpec, again: int) -> None:
        """What the keeper calls."""
        del again
        if spec.node in self.down:
            self.fail("power: a process was started on a node that has none")
        elif spec.serves:
            self.coordinator.start()
        else:
            machine = next(it for it in self.machines if it.name == spec.node)
            machine.born = self.world.now
            machine.process = self.world.spawn(lambda: self.launcher(machine), 0.1)

    def launcher(self, machine: Machine) -> None:
        """One life of a launcher; torch's loop around the rendezvous, in short."""
        code = GAVE_UP
        with contextlib.suppress(GaveUpError, RendezvousError):
            retries = Retries()
            meeting = join(machine.name, self)
            while True:
                meeting.next_rendezvous()
                self.watch(machine, meeting, retries)
        machine.end_worker()
        for it in self.world.timers.pop(getcurrent(), ()):
            self.world.end(it)
        self.ended[f"{machine.name}.0"] = ProcessExit(machine.name, 0, 7, code)

    def watch(self, machine: Machine, meeting: rendezvous.Handler, retries: Retries) -> None:
        """From the start of a worker to its end."""
        worker = machine.worker = Worker(machine)
        self.met(worker, meeting._state_holder.state)
        patient_until = self.world.now + patience.START_S
        while True:
            self.world.sleep(0.2 + 0.2 * self.world.chance.random())
            if worker.state == "runs" and not worker.met and self.world.now > patient_until:
                worker.state = "failed"
            if worker.state == "failed":
                self.world.sleep(retries.wait_s(progress=worker.steps > 0))
                return
            if meeting.num_nodes_waiting() > 0:
                machine.end_worker()
                return

    def met(self, worker: Worker, state: Any) -> None:
        """A worker has started; when the last of its world has, they train."""
        key = (state.round, frozenset(state.participants))
        seen = self.first_seen.setdefault(key, self.world.now)
        if worker.node.born > seen:
            self.fail(f"reboot: {worker.node.name}, started at {worker.node.born:.2f}, has a place of {seen:.2f}")
        group = self.meetings.setdefault(key, [])
        group[:] = [it for it in group if it.state == "runs"] + [worker]
        if self.poisoned:
            worker.state = "failed"
        if len(group) == len(state.participants):
            self.world.spawn(lambda: self.train(list(group)), 0.2)

    def train(self, group: list[Worker]) -> None:
        """Steps of all of them, until one of them ends."""
        if any(it.state != "runs" for it in group):
            return
        for it in group:
            it.met = True
        chance, me = self.world.chance, getcurrent()
        vars(me)["timeout_s"] = patience.START_S
        step_s, every = chance.uniform(0.05, 0.4), chance.randint(3, 8)
        rule, store = patience.Patience(0), Checkpoints(self.claims, group[0])
        generation = checkpoint.claim_generation(cast("Any", store))
        while self.exchange(group, step_s, vars(me)["timeout_s"]):
            rule.step_done()
            for it in group:
                it.steps += 1
            self.whole_steps += len(group) == len(self.machines) - len(self.keeper.gave_up)
            if group[0].steps % every == 0 and not self.commits(store, generation):
                break
        for it in group:
            it.alone = True
            self.notice(it)
        if self.calm:
            self.fail("eviction: a job that nothing was done to was interrupted")

    @staticmethod
    def notice(worker: Worker) -> None:
        """A worker whose exchange with the others broke off fails."""
        if worker.state == "runs" and worker.alone and not worker.hangs:
            worker.state = "failed"

    def exchange(self, group: list[Worker], step_s: float, timeout_s: float) -> bool:
        """One step's all-reduce: whether it came to its end."""
        chance = self.world.chance
        self.world.sleep(step_s)
        waited_s = STALL_S * chance.random() if chance.random() < 0.02 else 0.0
        if waited_s:
            self.world.sleep(min(waited_s, timeout_s))
        begin = self.world.now - waited_s
        while all(it.state == "runs" for it in group) and self.world.now - begin <= timeout_s:
            if waited_s <= timeout_s and self.goes_through(group):
                return True
            self.world.sleep(0.2)
        return False

    def goes_through(self, group: list[Worker]) -> bool:
        """Whether nobody hangs, and all reach each other."""
        names = [it.node.name for it in group]
        return not any(it.hangs for it in group) and not (
            self.cut and any(not self.connects(one, other) for one in names for other in names if one < other)
        )

    def commits(self, store: Checkpoints, generation: int) -> bool:
        """Save a checkpoint, behind the fence."""
        try:
            checkpoint.check_generation(cast("Any", store), generation)
        except checkpoint.SupersededError:
            return False
        if max(self.claims) > generation:
            self.fail(f"fence: generation {generation} committed while {max(self.claims)} trains")
        return True

    # --- faults

    def suffer(self, fault: Fault) -> None:
        """A fault from its beginning to its end."""
        machine, other = self.machines[fault.node], self.machines[fault.other]
        if fault.kind == "worker_kill":
            machine.end_worker("failed")
        elif fault.kind == "launcher_kill":
            self.end_launcher(machine)
        elif fault.kind == "node_kill":
            self.power_cut(machine, fault.hold_s)
        elif fault.kind == "coordinator_kill":
            self.coordinator.end()
            self.ended["c.0"] = ProcessExit("c", 0, 7, -9)
            self.without_power("c", fault.hold_s)
        elif fault.kind == "hang":
            self.hang(machine, fault.hold_s)
        else:
            far = {"cut": [it.name for it in self.machines] + ["c"], "cut_coordinator": ["c"], "pair": [other.name]}
            pairs = {frozenset((machine.name, name)) for name in far[fault.kind] if name != machine.name}
            self.cut |= pairs
            self.world.sleep(fault.hold_s)
            self.cut -= pairs

    def end_launcher(self, machine: Machine) -> None:
        """Its process and the worker that dies with it."""
        if machine.process is not None and not machine.process.dead:
            self.world.end(machine.process)
            self.ended[f"{machine.name}.0"] = ProcessExit(machine.name, 0, 7, -9)
        machine.end_worker()

    def power_cut(self, machine: Machine, seconds: float) -> None:
        """Everything on it ends; it boots again later."""
        self.down.add(machine.name)
        self.end_launcher(machine)
        self.without_power(machine.name, seconds)

    def without_power(self, name: str, seconds: float) -> None:
        """For so long nothing starts there."""
        self.down.add(name)
        self.world.sleep(seconds)
        self.down.discard(name)

    def hang(self, machine: Machine, seconds: float) -> None:
        """The worker stands still."""
        if worker := machine.worker:
            worker.hangs = True
            self.world.sleep(seconds)
            worker.hangs = False
            self.notice(worker)

    def tend(self) -> None:
        """The node agent and, where all gave up, a person."""
        while True:
            ended, self.ended = self.ended, {}
            self.keeper.tend(ended, self.down)
            if self.keeper.stands_still and self.keeper.by_hand < BY_HAND_MAX:
                self.keeper.start_by_hand()
            self.world.sleep(0.25)

    # --- what must be so

    def fail(self, why: str) -> None:
        """An invariant does not hold."""
        self.violation = self.violation or ViolationError(why)

    def stopped(self) -> bool:
        """Whether nothing runs any more, after all that a person would try."""
        return self.keeper.stands_still and self.keeper.by_hand == BY_HAND_MAX

    def settled(self) -> bool:
        """Whether it trains at full strength, or, poisoned, has stopped; or there is nothing more to see."""
        return self.violation is not None or (self.stopped() if self.poisoned else self.whole_steps >= AGREED_STEPS)


def join(name: str, job: Job) -> rendezvous.Handler:
    """The real handler of a node, connected to the virtual coordinator."""
    made = rendezvous.handler(f"{name}:1", JOB, (job.least, len(job.machines)), name)
    vars(made).update(_heartbeat_lock=Lock(), _get_store=lambda: None)
    return made
