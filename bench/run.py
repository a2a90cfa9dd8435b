"""One run, from a suite to a sealed directory. Called by `bench.__main__`; with a nemesis it is a chaos run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import rundir
from bench.capabilities import CanUseVolume
from bench.jobview import JobView
from bench.keeper import BY_HAND_MAX, Keeper
from bench.mechanisms import control_folder, extra_nodes, supervised
from bench.plan import Plan, host_mbps, make_plan
from bench.progress import Quiet, Watch
from bench.protocols import (
    Cluster,
    ClusterRequest,
    Emit,
    Nemesis,
    Node,
    ProcessExit,
    ProcessSpec,
    Schedule,
    TrialFiles,
    Workload,
)
from bench.provenance import provenance
from bench.rundir import RunDir
from bench.spec import SpecError, Suite, Trial, as_document
from bench.tail import Tail, last_line
from bench.workloads import WORKLOADS
from training.events import EventWriter

TICK_S = 0.05  # how often exits are looked for
SAMPLE_S = 1.0  # how often the machine is sampled and progress shown
GRACE_S = 5.0  # from SIGTERM to SIGKILL
COMPANY_S = 20.0  # how long a trial waits for the first step of its neighbours
FOREVER = 1000  # times a trial's steps: longer than any trial
SILENCE_S = 60.0  # without a step for so long (or 20 steps, if that is longer), a trial has failed


class TrialFailed(Exception):  # noqa: N818 - an outcome, not a programming error
    """A trial that did not end well; the message says why."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of beside suite and cluster; the defaults make a benchmark."""

    workloads: Mapping[str, Workload] = field(default_factory=lambda: WORKLOADS)
    schedule: Schedule | None = None
    nemesis: Nemesis | None = None
    watch: Watch = field(default_factory=Quiet)
    between: Callable[[RunDir], None] | None = None  # called once block a is done, before block b (`bench.plan.blocks`)
    impossible: Mapping[str, str] = field(default_factory=dict)  # fault → why this cluster cannot do it
    calibration: Mapping[str, Any] | None = None  # what the host moves without limits (`bench.calibrate`)


def run(suite: Suite, cluster: Cluster, runs: Path, parts: Parts | None = None, resume: RunDir | None = None) -> RunDir:
    """Do every trial of a suite on a cluster; returns the run's directory.

    1. Plan; what cannot be done is refused (SpecError) before anything exists.
    2. Open the store: a new directory, or the one to resume; save spec, plan and provenance.
    3. Bring the cluster up, and get the nemesis ready.
    4. For each trial not done yet: shape links and shares, start its processes, and drive it: note exits, sample the
       machine, do what the schedule says. The first trial that fails ends the run. Between blocks a and b: predict.
    5. Whatever happens (a failure, Ctrl-C): heal, stop all processes, take the cluster down, merge the events into one
       history and seal the directory, as incomplete if a trial is missing.

    Raises:
        SpecError: the plan was refused.
        TrialFailed: a trial failed; the directory is sealed and says why.
    """
    parts = parts or Parts()
    plan = make_plan(suite, cluster, parts.workloads, host_mbps(parts.calibration))
    plan = replace(plan, refused=(*plan.refused, *({"fault": it, "why": why} for it, why in parts.impossible.items())))
    store = resume or rundir.create(runs, suite.name)
    with ExitStack() as stack:
        emit = stack.enter_context(history(store, cluster, plan))
        left = save(store, suite, plan, emit, cluster.now())
        if parts.calibration:
            store.write("calibration", parts.calibration)
        stack.callback(cluster.teardown)
        nodes = cluster.setup(request(suite, plan, store), emit)
        if parts.nemesis:
            stack.callback(parts.nemesis.teardown)
            parts.nemesis.setup(cluster, emit)
        stack.enter_context(parts.watch)
        parts.watch.plan(plan, left, store)
        first_of_b = next((trial for trial in plan.trials if trial.block == "b"), None)
        for trial in left:
            if trial is first_of_b and parts.between:
                seal_prediction(store, parts.between, emit)
            drive(Scene(trial, cluster, parts, store, emit, nodes, suite.volume_mb))
    return store


def seal_prediction(store: RunDir, predict: Callable[[RunDir], None], emit: Emit) -> None:
    """Have block b predicted before it is measured, once; the event says what was predicted (its hash), and when."""
    file = store.path / "prediction.json"
    if not file.exists():
        predict(store)
        if file.exists():
            emit("prediction", sha256=rundir.sha256(file), wall_s=time.time())
        else:
            emit("warning", message="no prediction could be made from block a: see what the harness printed")


@contextmanager
def history(store: RunDir, cluster: Cluster, plan: Plan) -> Iterator[Emit]:
    """The harness' event file; when it closes, all events are merged and the directory is sealed."""
    why = "interrupted"
    with closing(EventWriter(store.events / "harness.jsonl")) as writer:

        def emit(event: str, **fields: object) -> None:
            writer.emit(event, **{"t": cluster.now(), **fields})

        try:
            yield emit
            why = ""
        except Exception as error:
            why = str(error) or type(error).__name__
            raise
        finally:
            settle(store, plan, emit, why)


def settle(store: RunDir, plan: Plan, emit: Emit, why: str) -> None:
    """Say how the run ended, merge all events, and seal.

    Raises:
        OSError: the disk is full, say: what was recorded stays as it is, unsealed, and the run can be resumed.
    """
    try:
        shutil.rmtree(store.scratch, ignore_errors=True)
        emit("run_end", ok=not why, why=why)
        if odd := rundir.merge(store):
            for note in odd:
                emit("warning", message=note)
            rundir.merge(store)
        rundir.seal(store, complete=not why and done(store) >= {trial.id for trial in plan.trials})
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; the run is not sealed, `bench run --resume` ends it") from None


def save(store: RunDir, suite: Suite, plan: Plan, emit: Emit, t: float) -> list[Trial]:
    """Write what was asked for; the trials that are still to be done."""
    finished = done(store)
    if finished:
        check_same(store, plan)
    else:
        store.write("spec", as_document(suite))
        store.write("plan", plan.document())
        store.write("provenance", provenance(sys.argv, suite.seed, t))
    emit("resumed" if finished else "run_start", wall_s=time.time())
    store.scratch.mkdir(exist_ok=True)
    left = [trial for trial in plan.trials if trial.id not in finished]
    set_aside(store, left)
    return left


def check_same(store: RunDir, plan: Plan) -> None:
    """Refuse to go on with other trials than those that were begun.

    Raises:
        SpecError: the machine, or the suite file, is another one now.
    """
    if json.loads(json.dumps(plan.document()))["trials"] != store.read("plan")["trials"]:
        raise SpecError(f"{store.path}: the plan asks for other trials now (another machine or suite); start a new run")


def done(store: RunDir) -> set[str]:
    """The trials that ended well."""
    file = store.events / "harness.jsonl"
    records = rundir.read_events(file) if file.exists() else iter(())
    return {str(record["trial"]) for record in records if record["event"] == "trial_end" and record["ok"]}


def set_aside(store: RunDir, trials: Sequence[Trial]) -> None:
    """Keep what an interrupted trial had written, but out of the way of its next attempt."""
    for trial in trials:
        for file in [*store.events.glob(f"{trial.id}.*"), *store.logs.glob(f"{trial.id}.*")]:
            attic = store.path / "interrupted"
            attic.mkdir(exist_ok=True)
            file.rename(attic / f"{time.time_ns()}.{file.name}")


def request(suite: Suite, plan: Plan, store: RunDir) -> ClusterRequest:
    """What the cluster must offer for the largest trial."""
    return ClusterRequest(
        store.run_id,
        max(it.nodes + extra_nodes(it) for it in plan.trials),
        suite.disk_mb,
        store.scratch,
        suite.volume_mb,
        clocks=any(fault.get("kind") == "clock_skew" for trial in plan.trials for fault in trial.faults),
    )


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

    @property
    def members(self) -> set[str]:
        """Names of the nodes that are measured."""
        return {node.name for node in self.nodes[: self.trial.nodes]}


def drive(scene: Scene) -> None:
    """Do one trial from start to end and record how it went.

    Raises:
        TrialFailed: a process died, or made no step for too long.
    """
    trial, cluster, emit = scene.trial, scene.cluster, scene.emit
    cluster.shape(trial.link_mbps, trial.cpus_per_node)
    files = TrialFiles(scene.store.events, scene.store.logs, scene.store.scratch)
    workload = scene.parts.workloads[trial.workload]
    emit("trial_start", trial=trial.id)
    try:
        keep_company(scene, list(neighbours(scene, workload)))
        specs = workload.processes(trial, scene.nodes[: trial.nodes], files)
        if trial.mechanism:
            specs = supervised(specs, trial, scene.nodes, files)
        for spec in specs:
            start(scene, spec)
        watch_over(scene, specs, view_of(scene, files))
    except TrialFailed as failure:
        emit("trial_end", trial=trial.id, ok=False, why=str(failure))
        nodes_of = f"{trial.nodes} node" + "s" * (trial.nodes > 1)
        raise TrialFailed(f"trial {trial.id} ({trial.case}, {nodes_of}): {failure}") from None
    finally:
        if scene.parts.nemesis:
            scene.parts.nemesis.calm()
        cluster.stop(GRACE_S)
        note_exits(scene)
    emit("trial_end", trial=trial.id, ok=True, why="")


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


def keep_company(scene: Scene, specs: Sequence[ProcessSpec]) -> None:
    """Start the neighbours and wait, up to a limit, until each has made a step: starting up is not yet company."""
    for spec in specs:
        scene.emit("neighbour_start", trial=scene.trial.id, node=spec.node, pid=scene.cluster.start(spec))
    tail = Tail({spec.name: spec.events for spec in specs if spec.events})
    begin = scene.cluster.now()
    while specs and not tail.read() and scene.cluster.now() - begin < COMPANY_S:
        scene.cluster.sleep(TICK_S)


def start(scene: Scene, spec: ProcessSpec, again: int = 0) -> None:
    """Start one process of the trial; `again` counts how often it was started before."""
    more = {"again": again} if again else {}
    pid = scene.cluster.start(spec)
    scene.emit("process_start", trial=scene.trial.id, node=spec.node, slot=spec.slot, pid=pid, **more)


def view_of(scene: Scene, files: TrialFiles) -> JobView:
    """The trial's job, for whoever breaks things."""
    trial, names = scene.trial, [node.name for node in scene.nodes]
    volume = scene.cluster.volume / trial.id if scene.volume_mb and isinstance(scene.cluster, CanUseVolume) else None
    return JobView(
        trial, names[: trial.nodes], names[trial.nodes] if trial.mechanism else None, files.events,
        control_folder(trial, files), volume, scene.cluster.now, scene.cluster.now(),
    )  # fmt: skip


def watch_over(scene: Scene, specs: Sequence[ProcessSpec], view: JobView) -> None:
    """Let the trial run until all of its processes have ended well, or its schedule says that it is over."""
    trial, cluster, parts = scene.trial, scene.cluster, scene.parts
    alive = {spec.name for spec in specs if not spec.serves}
    keeper = Keeper(specs, lambda spec, again: start(scene, spec, again), cluster.now)
    tail = Tail({spec.name: spec.events for spec in specs if spec.events})
    begin = progress_t = cluster.now()
    sample = every(SAMPLE_S, cluster.now)
    step = 0
    while alive:
        cluster.sleep(TICK_S)
        ended = note_exits(scene)
        if trial.mechanism:
            alive = keep(scene, keeper, ended)
        else:
            refuse_deaths(scene, ended)
            alive -= set(ended)
        if break_things(parts, view):
            break
        if sample():
            scene.emit("machine", trial=trial.id, **cluster.sample())
            newest = tail.read()
            progress_t = cluster.now() if newest > step else progress_t
            step = newest
            shown = round(parts.schedule.share(trial, view) * trial.steps) if parts.schedule else step
            parts.watch.step(trial, shown, tail.rates())
            if cluster.now() - progress_t > silence_s(trial):
                raise TrialFailed(f"no step for {cluster.now() - progress_t:.0f} s after step {step}")
    parts.watch.trial_done(trial, cluster.now() - begin)


def silence_s(trial: Trial) -> float:
    """Without a step for so long, a trial has failed."""
    return max(SILENCE_S, 20 * trial.estimate_s / trial.steps)


def keep(scene: Scene, keeper: Keeper, ended: Mapping[str, ProcessExit]) -> set[str]:
    """Do what a node agent does, and what a person does when a job gave up; the names still awaited.

    Raises:
        TrialFailed: it gave up too often.
    """
    nemesis = scene.parts.nemesis
    keeper.tend(ended, nemesis.down if nemesis else ())
    if keeper.stands_still:
        if keeper.by_hand == BY_HAND_MAX:
            raise TrialFailed(f"the job gave up {BY_HAND_MAX + 1} times")
        scene.emit("by_hand", trial=scene.trial.id)
        keeper.start_by_hand()
    return set() if keeper.over else {"the job"}


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
        scene.emit("process_exit" if it.node in scene.members else "neighbour_exit", trial=scene.trial.id, **about)
        ended[f"{it.node}.{it.slot}"] = it
    return ended


def refuse_deaths(scene: Scene, ended: Mapping[str, ProcessExit]) -> None:
    """A benchmark with a dead worker is no benchmark (nor one whose idle nodes stop keeping it company).

    Raises:
        TrialFailed: a process died; says how, and its last words.
    """
    for name, it in ended.items():
        if it.code:
            how = f"was killed by signal {-it.code}" if it.code < 0 else f"exited with status {it.code}"
            words = last_line(scene.store.logs / f"{scene.trial.id}.{name}.log")
            raise TrialFailed(f"{name} {how}" + (f": {words}" if words else ""))


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
