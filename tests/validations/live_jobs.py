"""One simulated live job: real members on virtual machines, seeded faults, and what must always be so.

Real are `training.recovery.live` and `members`, the rule of time-outs (`training.exchange.patience`), the fence of
checkpoints (`training.checkpoints`) and the node agent (`bench.keeper`). The network, torchft's coordinator, Gloo's
groups and what a step computes are imitated. Called by `live_runs`.

Always so: every step's sum holds every shard once, of members with the same state (`same`); without more than late
heartbeats and messages, or a coordinator that restarts, nobody loses its place (`eviction`); a job with one fault makes
its next step within `GAP_S` (`pace`), and once all train again nothing stops it any more (`quiet`); no older membership
commits a checkpoint (`fence`); nobody gives up while others are there (`tireless`), and in the end a job trains with
all that are left, or has stopped (`finite`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch

from proving_ground.bench.keeper import Keeper
from proving_ground.bench.protocols import ProcessExit, ProcessSpec
from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.config import Config, ConfigError
from proving_ground.training.events import GAVE_UP
from proving_ground.training.exchange import patience
from proving_ground.training.exchange.communication import World as Ranks
from proving_ground.training.exchange.updates import EveryStep
from proving_ground.training.recovery.elastic import STOPPED
from proving_ground.training.recovery.live import GaveUpError, Live, WaitError
from proving_ground.training.recovery.members import BrokenError, Place
from tests.validations.live_groups import Circle, Lines
from tests.validations.live_lighthouse import Lighthouse
from tests.validations.live_room import Process, Room
from tests.validations.members import AGREED_STEPS, Fault, ViolationError
from tests.validations.virtual import Checkpoints

CONFIG = Config(reduction="exact", timeout_s=0.0)
SHARDS = 12  # of a step
WHOLE = sum(8**shard for shard in range(SHARDS))  # what they add up to, each once
EVERY = 5  # steps between checkpoints
WRITE_S = 1.0  # until one is durable, at most


@dataclass
class Node:
    """A machine and the process on it."""

    name: str
    number: int
    stop: threading.Event = field(default_factory=threading.Event)


class Events:
    """What a member tells."""

    def __init__(self, job: LiveJob) -> None:
        self._job = job

    def emit(self, event: str, **fields: Any) -> None:
        """Look at it."""
        if event == "membership" and self._job.calm and fields["world_size"] < len(self._job.nodes):
            self._job.fail(f"eviction: {fields['world_size']} of {len(self._job.nodes)} nodes go on")
        if event == "detected" and self._job.over:
            self._job.fail(f"quiet: {fields['why']} ({fields['detail']}), long after the fault")


@dataclass
class LiveJob:
    """All that takes part."""

    room: Room
    sort: str
    nodes: list[Node]
    least: int
    steps: int
    lost: set[str] = field(default_factory=set)  # nodes that will never have power again
    circles: dict[str, Circle] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    ended: dict[str, ProcessExit] = field(default_factory=dict)
    claims: dict[int, object] = field(default_factory=dict)
    saved: tuple[int, int] = (0, 0)  # step, and the generation that made it
    done: bool = False  # somebody's last step is made
    over: bool = False  # the fault is, and all train
    whole_steps: int = 0
    last_t: float = math.inf  # of a step
    gap_s: float = 0.0  # the longest between two steps
    violation: ViolationError | None = None

    def __post_init__(self) -> None:
        self.lighthouse = Lighthouse(self.room, self.least)
        self.room.healed = self.look_again
        specs = [ProcessSpec("c", 0, (), serves=True), *(ProcessSpec(it.name, 0, ()) for it in self.nodes)]
        self.keeper = Keeper(specs, self.start, lambda: self.room.now)

    @property
    def calm(self) -> bool:
        """Whether nothing is done that should cost a member its place."""
        return self.sort in ("calm", "coordinator")

    # --- what is imitated

    def look_again(self) -> None:
        """Packets pass again."""
        for circle in self.circles.values():
            circle.look_again()

    def start(self, spec: ProcessSpec, again: int) -> None:
        """What the keeper calls."""
        del again
        if spec.serves:
            self.lighthouse.start()
            return
        node = next(it for it in self.nodes if it.name == spec.node)
        node.stop, process = threading.Event(), Process(node.name)
        self.room.start(process, functools.partial(self.live, node, process, node.stop), 0.1)

    def live(self, node: Node, process: Process, stop: threading.Event) -> None:
        """A member's life."""
        self.room.sleep(2 * self.room.chance.random())
        code = 1
        try:
            code = self.train(node, process, stop)
        except GaveUpError as error:
            code = GAVE_UP
            if self.sort != "poisoned" and not self.done:
                self.fail(f"tireless: {error}")
        except SystemExit as end:
            code = int(cast("int", end.code))
        except (WaitError, BrokenError, ConfigError, AssertionError, AttributeError, TypeError) as error:
            self.fail(f"escaped: {type(error).__name__}: {error}")
        self.done |= code == 0
        self.room.gone(process)
        self.ended[f"{node.name}.0"] = ProcessExit(node.name, 0, 7, code)

    def train(self, node: Node, process: Process, stop: threading.Event) -> int:
        """As `training.loop` does, in short; the exit status."""
        job: Any = SimpleNamespace(
            config=CONFIG, exchange=SimpleNamespace(forget=lambda: None), optimizer=SimpleNamespace(zero_grad=int),
            events=Events(self), patience=patience.Patience(0.0), watch=SimpleNamespace(begin=int), updates=EveryStep(),
            phases=SimpleNamespace(rank=0), saver=SimpleNamespace(renew=int), step=0, steps=self.steps, generation=0,
            world=Ranks(0, 1, torch.device("cpu"), "gloo"), best=None, metrics={}, epoch=0, lineage=0,
        )  # fmt: skip
        place = Place("c:1", node.name, node.number, (self.least, len(self.nodes)))
        job.membership = member = Live(job, place, stop, lambda: None)
        vars(member._members)["_lines"] = Lines(process)
        base_s = self.room.chance.uniform(0.03, 0.4)
        with member:
            while job.step < job.steps:
                made = member.step(functools.partial(self.learn, job, base_s), wish=False)
                if made is None:
                    break
                job.step += 1
                self.stepped(job)
                self.save(job)
                job.patience.step_done()
                if made[1]:
                    return STOPPED
        if job.lineage != job.step:
            self.fail(f"same: ended at step {job.step} with the state of {job.lineage}")
        return 0

    def learn(self, job: Any, base_s: float, *, wish: bool) -> tuple[dict[str, Any], bool]:
        """Stands for `training.loop.learn`: the state counts the steps in it, the sums say whose shards they hold."""
        room, rank, size = self.room, job.world.rank, job.world.size
        shards = torch.tensor([sum(8**it for it in range(rank, SHARDS, size)), job.step, job.lineage])
        told = torch.tensor([float(wish)])
        room.sleep(base_s * room.chance.uniform(0.4, 0.5))
        wishes = job.exchange.start_sum(told)
        room.sleep(base_s * room.chance.uniform(0.5, 0.6))
        job.exchange.start_sum(shards).wait()
        wishes.wait()
        wished = bool(told[0] > 0)
        job.membership.commit(meet=wished)
        expected = [WHOLE, size * job.step, size * job.step]
        if shards.tolist() != expected:
            self.fail(f"same: step {job.step} is a sum of {shards.tolist()}, not of {expected}")
        room.sleep(0.01 * room.chance.random())
        job.lineage += 1
        return {}, wished

    def stepped(self, job: Any) -> None:
        """A step counts."""
        now = self.room.now
        self.whole_steps += job.world.rank == 0 and job.world.size == len(self.nodes) - len(self.lost)
        self.gap_s = max(self.gap_s, now - self.last_t)
        self.last_t = now

    def save(self, job: Any) -> None:
        """Begin to write a checkpoint, rank 0, now and then."""
        if not job.world.rank and not job.step % EVERY:
            self.room.beside(functools.partial(self.write, job.step, job.generation))

    def write(self, step: int, generation: int) -> None:
        """A checkpoint becomes durable, behind the fence."""
        self.room.sleep(WRITE_S * self.room.chance.random())
        with contextlib.suppress(checkpoint.SupersededError):
            checkpoint.check_generation(cast("Any", Checkpoints(self.claims, None)), generation)
            if max(self.claims) > generation:
                self.fail(f"fence: generation {generation} committed while {max(self.claims)} trains")
            self.saved = max(self.saved, (step, generation))

    # --- faults

    def suffer(self, fault: Fault) -> None:
        """A fault from its beginning to its end."""
        room, node, name = self.room, self.nodes[fault.node], self.nodes[fault.node].name
        if fault.kind == "worker_kill":
            self.kill(node)
        elif fault.kind == "leave":
            node.stop.set()
        elif fault.kind in ("node_kill", "power_loss", "lost"):
            self.lost |= {name} if fault.kind == "lost" else set()
            room.dark |= set() if fault.kind == "node_kill" else {name}
            self.down.add(name)
            self.kill(node, silent=name in room.dark)
            room.sleep(fault.hold_s)
            self.down -= {name} - self.lost
            room.dark -= {name} - self.lost
        elif fault.kind == "coordinator_kill":
            self.down.add("c")
            if self.lighthouse.up:
                self.lighthouse.end()
                self.ended["c.0"] = ProcessExit("c", 0, 7, -9)
            room.sleep(fault.hold_s)
            self.down.discard("c")
        elif fault.kind == "hang":
            if process := room.processes.get(name):
                process.stopped = (room.now, room.now + fault.hold_s)
        else:
            far = {"cut": [it.name for it in self.nodes] + ["c"], "cut_coordinator": ["c"]}
            others = far.get(fault.kind, [self.nodes[fault.other].name])
            pairs = {frozenset((name, other)) for other in others if name != other}
            room.cut(pairs)
            room.sleep(fault.hold_s)
            room.heal(pairs)

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """Its process ends."""
        if self.room.kill(self.room.processes.get(node.name), silent=silent):
            self.ended[f"{node.name}.0"] = ProcessExit(node.name, 0, 7, -9)

    def tend(self) -> None:
        """The node agent."""
        while True:
            ended, self.ended = self.ended, {}
            self.keeper.tend(ended, self.down)
            self.room.sleep(0.25)

    # --- what must be so

    def fail(self, why: str) -> None:
        """An invariant does not hold."""
        self.violation = self.violation or ViolationError(why)

    def settled(self) -> bool:
        """Whether it trains at full strength, or nobody runs any more; or there is nothing more to see."""
        return (
            self.violation is not None
            or self.whole_steps >= AGREED_STEPS
            or self.keeper.over
            or self.keeper.stands_still
            or (self.sort == "poisoned" and len(self.keeper.gave_up) == len(self.nodes) - 1)
        )
