"""What a batch system does to a job, and what becomes of it without its daemons. In `chaos.faults.FAULTS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from proving_ground.bench.capabilities import CanAdminister, CanLoseController, CanSignal
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults.engine import BACK_S, HIT, LOOK_S, NODE_GONE_S, TAKEN, known, regain, take, there, undo
from proving_ground.chaos.faults.fault import Evidence, Fault, Injection, nothing_to_heal
from proving_ground.chaos.faults.proof import Condition

QUEUED = "PENDING"  # squeue's word
SELDOM_S = 1.0  # from one question to the next, while nothing happens for a minute
SAVED_S = 6.0  # by then a controller has written down what has changed: Slurm's does so every five seconds


class TakesJobs(CanAdminister, CanSignal, Protocol):
    """A cluster whose batch system ends jobs, and that sees what ran on their nodes."""


def mark(scene: Injection[CanAdminister], it: Evidence, state: str) -> Evidence:
    """Have a machine closed, and note what is then said of it."""
    scene.state.setdefault("marked", []).append(it["where"])
    try:
        scene.can.mark(it["where"], state)
    except ClusterError:  # somebody else's stays as it is
        scene.state["marked"].remove(it["where"])
        raise
    return as_it_is(scene, it)


def as_it_is(scene: Injection[CanAdminister], it: Evidence) -> Evidence:
    """What is said of a node that was aimed at, and of the machine that it had then: it may have another by now."""
    return {**scene.can.machine(it["node"]), **scene.can.state_of(it["where"])}


def down(scene: Injection[TakesJobs]) -> Evidence:
    """Have each node's machine taken for down: the batch system ends what it runs there."""
    said: list[Evidence] = []
    found = take(scene, lambda it: said.append(mark(scene, it, "down")))
    scene.state["members"] = found["members"]
    return {**found, "said": said}


def drain(scene: Injection[CanAdminister]) -> Evidence:
    """Have each node's machine take no other job."""
    t = scene.cluster.now()
    scene.state["members"] = before = there(scene)
    return {"t": t, "members": before, "said": [mark(scene, it, "drain") for it in before]}


def resume(scene: Injection[CanAdminister]) -> Evidence:
    """Note what is said of the machines by now, and open those that are closed still."""
    if not scene.state.get("marked"):
        return {}
    members = scene.state.get("members", [])
    try:
        during = [as_it_is(scene, it) for it in members]
    finally:  # whether or not there is an answer
        resumed = undo(scene, "marked", lambda where: scene.can.mark(where, "resume"))
    return {"during": during, "resumed": resumed, "after": [as_it_is(scene, it) for it in members]}


def requeue(scene: Injection[TakesJobs]) -> Evidence:
    """Have the nodes' job put into the queue again; they come back when it begins again."""
    return {**take(scene, once(lambda: scene.can.requeue(scene.nodes))), "said": known(scene)}


def once(deed: Callable[[], None]) -> Callable[[Evidence], None]:
    """A deed that is done to all nodes at one stroke, whichever comes first."""
    done: list[Evidence] = []

    def do(it: Evidence) -> None:
        if not done:
            done.append(it)
            deed()

    return do


def preempt(scene: Injection[TakesJobs]) -> Evidence:
    """Have a job that is preferred take the machines; over when it has them."""
    scene.state["preempted"] = True
    found = take(scene, once(lambda: scene.can.preempt(on=True)))
    deadline = scene.cluster.now() + NODE_GONE_S
    while {it["state"] for it in known(scene)} != {"allocated"} and scene.cluster.now() < deadline:
        scene.cluster.sleep(LOOK_S)
    return {**found, "said": known(scene)}


def give_way(scene: Injection[CanAdminister]) -> Evidence:
    """Note who has the machines by now, and end the job that is preferred."""
    if not scene.state.get("preempted"):
        return {}
    try:
        during = known(scene)
    finally:
        scene.can.preempt(on=False)
        scene.state["preempted"] = False
    return {"during": during}


def lower_limit(scene: Injection[TakesJobs]) -> Evidence:
    """Have the job's notice come soon, by a lower time limit; over when it is in the queue again."""
    limits: list[Evidence] = []

    def lower() -> None:
        limits.append(dict(scene.can.limit(on=True)))

    scene.state["limited"] = True
    found = take(scene, once(lower), lambda: limits[0]["left_s"] + NODE_GONE_S, SELDOM_S)
    deadline = scene.cluster.now() + NODE_GONE_S
    said = known(scene)
    while {it["job"] for it in said} != {QUEUED} and scene.cluster.now() < deadline:
        scene.cluster.sleep(LOOK_S)
        said = known(scene)
    noticed = {it["node"]: it["noticed_t"] or 0.0 for it in said}
    first_t = min(filter(None, noticed.values()), default=found["t"])
    return {**found, "t": first_t, "limited_t": found["t"], "limit": limits[0], "noticed": noticed, "said": said}


def raise_limit(scene: Injection[CanAdminister]) -> Evidence:
    """Set the time limit as it was asked for, which anybody may do to a job that waits."""
    if not scene.state.get("limited"):
        return {}
    found = dict(scene.can.limit(on=False))
    scene.state["limited"] = False
    return {"limit": found}


def kill_daemon(scene: Injection[CanAdminister]) -> Evidence:
    """Kill the daemon of each node's machine; what it had started is on its own."""
    before = there(scene)
    machines = [it["where"] for it in before]
    pulses, answered = pulses_of(scene, machines), [scene.can.answers(it) for it in machines]
    killed = scene.state["killed"] = []
    t = scene.cluster.now()
    for where in machines:
        killed.append(where)
        scene.can.daemon(where, on=False)
    found = {"answered_before": answered, "answers": [scene.can.answers(it) for it in machines]}
    return {"t": t, "members": before, "pulses": pulses, **found}


def pulses_of(scene: Injection[CanAdminister], machines: Sequence[str]) -> list[Evidence]:
    """When each machine's daemon registered."""
    return [dict(scene.can.pulse(it)) for it in machines]


def start_daemon(scene: Injection[CanAdminister]) -> Evidence:
    """Note what is said of the machines by now, start their daemons, and wait until those have registered."""
    if not (killed := list(scene.state.get("killed", []))):
        return {}
    try:
        found = {"answered": [scene.can.answers(it) for it in killed], "during": known(scene)}
        before = pulses = pulses_of(scene, killed)
    finally:
        undo(scene, "killed", lambda where: scene.can.daemon(where, on=True))
    deadline = scene.cluster.now() + BACK_S
    while any(was["at"] == now["at"] for was, now in zip(before, pulses, strict=True)):
        if scene.cluster.now() > deadline:
            raise ClusterError(f"{', '.join(killed)}: not registered again {BACK_S:g} s after the daemon was started")
        scene.cluster.sleep(LOOK_S)
        pulses = pulses_of(scene, killed)
    return {**found, "pulses_after": pulses, "after": known(scene)}


def stop_controller(scene: Injection[CanLoseController]) -> Evidence:
    """Take the controller away; jobs go on. What was done to machines before is not to be forgotten with it."""
    scene.cluster.sleep(SAVED_S)
    before = there(scene)
    t, scene.state["stopped"] = scene.cluster.now(), True
    scene.can.control(on=False)
    return {"t": t, "members": before, "answers": scene.can.controlled()}


def start_controller(scene: Injection[CanLoseController]) -> Evidence:
    """Look whether it still is away, start it again, and note what it then says of the job."""
    if not scene.state.get("stopped"):
        return {}
    try:
        answered = scene.can.controlled()
    finally:
        scene.can.control(on=True)
        scene.state["stopped"] = False
    answers = regain(scene)
    return {"answered": answered, "answers": answers, "after": known(scene) if answers else []}


OPENED = Condition("end.after.*.state", "differ", "begin.said.*.state", means="it was open again afterwards")
DOWN = (*TAKEN, Condition("begin.said.*.state", "equal", value="down", means="sinfo called it down"), OPENED)
DRAINED = (
    *HIT,
    Condition("begin.said.*.state", "equal", value="draining", means="sinfo called it draining"),
    Condition("end.during.*.state", "equal", value="draining", means="and still at the end"),
    OPENED,
)
REQUEUED = (
    *TAKEN,
    Condition("begin.said.*.job", "differ", value="RUNNING", means="by squeue the job did not run any more"),
    Condition("begin.said.*.job", "some", means="and was still known"),
)
PREEMPTED = (
    *REQUEUED,
    Condition("begin.said.*.state", "equal", value="allocated", means="another job had the machine"),
    Condition("end.during.*.state", "equal", value="allocated", means="and still at the end"),
    Condition("end.during.*.id", "empty", means="while this one had to wait"),
)
LIMITED = (
    *TAKEN,
    Condition("begin.limit.limit_min", "below", "begin.limit.before_min", means="scontrol showed a lower time limit"),
    Condition("begin.noticed.*", "above", "begin.limited_t", means="each agent got its notice afterwards"),
    Condition("begin.said.*.job", "equal", value=QUEUED, means="by squeue the job waited to begin again"),
    Condition("end.limit.limit_min", "equal", "begin.limit.before_min", means="scontrol showed the old one at the end"),
)
DAEMONLESS = (
    *HIT,
    Condition("begin.answered_before.*", "equal", value=True, means="the daemon took connections before"),
    Condition("begin.answers.*", "equal", value=False, means="nothing took connections in the daemon's place"),
    Condition("end.answered.*", "equal", value=False, means="nor at the end"),
    Condition("end.pulses_after.*.at", "differ", "begin.pulses.*.at", means="another daemon registered afterwards"),
)
UNCONTROLLED = (
    Condition("begin.answers", "equal", value=False, means="the controller did not answer any more"),
    Condition("end.answered", "equal", value=False, means="nor at the end"),
    Condition("end.answers", "equal", value=True, means="it answered once it had been started again"),
)

FAULTS = [
    Fault(
        "slurm_node_down", "a node's machine marked down: Slurm ends what runs there", ("operator", "signals"), 5.0,
        down, resume, DOWN, ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "slurm_node_drain", "a node's machine drained: the job there goes on", ("operator",), 5.0,
        drain, resume, DRAINED,
    ),
    Fault(
        "slurm_requeue", "the job of all nodes requeued: notice, end, and begun again", ("requeue", "signals"), 1.0,
        requeue, nothing_to_heal, REQUEUED, target="all+coordinator", ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "slurm_preempt", "a job that is preferred takes all machines: notice, end, and begun again once it is over",
        ("preempt", "requeue", "signals"), 5.0, preempt, give_way, PREEMPTED,
        target="all+coordinator", ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "slurm_time_limit", "the job's time limit comes near: notice, and begun again before it is reached",
        ("time_limit", "requeue", "signals"), 1.0, lower_limit, raise_limit, LIMITED,
        target="all+coordinator", ends="node", victims="killed", gone="gone_t",
    ),
    Fault(
        "slurmd_kill", "a machine's slurmd killed, and started again: what it started is on its own", ("slurmd",), 2.0,
        kill_daemon, start_daemon, DAEMONLESS,
    ),
    Fault(
        "slurmctld_kill", "the controller killed, and started again: jobs go on", ("slurmctld",), 10.0,
        stop_controller, start_controller, UNCONTROLLED, target="all",
    ),
]  # fmt: skip
