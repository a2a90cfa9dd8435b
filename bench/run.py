"""One run, from a suite to a sealed directory. Called by `bench.runner`; with a nemesis it is a chaos run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from proving_ground.bench import faithful, further, monitor, rundir
from proving_ground.bench.drive import Parts, Scene, TrialFailed, TrialMistaken, drive
from proving_ground.bench.faithful import Calibration, spare_nodes
from proving_ground.bench.further import Further, Sizes
from proving_ground.bench.mechanisms import extra_nodes
from proving_ground.bench.nodes import refuse_what_does_not_fit, with_roles
from proving_ground.bench.plan import Plan, make_plan
from proving_ground.bench.protocols import Cluster, ClusterRequest, Emit, Nemesis
from proving_ground.bench.provenance import provenance
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import SpecError, Suite, Trial, as_document
from proving_ground.training.events import EventWriter

__all__ = ["Parts", "TrialFailed", "TrialMistaken", "run"]


def run(
    suite: Suite,
    cluster: Cluster,
    runs: Path,
    parts: Parts | None = None,
    resume: RunDir | None = None,
    made: Plan | None = None,
) -> RunDir:
    """Do every trial of a suite on a cluster; returns the run's directory.

    1. Plan, unless the caller has `made` the plan already to show it; what cannot be done is refused (SpecError) before
       anything exists.
    2. Open the store: a new directory, or the one to resume; save spec, plan and provenance.
    3. Bring the cluster up, keep what is known of its nodes, refuse what does not fit there; get the nemesis ready.
    4. For each trial not done yet: shape links and shares, start its processes, and drive it: note exits, sample the
       machine, do what the schedule says. The first trial that fails ends the run. Between blocks a and b: predict.
       What all of them leave undecided gets further repeats, where the suite asks for that and time is left.
    5. Whatever happens (a failure, Ctrl-C): heal, stop all processes, take the cluster down, merge the events into one
       history and seal the directory, as incomplete if a trial is missing.

    Raises:
        SpecError: the plan was refused.
        TrialFailed: a trial failed; the directory is sealed and says why.
    """
    parts = parts or Parts()
    plan = made or make_plan(suite, cluster, parts.workloads, Calibration.of(parts.calibration))
    plan = replace(plan, refused=(*plan.refused, *({"fault": it, "why": why} for it, why in parts.impossible.items())))
    store = resume or rundir.create(runs, suite.name)
    if resume and (before := added_before(resume)):
        plan = plan.extended(before)
    with ExitStack() as stack:
        stack.enter_context(rundir.held(store))
        emit = stack.enter_context(history(store, cluster))
        save(store, suite, plan.document(parts.nemesis), cluster.now())
        left = begin(store, plan, emit)
        if parts.calibration:
            store.write("calibration", parts.calibration)
        stack.callback(cluster.teardown)
        asked = request(suite, plan, store, parts.nemesis)
        nodes = with_roles(cluster.setup(asked, emit), asked.coordinating)
        refuse_what_does_not_fit(plan.trials, nodes)
        plan = replace(plan, nodes=tuple(nodes))
        store.write("plan", plan.document(parts.nemesis))
        if parts.nemesis:
            stack.callback(parts.nemesis.teardown)
            parts.nemesis.setup(cluster, emit)
        if suite.monitor:
            stack.enter_context(monitor.beside(store, emit, suite.monitor_factor))
        stack.enter_context(parts.watch)
        parts.watch.plan(plan, left, store)
        scene = Scene(plan.trials[0], cluster, parts, store, emit, nodes, suite.volume_mb, plan.trials)
        took_s = drive_all(scene, left)
        if parts.undecided and plan.looks > 1 and not (store.path / "undecided.json").exists():
            plan = look(plan, scene, suite, parts.undecided, took_s)
            if more := plan.trials[len(scene.trials) :]:
                store.write("plan", plan.document(parts.nemesis))
                parts.watch.plan(plan, more, store)
                drive_all(replace(scene, trials=plan.trials), more)
    return store


def drive_all(scene: Scene, trials: Sequence[Trial]) -> dict[str, float]:
    """Do the trials, one after the other; the seconds that each took, by its id."""
    parts, took_s = scene.parts, dict[str, float]()
    first_of_b = next((trial for trial in scene.trials if trial.block == "b"), None)
    for trial in trials:
        if trial is first_of_b and parts.between:
            seal_prediction(scene.store, parts.between, scene.emit)
        begin_t = scene.cluster.now()
        drive(replace(scene, trial=trial))
        took_s[trial.id] = scene.cluster.now() - begin_t
        parts.watch.trial_done(trial, took_s[trial.id])
    return took_s


def look(
    plan: Plan, scene: Scene, suite: Suite, undecided: Callable[[RunDir], Sizes], took_s: Mapping[str, float]
) -> Plan:
    """Ask what is undecided, once; the plan with as many further repeats of it as the time allows."""
    sizes = undecided(scene.store)
    if not (scene.store.path / "undecided.json").exists():
        scene.emit("warning", message="what is still open could not be told: see what the harness printed")
    trials_s = sum(took_s.get(trial.id, trial.estimate_s) for trial in plan.trials)
    left_s = faithful.left_s(suite, Calibration.of(scene.parts.calibration)) - trials_s
    rounds = further.rounds_within(left_s, further.one_round(plan.trials, sizes), took_s) if sizes else 0
    scene.emit("undecided", sizes=sizes, rounds=rounds, left_s=round(left_s, 1))
    return plan.extended(Further(sizes, rounds)) if rounds else plan


def added_before(store: RunDir) -> Further | None:
    """What an earlier sitting of this run added to its plan."""
    added = store.read("plan").get("further") if (store.path / "plan.json").exists() else None
    return Further(added["sizes"], added["rounds"]) if added else None


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
def history(store: RunDir, cluster: Cluster) -> Iterator[Emit]:
    """The harness' event file; when it closes, all events are merged and the directory is sealed."""
    why = "interrupted"
    sitting = sittings_so_far(store) + 1
    which = {rundir.SITTING: sitting} if sitting > 1 else {}
    with closing(EventWriter(store.events / "harness.jsonl")) as writer:

        def emit(event: str, **fields: object) -> None:
            writer.emit(event, **{"t": cluster.now(), **which, **fields})

        try:
            yield emit
            why = ""
        except Exception as error:
            why = str(error) or type(error).__name__
            raise
        finally:
            settle(store, emit, why)


def sittings_so_far(store: RunDir) -> int:
    """How often the run was begun or resumed before."""
    file = store.events / "harness.jsonl"
    records = rundir.read_events(file) if file.exists() else iter(())
    return sum(record.get("event") in ("run_start", "resumed") for record in records)


def settle(store: RunDir, emit: Emit, why: str) -> None:
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
        rundir.seal(store, complete=not why and done(store) >= planned(store))
    except OSError as error:
        how = f"`pg bench run --resume {store.path}` ends it"
        raise OSError(error.errno, f"{error.strerror}; the run is not sealed, {how}") from None


def save(store: RunDir, suite: Suite, plan: Mapping[str, Any], t: float) -> None:
    """Write what was asked for; or, of a run that goes on, see that it is the same, and by which code it goes on.

    Raises:
        SpecError: the machine, or the suite file, is another one now.
    """
    before, origin = sittings_so_far(store), provenance(sys.argv, suite.seed, t)
    if not done(store):
        store.write("spec", as_document(suite))
        store.write("plan", plan)
    elif json.loads(json.dumps(plan))["trials"] != store.read("plan")["trials"]:
        why = "the plan asks for other trials now (another machine, suite or code)"
        raise SpecError(f"{store.path}: {why}; start a new run")
    if before:
        first = store.read("provenance")
        sittings = [*first.get("sittings", ()), {**origin, "sitting": before + 1}]
        store.write("provenance", {**first, "sittings": sittings})
    else:
        store.write("provenance", origin)


def begin(store: RunDir, plan: Plan, emit: Emit) -> list[Trial]:
    """Say that it begins, or goes on; the trials that are still to be done."""
    finished = done(store)
    emit("resumed" if sittings_so_far(store) else "run_start", wall_s=time.time())
    shutil.rmtree(store.scratch, ignore_errors=True)  # of a harness that was killed: its checkpoints are no one's
    store.scratch.mkdir()
    left = [trial for trial in plan.trials if trial.id not in finished]
    set_aside(store, left)
    return left


def planned(store: RunDir) -> set[str]:
    """The trials of the plan as it stands, with what was added to it."""
    return {str(trial["id"]) for trial in store.read("plan")["trials"]}


def done(store: RunDir) -> set[str]:
    """The trials that ended well."""
    file = store.events / "harness.jsonl"
    records = rundir.read_events(file) if file.exists() else iter(())
    return {str(record["trial"]) for record in records if record["event"] == "trial_end" and record["ok"]}


def set_aside(store: RunDir, trials: Sequence[Trial]) -> None:
    """Keep what an interrupted trial had written, but out of the way of its next attempt."""
    for trial in trials:
        for file in [*store.events.glob(f"{trial.id}.*"), *store.logs.glob(f"{trial.id}.*")]:
            attic = store.path / rundir.INTERRUPTED
            attic.mkdir(exist_ok=True)
            file.rename(attic / f"{time.time_ns()}.{file.name}")


def most_nodes(plan: Plan) -> int:
    """Nodes of the largest job, with those beside the ones that train."""
    return max(trial.nodes + extra_nodes(trial) for trial in plan.trials)


def request(suite: Suite, plan: Plan, store: RunDir, nemesis: Nemesis | None = None) -> ClusterRequest:
    """What the cluster must offer for the largest trial, and, where idle nodes train, for those that are spare."""
    spare = spare_nodes(suite) if any(trial.neighbours for trial in plan.trials) else 0
    train, most = max(it.nodes for it in plan.trials), most_nodes(plan)
    needs = {name for it in plan.trials for fault in it.faults for name in nemesis.needs(fault)} if nemesis else set()
    return ClusterRequest(
        store.run_id,
        most + spare,
        suite.disk_mb,
        store.scratch,
        suite.volume_mb,
        clocks="skew" in needs,
        coordinating=range(train, most),
        sitting=sittings_so_far(store),
    )
