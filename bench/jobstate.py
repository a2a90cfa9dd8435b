"""The state of a job, event by event: the one fold of the event stream. Everything else that follows a job is a view.

Used by `bench.jobview` (schedules, nemeses), `monitoring` (exporter, live view, availability, tracking) and
`reports.recovery`. Standard library only. It alone defines

- **rank, world size, generation** of a worker: as it said when it started (`start`) and whenever the ranks met
  (`ready`). A trainer that numbers no generations has its lives counted;
- a **committed step**: one that as many ranks of a generation recorded as that generation has. A share (`share`) counts
  as the record of a rank that did not live to write one, once another rank recorded that step. Where the suite says
  that rank 0 tells (`command.tells`), its record is that of all ranks of its generation;
- a **recovery**: from the moment of the fault (`inject_t`) to the first committed step of a generation that is newer
  than those that had met by then. A fault after which no new generation committed never stopped training;
- **steady**: the last `STEADY_STEPS` committed steps are one generation's, at full strength, all since the last fault
  came or was healed and none is held, and the job is beyond the step at which it came;
- a **disturbance**: a fault with those that overlap with it, one after the other. One overlaps with the one before if
  the plan says so (`after_s`), or if it comes at a moment of its own (`at_s`) while the job is not steady;
- its **recovery**, one, from the first injection to the last of its faults' recoveries;
- a **standstill**: what can be told without a nemesis. From the last committed step of a generation to the first
  committed step of a newer one. It begins up to a step before the fault, or later, where the fault takes its time to
  stop training.

Moments are `t` of the events, in seconds. Records may come a little out of the order of time, as they do while a run is
followed: only the order within one process matters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proving_ground.bench.rundir import HARNESS
from proving_ground.training.events import sensible

Record = Mapping[str, Any]

EVERY_RANK, RANK_0 = "every rank", "rank 0"  # who tells the steps of a trainer of one's own
STEADY_STEPS = 15  # whole steps at full strength
STEPS_KEPT = 100_000  # of a worker, whose ends are remembered
ENDS_KEPT = 1000  # of the job's committed steps
DURING_RECOVERY = "recovery"
"""Phase of a fault that is injected during the recovery from the one before: the two share their end."""


def one_tells(command: Mapping[str, Any] | None) -> bool:
    """Whether rank 0 tells the steps of all ranks, by the `command` of a trial's plan."""
    return (command or {}).get("tells") == RANK_0


def overlaps(fault: Mapping[str, Any]) -> bool:
    """Whether a planned fault comes so long after the one before, whatever that one has done: they share their end."""
    return fault.get("after_s") is not None


def may_overlap(fault: Mapping[str, Any]) -> bool:
    """Whether a planned fault overlaps, or comes at a moment of its own, and nobody knows yet what it meets then."""
    return overlaps(fault) or fault.get("at_s") is not None


def joins(fault: Mapping[str, Any]) -> bool:
    """Whether what follows a planned fault is also what follows the one before."""
    return overlaps(fault) or fault.get("phase") == DURING_RECOVERY


def disturbances(faults: Sequence[Record]) -> list[list[Record]]:
    """Planned faults, those that overlap by the plan together: what is done to a job at one go."""
    found: list[list[Record]] = []
    for it in faults:
        if overlaps(it) and found:
            found[-1].append(it)
        else:
            found.append([it])
    return found


def whole(value: object, other: int = 0) -> int:
    """The whole number that a field holds, or the other one."""
    return int(value) if isinstance(value, int | float) and sensible(value) else other


def known(value: object, other: int | None = None) -> int | None:
    """The whole number that a field holds, if it holds one, or the other one."""
    return int(value) if isinstance(value, int | float) and sensible(value) else other


def moment(value: object, other: float) -> float:
    """The moment that a field holds, or the other one."""
    return float(value) if isinstance(value, int | float) and sensible(value) else other


@dataclass(slots=True)
class Worker:
    """One process of the job, in its newest life."""

    node: str
    pid: int | None = None  # as its node sees it
    rank: int | None = None
    world_size: int = 0
    generation: int = 0
    step: int = 0  # the newest that it made; kept over its lives
    times: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))  # ends of its steps in this life
    start_t: float = -math.inf  # of this life
    met: bool = True  # whether its generation is known, and not only counted
    begun: bool = True  # whether it has said more than that it started

    def take(self, record: Record) -> None:
        """Take one of its own events in."""
        event = record["event"]
        if event == "start":
            self._start(record)
            return
        self.begun = True
        if event == "ready":
            self.generation, self.met = whole(record.get("generation")) or self.generation, True
            self.rank = known(record.get("rank"), self.rank)  # a live job's change with its members
            self.world_size = whole(record.get("world_size"), self.world_size)
        elif event == "step" and sensible(record.get("step")):
            self.step, self.met = whole(record["step"]), True
            self.times.append(moment(record["t"], math.nan))

    def _start(self, record: Record) -> None:
        """A new life; two in a row are one: who started it said so, and it itself."""
        self.generation += self.begun
        self.pid = pid if isinstance(pid := record.get("pid"), int) else None
        self.rank, self.world_size = known(record.get("rank")), whole(record.get("world_size"))
        self.start_t = moment(record["t"], -math.inf)
        self.begun = self.met = False
        self.times.clear()

    def joins(self, teller: Worker, t: float) -> bool:
        """Whether it made the step that another told at a moment: it started before, into the same world."""
        if self.world_size != teller.world_size or self.start_t > t:
            return False
        return self.generation == teller.generation or not self.met


@dataclass(slots=True, eq=False)
class JobStep:
    """A step of a generation, as far as its ranks recorded it."""

    generation: int
    step: int
    ranks: set[str] = field(default_factory=set)  # that recorded it
    shares: set[str] = field(default_factory=set)  # that had a share in it and will not record it
    world: int = 0
    begin_t: float = math.inf  # of its first rank
    end_t: float = -math.inf  # of its last rank

    @property
    def committed(self) -> bool:
        """Whether all ranks of its generation had a part in it."""
        return bool(self.ranks) and len(self.ranks | self.shares) >= self.world


@dataclass(slots=True, eq=False)
class Generation:
    """One membership of the job."""

    number: int
    world: int = 0
    met_t: float = math.inf  # when the first of its ranks was ready
    first: JobStep | None = None  # committed
    last: JobStep | None = None
    open: dict[int, JobStep] = field(default_factory=dict)  # step → what is not committed yet, and the newest that is

    def known_by(self, t: float) -> bool:
        """Whether it had met before a moment, or committed a step up to it."""
        return self.met_t < t or (self.first is not None and self.first.end_t <= t)


@dataclass(slots=True)
class FaultSeen:
    """One fault of the nemesis."""

    id: str
    kind: str
    phase: str
    target: tuple[str, ...]
    inject_t: float  # of one that was refused: when
    injected: bool
    held: bool
    begin_t: float = math.nan  # when the injection was done
    overlaps: bool = False  # with the one before
    joins: bool = False  # what follows the one before: it overlaps with it, or disturbs its recovery


@dataclass(frozen=True)
class Recovery:
    """What followed a fault up to the next one (`until_t`); `new` and `end` are None where training never stopped."""

    fault: FaultSeen
    until_t: float
    old: int  # the newest generation before the fault
    new: int | None = None
    first: JobStep | None = None

    @property
    def end_t(self) -> float | None:
        """When the first step was committed."""
        return None if self.first is None else self.first.end_t


@dataclass(frozen=True)
class Disturbance:
    """Faults that overlap, or one that is alone, with what followed each; they are called after the first of them."""

    recoveries: tuple[Recovery, ...]
    settled: bool  # nothing that comes yet can make its recovery longer

    @property
    def fault(self) -> FaultSeen:
        """The first."""
        return self.recoveries[0].fault

    @property
    def last(self) -> Recovery | None:
        """The recovery that ended last; None where training never stopped."""
        return max((it for it in self.recoveries if it.first), key=lambda it: it.end_t or 0.0, default=None)

    @property
    def seconds(self) -> float | None:
        """Time to recovery: from the first injection to the last of the first committed steps."""
        return None if self.last is None or self.last.end_t is None else self.last.end_t - self.fault.inject_t

    def __str__(self) -> str:
        """`f01 hang, f02 worker_kill`."""
        return ", ".join(f"{it.fault.id} {it.fault.kind}" for it in self.recoveries)


@dataclass(frozen=True)
class Standstill:
    """From the last committed step of a generation to the first of a newer one; `lost` steps were thrown away."""

    begin_t: float
    end_t: float
    lost: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_t - self.begin_t


@dataclass(frozen=True)
class News:
    """What an event changed of the whole job."""

    committed: JobStep | None = None
    standstill: Standstill | None = None  # that ended with it
    recovered: tuple[Disturbance, ...] = ()  # whose recovery ended with it, or is longer by it
    settled: tuple[Disturbance, ...] = ()  # whose recovery nothing can make longer any more


NOTHING = News()


class JobState:
    """The state of one job: feed it its events with `take`."""

    def __init__(self, plan: Mapping[str, Any] | None = None) -> None:
        plan = plan or {}
        self.nodes = whole(plan.get("nodes"))
        self.workers: dict[str, Worker] = {}
        self.generations: dict[int, Generation] = {}
        self.faults: dict[str, FaultSeen] = {}
        self.newest: JobStep | None = None  # of the committed ones
        self.symptom_t: float | None = None  # the first sign of a failure since the newest committed step
        self.one_tells = one_tells(plan.get("command"))
        self._planned = {str(it.get("id")): it for it in plan.get("faults") or ()}
        self._shares: dict[str, tuple[int, int]] = {}  # worker → (generation, step) that it learns from
        self._started: set[tuple[str, str]] = set()  # (node, slot) of what the node agent started
        self._leaving: set[str] = set()  # nodes that were asked to: if all were, the job is being ended
        self._told: dict[str, Disturbance] = {}  # first fault → what was news of its disturbance
        self._full = self.nodes * whole(plan.get("ranks_per_node"), 1)  # ranks at full strength; 0: not known
        self._ends: deque[tuple[float, int, int, int]] = deque(maxlen=ENDS_KEPT)
        """Of committed steps: end, generation, world size, number."""
        self._quiet_t, self._reached = -math.inf, 0  # since when nothing was done to it, and the step at which it was
        self._over, self._over_t = False, math.inf  # told all; and since when nothing that it does counts

    # --- what there is to know ----------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The newest that is known."""
        return max((it.generation for it in self.workers.values() if it.met), default=0)

    @property
    def members(self) -> dict[str, Worker]:
        """The workers of the newest generation."""
        newest = self.generation
        return {name: it for name, it in self.workers.items() if it.generation == newest and it.met}

    @property
    def world_size(self) -> int:
        """Ranks of the newest generation; before there is one, as the workers were told when they started."""
        known = self.generations.get(self.generation)
        return known.world if known else max((it.world_size for it in self.workers.values()), default=0)

    @property
    def head(self) -> str | None:
        """The worker with rank 0."""
        some = self.members or self.workers
        return next((name for name, it in some.items() if it.rank == 0), None)

    @property
    def step(self) -> int:
        """The newest committed step; it goes back when training does. 0: there is none."""
        return self.newest.step if self.newest else 0

    @property
    def recoveries(self) -> list[Recovery]:
        """One for each fault, in the order of time; also of those that were refused, after which nothing had to end."""
        return [self._recovery(it, until_t) for it, until_t in reversed(list(self._windows()))]

    @property
    def disturbances(self) -> list[Disturbance]:
        """The faults that were injected, in the order of time, those that overlap together."""
        return list(self._disturbances())[::-1]

    def _disturbances(self) -> Iterator[Disturbance]:
        """The last one first."""
        upcoming = next((it for name, it in self._planned.items() if name not in self.faults), None)
        closed = upcoming is None or not may_overlap(upcoming)
        group: list[Recovery] = []
        for fault, until_t in self._windows():
            if fault.injected:
                group.insert(0, self._recovery(fault, until_t))
            if fault.overlaps:
                continue
            if group:
                settled = self._over or until_t < math.inf or (closed and all(it.first for it in group))
                yield Disturbance(tuple(group), settled)
            group, closed = [], True

    def _windows(self) -> Iterator[tuple[FaultSeen, float]]:
        """(fault, when the next one was that neither overlaps nor is one during its recovery), the last one first."""
        until_t = math.inf
        for fault in sorted(self.faults.values(), key=lambda it: it.inject_t, reverse=True):
            yield fault, until_t
            if not fault.joins:
                until_t = fault.inject_t

    def _recovery(self, fault: FaultSeen, until_t: float) -> Recovery:
        old = max((it.number for it in self.generations.values() if it.known_by(fault.inject_t)), default=0)
        later = (it.first for it in self.generations.values() if it.number > old and it.first is not None)
        inside = (it for it in later if it.end_t <= until_t and it.begin_t < self._over_t)
        first = min(inside, key=lambda it: it.end_t, default=None)
        return Recovery(fault, until_t, old, None if first is None else first.generation, first)

    # --- events -------------------------------------------------------------------------------------------------------

    def take(self, record: Record) -> News:
        """Take one event of the job in; fields of the wrong type are as if they were not there."""
        source, event = str(record.get("source", HARNESS)), record["event"]
        if source == HARNESS:
            return self._of_harness(event, record)
        if event == "detected" or (event == "error" and record.get("fatal", True)):
            self._symptom(record)
        elif event == "asked_to_leave":
            self._leaving.add(source.partition(".")[0])
        elif event == "workers_start":
            self._leaving.discard(source.partition(".")[0])
        return NOTHING if source.endswith(".launch") else self._of_worker(source, event, record)

    def _of_worker(self, source: str, event: str, record: Record) -> News:
        worker = self.workers.get(source)
        if worker is None:
            # A process that was there before it was heard of has begun no life yet: those are counted from 0.
            worker = Worker(source.partition(".")[0], met=False, begun=event == "start")
            self.workers[source] = worker
        if event == "step" and self.one_tells:
            return self._told_for_all(worker, record) if worker.rank in (0, None) else NOTHING
        worker.take(record)
        if event == "step":
            return self._made(source, worker, record)
        if event == "share":
            late = self._close(source)
            self._shares[source] = whole(record.get("generation"), worker.generation), whole(record.get("step"))
            return late
        if event == "ready":
            generation = self._generation(worker.generation)
            generation.met_t = min(generation.met_t, moment(record["t"], math.inf))
            generation.world = max(generation.world, worker.world_size)
            return self._close(*(name for name, (number, _) in self._shares.items() if number < worker.generation))
        if event != "start":
            return NOTHING
        self._count_lives_alike()
        return self._close(source)

    def _count_lives_alike(self) -> None:
        """Who has started and has not met yet will meet the others: one that was away for a while lived less often."""
        waiting = [it for it in self.workers.values() if it.pid is not None and not it.met]
        newest = max(it.generation for it in waiting) if waiting else 0
        for it in waiting:
            it.generation = newest

    def _generation(self, number: int) -> Generation:
        if number not in self.generations:
            self.generations[number] = Generation(number)
        return self.generations[number]

    def _told_for_all(self, teller: Worker, record: Record) -> News:
        """Every rank of a generation made the step that one of them recorded: their sum needs all of them."""
        news, t = NOTHING, moment(record["t"], -math.inf)
        for name, worker in self.workers.items():
            if worker is teller or worker.joins(teller, t):
                worker.generation = teller.generation
                worker.take(record)
                made = self._made(name, worker, record)
                news = news if made is NOTHING else made
        return news

    def _made(self, source: str, worker: Worker, record: Record) -> News:
        """A worker recorded a step."""
        self._shares.pop(source, None)
        number = record.get("generation", worker.generation)
        if not sensible(number) or not sensible(record.get("step")):
            return NOTHING
        generation = self._generation(int(number))
        world = whole(record.get("world_size"), worker.world_size)
        generation.world = max(generation.world, world)
        found = self._open(generation, int(record["step"]))
        if found is None or source in found.ranks:
            return NOTHING  # made again in the same generation: it counts once
        t = moment(record["t"], -math.inf)
        found.ranks.add(source)
        found.world = max(found.world, world)
        found.begin_t = min(found.begin_t, moment(record.get("begin_t"), t))
        found.end_t = max(found.end_t, t)
        return self._commit(generation, found) if found.committed else NOTHING

    @staticmethod
    def _open(generation: Generation, step: int) -> JobStep | None:
        """A step that is not committed yet, or the newest that is; None for an earlier one."""
        found = generation.open.get(step)
        if found is None and (generation.last is None or step > generation.last.step):
            found = generation.open[step] = JobStep(generation.number, step)
        return found

    def _close(self, *sources: str) -> News:
        """What these workers had a share in they will not record any more."""
        news = NOTHING
        for source in sources:
            number, step = self._shares.pop(source, (0, 0))
            generation = self.generations.get(number)
            if generation and step and (found := self._open(generation, step)) is not None:
                found.shares.add(source)
                news = self._commit(generation, found) if found.committed else news
        return news

    def _commit(self, generation: Generation, found: JobStep) -> News:
        """All ranks had a part in a step."""
        if generation.last is found:
            return NOTHING  # one rank more than there were said to be
        generation.last = found
        self._ends.append((found.end_t, generation.number, found.world, found.step))
        while (step := next(iter(generation.open))) < found.step:
            del generation.open[step]  # a rank has left it out: nobody will complete it
        before, begins = self.newest, generation.first is None
        generation.first = generation.first or found
        if before is None or found.end_t >= before.end_t:
            self.newest = found
        anew = before is not None and found.generation > before.generation
        if self.symptom_t is not None and (anew or found.begin_t > self.symptom_t):
            self.symptom_t = None
        if not begins:
            return News(found)
        stood = Standstill(before.end_t, found.end_t, max(0, before.step - found.step + 1)) if before and anew else None
        return replace(self._recovered(), committed=found, standstill=stood)

    def _recovered(self) -> News:
        """What is new of recoveries; of those before one that is settled nothing is."""
        longer, settled = [], []
        for it in self._disturbances():
            told = self._told.get(it.fault.id)
            if told and told.settled:
                break
            self._told[it.fault.id] = it
            if it.seconds is not None:
                longer += [it] if told is None or told.seconds != it.seconds else []
                settled += [it] if it.settled else []
        return News(recovered=tuple(longer[::-1]), settled=tuple(settled[::-1]))

    def _of_harness(self, event: str, record: Record) -> News:
        """What the harness, its node agent and its nemesis say."""
        process = str(record.get("node")), str(record.get("slot"))
        if event == "process_start":
            self._started.add(process)
        elif event in ("process_exit", "neighbour_exit"):
            if process in self._started and record.get("code") != 0:
                self._symptom(record)
        elif event in ("fault_begin", "fault_refused"):
            return self._fault(record, injected=event == "fault_begin")
        elif event == "fault_end" and (fault := self.faults.get(str(record.get("fault")))):
            fault.held = False
            self._quiet_t = moment(record["t"], self._quiet_t)
        elif event == "job_over":
            self._over_t = moment(record["t"], math.inf)
        elif event == "trial_end":
            news = self._close(*self._shares)
            self._over = True
            last = self._recovered()
            return replace(
                news, recovered=(*news.recovered, *last.recovered), settled=(*news.settled, *last.settled)
            )  # fmt: skip
        return NOTHING

    def _fault(self, record: Record, *, injected: bool) -> News:
        name = str(record.get("fault"))
        if "fault" not in record or (not injected and name in self.faults):
            return NOTHING
        t = moment(record.get("inject_t") or record["t"], math.nan)
        if math.isnan(t):
            return NOTHING
        found = record.get("target") or ()
        target = (found,) if isinstance(found, str) else tuple(str(it) for it in found)
        plan = self._planned.get(name, record)
        phase, kind = str(plan.get("phase") or ""), str(record.get("kind", "?"))
        begin_t = moment(record["t"], t)
        before = any(it.injected for it in self.faults.values())
        shares = before and (overlaps(plan) or (may_overlap(plan) and not self._steady(t)))
        with_before = shares, shares or phase == DURING_RECOVERY
        self.faults[name] = FaultSeen(name, kind, phase, target, t, injected, injected, begin_t, *with_before)
        if injected:
            self._quiet_t, self._reached = begin_t, max(self._reached, self.step)
        return self._recovered()

    def _steady(self, t: float) -> bool:
        """Whether the job had got over all that was done to it before a moment."""
        full = self._full or max((it.world for it in self.generations.values()), default=0)
        last = [it for it in self._ends if self._quiet_t < it[0] <= t][-STEADY_STEPS:]
        if len(last) < STEADY_STEPS or any(it.held for it in self.faults.values()):
            return False
        _, generation, _, step = last[-1]
        return step > self._reached and all(it[1] == generation and it[2] >= full for it in last)

    def _symptom(self, record: Record) -> None:
        """A sign that something failed, unless the job is being ended or has made no step yet."""
        ending = self.nodes and len(self._leaving) >= self.nodes
        if self.newest and self.symptom_t is None and not ending:
            self.symptom_t = moment(record["t"], 0.0)
