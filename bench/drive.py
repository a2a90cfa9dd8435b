"""One trial, from the start of its processes to their end. Called by `bench.run`.

A benchmark's processes must all end well. A job with a mechanism gets over failures: its node agent starts processes
again, and where there is a schedule, a nemesis breaks things meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from proving_ground.bench import lineage
from proving_ground.bench.capabilities import MovesNodes
from proving_ground.bench.company import Company
from proving_ground.bench.further import Sizes
from proving_ground.bench.jobstate import one_tells
from proving_ground.bench.jobview import JobView
from proving_ground.bench.keeper import BY_HAND_MAX, Keeper
from proving_ground.bench.mechanisms import MECHANISMS, control_folder, coordinator_of, supervised, traits_of
from proving_ground.bench.progress import Quiet, Watch
from proving_ground.bench.protocols import (
    CanKill,
    Cluster,
    Emit,
    KnowsFate,
    Nemesis,
    Node,
    ProcessExit,
    ProcessSpec,
    Schedule,
    TrialFiles,
    Workload,
)
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Trial
from proving_ground.bench.tail import LIBRARY, Tail, last_line
from proving_ground.bench.workloads import WORKLOADS
from proving_ground.training.events import MISTAKE

TICK_S = 0.05  # how often exits are looked for
SAMPLE_S = 1.0  # how often the machine is sampled and progress shown
GRACE_S = 5.0  # from SIGTERM to SIGKILL
SETTLE_S = 1.0  # after a death, for the exits of the others that it is due to, or that are due to it
ABORTED = "terminate called without an active exception"  # by a thread of Gloo's, while Python shuts down
OUTLIVED = " (after its last step? Gloo does that to scripts now and then: end yours with os._exit(0))"
FOREVER = 1000  # times a trial's steps: longer than any trial


class TrialFailed(Exception):  # noqa: N818 - an outcome, not a programming error
    """A trial that did not end well; the message says why."""


class TrialMistaken(TrialFailed):
    """A trial that cannot end well: what it was told cannot be. Exit status 2."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of beside suite and cluster; the defaults make a benchmark."""

    workloads: Mapping[str, Workload] = field(default_factory=lambda: WORKLOADS)
    schedule: Schedule | None = None
    nemesis: Nemesis | None = None
    watch: Watch = field(default_factory=Quiet)
    between: Callable[[RunDir], None] | None = None  # called once block a is done, before block b (`bench.plan.blocks`)
    undecided: Callable[[RunDir], Sizes] | None = None  # called once all repeats are there, if the suite asks for it
    impossible: Mapping[str, str] = field(default_factory=dict)  # fault → why this cluster cannot do it
    calibration: Mapping[str, Any] | None = None  # what the host moves without limits (`bench.calibrate`)


@dataclass(frozen=True)
class Scene:
    """One trial and all that takes part in it."""

    trial: Trial
    cluster: Cluster
    parts: Parts
    store: RunDir
    emit: Emit
    nodes: Sequence[Node]  # all that are up; the trial has the first of them
    volume_mb: int | None = None
    trials: Sequence[Trial] = ()  # all of the plan

    @property
    def members(self) -> set[str]:
        """Names of the nodes that are measured."""
        return {node.name for node in self.nodes[: self.trial.nodes]}


def drive(scene: Scene) -> None:
    """Do one trial from start to end and record how it went.

    Raises:
        TrialFailed: a process died, or made no step for too long.
        TrialMistaken: a process was told what cannot be.
    """
    trial, cluster, emit = scene.trial, scene.cluster, scene.emit
    cluster.shape(trial.link_mbps, trial.cpus_per_node)
    scene = as_it_is(scene)
    files = TrialFiles(scene.store.events, scene.store.logs, scene.store.scratch)
    workload = scene.parts.workloads[trial.workload]
    emit("trial_start", trial=trial.id, **traits_of(trial))
    grace_s = GRACE_S
    if trial.replays and not lineage_found(scene, files):
        emit("trial_end", trial=trial.id, ok=True, why="")
        return
    try:
        company = keep_company(scene, list(neighbours(scene, workload)))
        specs = processes(scene, files)
        for spec in specs:
            start(scene, spec)
        watch_over(scene, specs, files, company)
        company.end()
        grace_s = 0.0 if trial.neighbours else GRACE_S  # neighbours have nothing to put away, and would take seconds
    except TrialFailed as failure:
        emit("trial_end", trial=trial.id, ok=False, why=str(failure))
        nodes_of = f"{trial.nodes} node" + "s" * (trial.nodes > 1)
        raise type(failure)(f"trial {trial.id} ({trial.case}, {nodes_of}): {failure}") from None
    finally:
        if scene.parts.nemesis:
            scene.parts.nemesis.calm()
        cluster.stop(grace_s)
        note_exits(scene)
    emit("trial_end", trial=trial.id, ok=True, why="")


def as_it_is(scene: Scene) -> Scene:
    """The same with its nodes as they are now: one that was lost may have come back elsewhere."""
    if not isinstance(scene.cluster, MovesNodes):
        return scene
    now = {node.name: node for node in scene.cluster.present()}
    nodes = [replace(now[node.name], role=node.role) for node in scene.nodes]
    return scene if nodes == list(scene.nodes) else replace(scene, nodes=nodes)


def processes(scene: Scene, files: TrialFiles) -> Sequence[ProcessSpec]:
    """What is started for the trial on its nodes as they are now."""
    trial = scene.trial
    specs = scene.parts.workloads[trial.workload].processes(trial, scene.nodes[: trial.nodes], files)
    return supervised(specs, trial, scene.nodes, files) if trial.mechanism else specs


def moves(before: Scene, now: Scene) -> dict[str, str]:
    """Node → the address that it has now, for those that had another before: commands have to name the new one."""
    pairs = zip(before.nodes, now.nodes, strict=True)
    return {node.name: node.address for was, node in pairs if was.address != node.address}


def lineage_found(scene: Scene, files: TrialFiles) -> bool:
    """Write down what a replay is to make again; whether there is something, else the event says why not."""
    trial, names = scene.trial, [node.name for node in scene.nodes]
    replayed = next(it for it in scene.trials if it.id == trial.replays)
    try:
        found = lineage.write(trial, replayed, files, names)
    except lineage.LineageError as error:
        scene.emit("no_replay", trial=trial.id, of=trial.replays, why=str(error))
        return False
    why = "" if found else "its size never changed"
    about = {"stretches": [asdict(it) for it in found]} if found else {"why": why}
    scene.emit("lineage" if found else "no_replay", trial=trial.id, of=trial.replays, **about)
    return bool(found)


def neighbours(scene: Scene, workload: Workload) -> Iterator[ProcessSpec]:
    """What idle nodes do: where nodes share cores, each trains by itself, unmeasured, for as long as the trial lasts.

    A core that is busy a fifth of the time is slower while it is busy than one that is busy all the time (cold caches,
    a virtual processor that was put to sleep), so without neighbours the smallest size would look slow.
    """
    trial, scratch = scene.trial, scene.store.scratch
    if trial.neighbours:
        alone = replace(trial, nodes=1, global_batch=trial.batch_per_node, steps=trial.steps * FOREVER)
        for node in scene.nodes[trial.nodes :]:
            files = TrialFiles(scratch, scratch, scratch)
            yield from workload.processes(replace(alone, id=f"{trial.id}-{node.name}"), [node], files)


def keep_company(scene: Scene, specs: Sequence[ProcessSpec]) -> Company:
    """Start the neighbours; of a trainer that tells on rank 0 only, that rank is heard."""
    by_rank_0 = one_tells(scene.trial.command)
    for spec in specs:
        if spec.events:
            spec.events.unlink(missing_ok=True)  # of an earlier attempt that was cut off
        scene.emit("neighbour_start", trial=scene.trial.id, node=spec.node, pid=scene.cluster.start(spec))
    return Company(scene.trial.id, scene.emit, [it for it in specs if not (by_rank_0 and it.slot)])


def start(scene: Scene, spec: ProcessSpec, again: int = 0) -> None:
    """Start one process of the trial; `again` counts how often it was started before."""
    more = ({"again": again} if again else {}) | ({"serves": True} if spec.serves else {})
    pid = scene.cluster.start(spec)
    scene.emit("process_start", trial=scene.trial.id, node=spec.node, slot=spec.slot, pid=pid, **more)


def view_of(scene: Scene, files: TrialFiles) -> JobView:
    """The trial's job, for whoever breaks things."""
    trial, names = scene.trial, [node.name for node in scene.nodes]
    volume = trial.id if scene.volume_mb else None
    return JobView(
        trial, names[: trial.nodes], coordinator_of(trial, names), files.events,
        control_folder(trial, files), volume, scene.cluster.now, scene.cluster.now(),
        marks=marks_of(scene),
    )  # fmt: skip


def marks_of(scene: Scene) -> dict[str, Mapping[str, str]]:
    """Node → what it can be aimed at by."""
    return {node.name: node.marks for node in scene.nodes}


def watch_over(scene: Scene, specs: Sequence[ProcessSpec], files: TrialFiles, company: Company) -> None:
    """Let the trial run until all of its processes have ended well, or its schedule says that it is over."""
    trial, cluster, parts = scene.trial, scene.cluster, scene.parts
    keeper, view = keeper_of(scene, specs), view_of(scene, files)
    followed = {name: file for spec in specs for name, file in spec.event_files.items()}
    tail = Tail(followed, one_tells=any_rank_tells(trial))
    progress_t = cluster.now()
    sample = every(SAMPLE_S, cluster.now)
    step = 0
    while not keeper.over:
        cluster.sleep(TICK_S)
        company.look()
        ended = note_exits(scene)
        if not trial.mechanism:
            refuse_deaths(scene, ended)
        before, scene = scene, as_it_is(scene)
        if scene is not before:
            view.marks = marks_of(scene)
        moved = moves(before, scene)
        keep(scene, keeper, tail, ended, processes(scene, files) if moved else None)
        if moved:
            scene.emit("moved", trial=trial.id, nodes=moved, ends=sorted(keeper.outdated))
        begun_t = cluster.now()
        if break_things(parts, view):
            scene.emit("job_over", trial=trial.id)
            break
        progress_t += cluster.now() - begun_t  # a machine that boots is not the job's silence
        if sample():
            scene.emit("machine", trial=trial.id, **cluster.sample())
            newest = tail.read()
            progress_t = cluster.now() if newest > step else progress_t
            step = newest
            shown = round(parts.schedule.share(trial, view) * trial.steps) if parts.schedule else step
            waits = parts.schedule.waits_for(trial, view) if parts.schedule else ""
            parts.watch.step(trial, shown, tail.rates(), waits)
            refuse_silence(trial, step, cluster.now() - progress_t)


def any_rank_tells(trial: Trial) -> bool:
    """Whether one rank's step says that the job gets on: those outside of a smaller world make none meanwhile."""
    return one_tells(trial.command) or bool(trial.mechanism) or trial.role == "replay"


def keeper_of(scene: Scene, specs: Sequence[ProcessSpec]) -> Keeper:
    """The node agent of a trial; of a mechanism without launchers it ends the whole job when a process has ended."""

    def end(spec: ProcessSpec) -> None:
        if isinstance(scene.cluster, CanKill) and spec.node not in scene.cluster.away:
            scene.cluster.kill(spec.node, spec.slot, signal.SIGKILL)

    mechanism = MECHANISMS.get(scene.trial.mechanism)
    together = bool(mechanism and mechanism.together)
    return Keeper(specs, lambda spec, again: start(scene, spec, again), scene.cluster.now, together, end)


def refuse_silence(trial: Trial, step: int, silent_s: float) -> None:
    """A trial that makes no step for too long has failed; the first one may take longer.

    Raises:
        TrialFailed: says for how long, and which key of the case allows for more.
    """
    if step and silent_s > silence_s(trial):
        raise TrialFailed(f"no step for {silent_s:.0f} s after step {step}; the case's silence_s allows for more")
    if not step and silent_s > max(trial.startup_s, silence_s(trial)):
        raise TrialFailed(f"no first step within {silent_s:.0f} s; the case's startup_s allows for more")


def silence_s(trial: Trial) -> float:
    """Without a step for so long, a trial has failed; under a mechanism longer than a schedule is patient."""
    schedule_s = 3 * trial.patience_s + max((it.get("hold_s") or 0.0 for it in trial.faults), default=0.0)
    given_s = trial.silence_s
    return max(given_s, 20 * trial.estimate_s / trial.steps, given_s + schedule_s if trial.mechanism else 0.0)


def keep(
    scene: Scene,
    keeper: Keeper,
    tail: Tail,
    ended: Mapping[str, ProcessExit],
    anew: Sequence[ProcessSpec] | None = None,
) -> None:
    """Do what a node agent does, by other commands where there are, and what a person does when a job gave up.

    Raises:
        TrialFailed: it gave up too often.
        TrialMistaken: nobody could have it go on.
    """
    nemesis = scene.parts.nemesis
    keeper.tend(ended, {*(nemesis.down if nemesis else ()), *scene.cluster.away}, anew)
    refuse_mistakes(scene, keeper, tail)
    if keeper.stands_still:
        if keeper.by_hand == BY_HAND_MAX:
            raise TrialFailed(f"the job gave up {BY_HAND_MAX + 1} times")
        scene.emit("by_hand", trial=scene.trial.id)
        keeper.start_by_hand()


def refuse_mistakes(scene: Scene, keeper: Keeper, tail: Tail) -> None:
    """Who was told what cannot be ends the job, but for one that others carry on: then it is a stranger to them.

    Raises:
        TrialMistaken: says who, and its last words.
    """
    wrong = sorted({*keeper.mistaken, *tail.mistaken})
    if not wrong:
        return
    tail.read()  # what it told before it ended
    if tail.begun and not (keeper.together or keeper.stands_still or tail.all_mistaken):
        return
    raise TrialMistaken(how_it_ended(scene, wrong[0], MISTAKE))


def how_it_ended(scene: Scene, name: str, code: int) -> str:
    """A process' end in words, with its last ones."""
    how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
    words = last_line(scene.store.logs / f"{scene.trial.id}.{name}.log", LIBRARY if code == MISTAKE else None)
    cure = OUTLIVED if code == -signal.SIGABRT and ABORTED in words else ""
    return f"{name} {how}" + (f": {words}" if words else "") + cure


def break_things(parts: Parts, view: JobView) -> bool:
    """Do what the schedule says; whether the trial is over by it."""
    if not (parts.schedule and parts.nemesis):
        return False
    view.refresh()
    for operation in parts.schedule.due(view.trial, view):
        parts.nemesis.invoke(operation, view)
    return parts.schedule.over(view.trial, view)


def note_exits(scene: Scene) -> dict[str, ProcessExit]:
    """Record which processes ended since the last time; name → exit."""
    ended = {}
    for it in scene.cluster.exits():
        about = {"node": it.node, "slot": it.slot, "pid": it.pid, "code": it.code, "ended_t": it.t}
        about |= {"why": it.why} if it.why else {}
        scene.emit("process_exit" if it.node in scene.members else "neighbour_exit", trial=scene.trial.id, **about)
        ended[f"{it.node}.{it.slot}"] = it
    return ended


def refuse_deaths(scene: Scene, ended: Mapping[str, ProcessExit]) -> None:
    """A benchmark with a dead worker is no benchmark (nor one whose idle nodes stop keeping it company).

    Raises:
        TrialFailed: a process died; says which was the first, how, and its last words.
        TrialMistaken: it was told what cannot be.
        ClusterError: it ended with all nodes, for good.
    """
    refuse_loss(scene, ended)
    if not any(it.code for it in ended.values()):
        return
    scene.cluster.sleep(SETTLE_S)
    name, it = first_death({**ended, **note_exits(scene)})
    failure = TrialMistaken if it.code == MISTAKE else TrialFailed
    raise failure(how_it_ended(scene, name, it.code) + (f"; {it.why}" if it.why else ""))


def refuse_loss(scene: Scene, ended: Mapping[str, ProcessExit]) -> None:
    """A process may leave well, or badly, because its node is being taken away: then that is what is told.

    Raises:
        TrialFailed: the engine will give the node again, or another for it, too late for this trial; in its words.
    """
    taken = [it.node for it in ended.values() if it.node in scene.cluster.away]
    if taken and isinstance(scene.cluster, KnowsFate) and (why := scene.cluster.fate(taken[0])):
        raise TrialFailed(f"{taken[0]} was taken away: {why}")


def first_death(ended: Mapping[str, ProcessExit]) -> tuple[str, ProcessExit]:
    """The process to which the others' deaths are due: one that a signal ended, else the one that ended first.

    Who loses a peer ends too, with an error or (C++'s way with errors) by SIGABRT, and may be noticed earlier.
    """
    dead = [(name, it) for name, it in ended.items() if it.code]
    return min(dead, key=lambda pair: (pair[1].code > 0 or pair[1].code == -signal.SIGABRT, pair[1].t or 0.0))


def every(seconds: float, now: Callable[[], float]) -> Callable[[], bool]:
    """A question that is answered with yes once in so many seconds, at first at once."""
    last = -seconds

    def due() -> bool:
        nonlocal last
        if now() - last < seconds:
            return False
        last = now()
        return True

    return due
