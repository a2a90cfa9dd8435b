"""Did a fault really happen? Its evidence must prove it, and no other record may contradict the evidence.

Called by `reports.recovery.results`. What proves a fault and what it ends came with it in the plan
(`chaos.faults.fault.Fault.traits`): no fault is known by name here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from proving_ground.bench.jobstate import DURING_RECOVERY, STEADY_STEPS
from proving_ground.reports.history import number
from proving_ground.reports.recovery import proof
from proving_ground.reports.recovery.checks import Answer, Evidence
from proving_ground.reports.recovery.incidents import NO_PHASE, Incident
from proving_ground.reports.recovery.lives import LAUNCHED, STARTED, WORKING
from proving_ground.reports.recovery.steps import between
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

NODE, LAUNCHER, NOBODY = "node", "launcher", "nobody"  # what a fault `ends`; else workers
DYING_S = 0.5  # between the moment of a kill and the last event that its victim may have written
LEAVING_S = 60.0  # after the last healing at most, until a job that is over has made its last step
CLOCK_S = 0.05  # by which moments of two processes may seem to be in another order than they were
EFFECTS = ("detected", "workers_stopped", "node_down")  # that no fault has before it is there
LAST_WORDS = ("end", "asked_to_leave")  # of a process that ends in good order
WRITTEN = (
    "ready", "resume", "checkpoint", "phase", "error", "end", "eval", "membership", "workers_start", "detected",
    "workers_stopped", "backoff",
)  # fmt: skip
"""Events of workers and launchers, beside steps."""


def happened(evidence: Evidence, one: Incident) -> Answer:
    """The fault really happened: by evidence other than the injector's word, which no other record contradicts."""
    if one.refused:
        return UNKNOWN, f"not injected: {one.refused.get('why') or 'nobody said why'}"
    if not one.injected:
        return UNKNOWN, "its turn never came"
    value, why = proof.answer(one, idle=not made_meanwhile(evidence, one))
    if value == PASS and (alive := still_alive(evidence, one)):
        return FAIL, alive
    contradiction = next((said for check in CONTRADICTIONS if (said := check(evidence, one))), "")
    if value == PASS and contradiction:
        return UNKNOWN, f"the records contradict each other: {contradiction}"
    return (value, why) if value != PASS else (PASS, listed(one))


def made_meanwhile(evidence: Evidence, one: Incident) -> bool:
    """Whether the job began and committed a step while the fault was held."""
    begin, end = (number((record or {}).get("t")) for record in (one.begin, one.end))
    inside = between(evidence.committed, begin, end) if end >= begin else evidence.committed[:0]
    return bool((inside["end"] - inside["seconds"] >= begin).any())


# --- what other records say -------------------------------------------------------------------------------------------


def not_as_planned(_: Evidence, one: Incident) -> str:
    """It was another fault than the planned one, or another than itself at its end."""
    begin = one.begin or {}
    wanted = {"kind": one.plan.get("kind"), "phase": one.plan.get("phase"), "args": one.traits.get("args")}
    for key, value in wanted.items():
        if key in begin and (begin[key] or None) != (value or None):
            return f"planned with {key} {value}, and injected with {begin[key]}"
    if begin.get("traits_sha256") != digest(one.traits):
        return "the plan says something else of it than the injection did: of what it ends, or of what proves it"
    if one.end and one.end.get("kind", one.kind) != one.kind:
        return f"injected as {one.kind}, and healed as {one.end['kind']}"
    return ""


def digest(traits: Mapping[str, Any]) -> str:
    """SHA-256 of what the plan knows of a fault, as the injection tells it."""
    return hashlib.sha256(json.dumps(traits, sort_keys=True).encode()).hexdigest()


def out_of_order(evidence: Evidence, one: Incident) -> str:
    """Its own moments are not in the order in which such things happen."""
    begin = one.begin or {}
    told = (begin.get("evidence") or {}).get("t")
    if told is None or number(told) != one.inject_t:
        return f"injected at {one.inject_t:.3f} s, and the evidence says at {told} s"
    due = [number(it["t"]) for it in evidence.job.of("fault_due") if it.get("fault") == one.fault]
    if len(due) != 1:
        return f"it was injected once, and its moment came {len(due)} times by the schedule's record"
    moments = {
        "moment at which it was due": due[0],
        "injection": one.inject_t,
        "last signal": last_signal_t(one),
        "end of the injection": number(begin["t"]),
    }
    if one.end:
        moments["healing"] = number(one.end["t"])
    return first_backwards([("start of the job", one.job.start_t), *moments.items(), ("its end", one.job.end_t)])


def too_soon(evidence: Evidence, one: Incident) -> str:
    """No process of the job had made the steps that the fault was to wait for, since the fault before was over."""
    if (after_s := one.plan.get("after_s")) is not None:
        return too_soon_after(evidence, one, number(after_s))
    if (at_s := one.plan.get("at_s")) is not None:
        made = most_steps(evidence, -math.inf, one.inject_t - number(at_s))
        why = f"injected {number(at_s):g} s after a job of {made} steps, and it was due that long after {STEADY_STEPS}"
        return why if made < STEADY_STEPS else ""
    wanted = one.plan.get("after_steps")
    if not isinstance(wanted, int) or one.phase == DURING_RECOVERY:
        return ""
    since = max((over_t(other) for other in evidence.incidents if other.inject_t < one.inject_t), default=-math.inf)
    made = most_steps(evidence, since, one.inject_t)
    return f"injected after {made} steps, and it was due after {wanted}" if made < wanted else ""


def most_steps(evidence: Evidence, since_t: float, until_t: float) -> int:
    """The steps that one process made in a time, of the one that made most."""
    rows = evidence.rows
    inside = rows.loc[(rows["t"] > since_t) & (rows["t"] <= until_t + CLOCK_S), "process"]
    return int(inside.value_counts().max()) if len(inside) else 0


def too_soon_after(evidence: Evidence, one: Incident, after_s: float) -> str:
    """Of one that overlaps: so long after the fault before was in it could not have been due yet."""
    done = [number(it.begin["t"]) for it in evidence.incidents if it.begin and it.inject_t < one.inject_t]
    early = max(done, default=-math.inf) + after_s - one.inject_t
    return f"injected {early:.3f} s before it was due, {after_s:g} s after the fault before" if early > CLOCK_S else ""


def over_t(one: Incident) -> float:
    """The earliest moment at which a fault can have been over: when its injection had ended, and it had been held."""
    if not one.begin:
        return -math.inf
    held_s = number(one.begin.get("heal_after_s"))
    return number(one.begin["t"]) + (0.0 if math.isnan(held_s) else held_s)


def healed_early(evidence: Evidence, one: Incident) -> str:
    """It was healed before its time, and not because its job was over."""
    if not one.begin or not one.end or evidence.last_begin < number(one.end["t"]):
        return ""
    early = number(one.begin["t"]) + number(one.begin.get("heal_after_s")) - number(one.end["t"])
    return f"healed {early:.3f} s before its time" if early > CLOCK_S else ""


def after_it_was_over(evidence: Evidence, one: Incident) -> str:
    """The harness said that the job was over, and broke something, or let it train on for long."""
    if one.inject_t > evidence.job.over_t:
        return f"injected {one.inject_t - evidence.job.over_t:.3f} s after the job was over"
    calm_t = max([evidence.job.over_t, *(number(it.end["t"]) for it in evidence.incidents if it.end)])
    late = float(evidence.steps["end"].max()) - calm_t if len(evidence.steps) else 0.0
    return f"a step was made {late:.3f} s after the job was over" if late > LEAVING_S else ""


def first_backwards(moments: Iterable[tuple[str, float]]) -> str:
    """The first moment that lies before the one named before it; those that are not known are left out."""
    found = [(name, t) for name, t in moments if not math.isnan(t)]
    for (earlier, t), (later, after) in pairwise(found):
        if after < t:
            return f"{later} {t - after:.3f} s before the {earlier}"
    return ""


def before_its_phase(evidence: Evidence, one: Incident) -> str:
    """It was aimed at a phase, and nobody had stood there yet."""
    if one.phase in (NO_PHASE, DURING_RECOVERY):
        return ""
    stood = [it for it in evidence.job.within(-math.inf, one.until_t, "phase") if it.get("hold") == one.fault]
    if not stood:
        return f"aimed at the phase {one.phase}, and nobody recorded to have stood there"
    early = float(stood[0]["t"]) - one.inject_t
    return f"injected {early:.3f} s before the phase that it was aimed at" if early > CLOCK_S else ""


def effect_before_cause(evidence: Evidence, one: Incident) -> str:
    """Something broke after the last whole step and before the fault that is said to have broken it."""
    before = between(evidence.committed, -math.inf, one.inject_t).tail(1)
    if one.joins or not len(before):
        return ""
    since = float(before["end"].iloc[0])
    early = [it for it in evidence.job.within(since, one.inject_t - CLOCK_S, *EFFECTS) if float(it["t"]) > since]
    if not early:
        return ""
    return f"{early[0]['event']} {one.inject_t - float(early[0]['t']):.3f} s before the fault, with no step between"


def ended_before(evidence: Evidence, one: Incident) -> str:
    """A process that it is said to have hit had ended before, or was leaving."""
    for it in victims(one):
        early = one.inject_t - evidence.lives.ended.get(it.get("host_pid"), math.inf)
        if early > CLOCK_S:
            return f"{it.get('node')} pid {it.get('host_pid')} had ended {early:.3f} s before it was hit"
    for source in of_victims(evidence, one):
        event = LAUNCHED if source.endswith(".launch") else WORKING
        since, _ = evidence.lives.newest(source.partition(".")[0], event, one.inject_t).get(source, (math.inf, 0))
        for record in evidence.job.within(since, one.inject_t - CLOCK_S, *LAST_WORDS):
            if record["source"] == source:
                return f"{source} was leaving {one.inject_t - float(record['t']):.3f} s before it was hit"
    return ""


def outlived(evidence: Evidence, one: Incident) -> str:
    """A victim wrote something later after the moment of its end than a death takes."""
    since = gone_t(one)
    if late := after_death(evidence, one, since + DYING_S):
        name, t = late
        return f"{name} recorded something {t - since:.3f} s after it was killed"
    return ""


def gone_t(one: Incident) -> float:
    """The moment from which none of its victims can write any more, of several the last; NaN where nobody said."""
    told = ((one.begin or {}).get("evidence") or {}).get(one.traits.get("gone") or "")
    return max(number(told), last_signal_t(one))


def last_signal_t(one: Incident) -> float:
    """When the last of its victims was signalled; NaN where nobody said."""
    return number(((one.begin or {}).get("evidence") or {}).get("sent_t"))


def no_such_process(evidence: Evidence, one: Incident) -> str:
    """What it is said to have hit is not what was running there, by the history."""
    hit, ends = victims(one), one.traits.get("ends")
    if ends == NODE:
        return missed(evidence, one)
    event, key = (STARTED, "host_pid") if ends == LAUNCHER else (WORKING, "pid")
    for it in hit:
        node = str(it.get("node"))
        if it.get(key) not in evidence.lives.pids(node, event, one.inject_t):
            return f"{node} {key} {it.get(key)} is no process that is known to have been running there"
        told = evidence.lives.pids(node, LAUNCHED, one.inject_t)
        if ends == LAUNCHER and told and it.get("pid") not in told:
            return f"{node} pid {it.get('pid')} is not the launcher, by its own word"
    return ""


def missed(evidence: Evidence, one: Incident) -> str:
    """A node lost its power, and something that was running there is not among what was killed."""
    hit = victims(one)
    for node in nodes_of(one):
        known = {"pid": made_a_step(evidence, node, one.inject_t), "host_pid": not_ended(evidence, node, one.inject_t)}
        for key, pids in known.items():
            found = {it.get(key) for it in hit if it.get("node") == node}
            if lost := sorted(pids - found):
                return f"{node} {key} {lost[0]} was running there, and is not among what was killed"
    return ""


def no_record_of_its_end(evidence: Evidence, one: Incident) -> str:
    """Something that the harness had started was killed, and the harness never saw it end."""
    if one.traits.get("ends") == NOBODY or evidence.cut_off:
        return ""
    for it in victims(one):
        node, pid = str(it.get("node")), it.get("host_pid")
        if pid in evidence.lives.pids(node, STARTED, one.inject_t) and pid not in evidence.lives.ended:
            return f"{node} host_pid {pid} was killed, and nobody recorded its end"
    return ""


def started_without_power(evidence: Evidence, one: Incident) -> str:
    """A process was started on a node that had lost its power."""
    if one.traits.get("ends") != NODE or not one.begin or not one.end:
        return ""
    nodes = nodes_of(one)
    for record in evidence.job.within(number(one.begin["t"]), number(one.end["t"]), STARTED):
        if record.get("node") in nodes:
            return f"a process was started on {record['node']} while it had no power"
    return ""


def odd_exits(evidence: Evidence, one: Incident) -> str:
    """In its window a process ended that never was started, or ended twice."""
    return next((why for t, why in evidence.lives.odd if one.within(t)), "")


CONTRADICTIONS: tuple[Callable[[Evidence, Incident], str], ...] = (
    not_as_planned, out_of_order, too_soon, healed_early, after_it_was_over, before_its_phase, effect_before_cause,
    ended_before, no_such_process, outlived, no_record_of_its_end, started_without_power, odd_exits,
)  # fmt: skip
"""Each says what does not fit together; empty: nothing."""


def still_alive(evidence: Evidence, one: Incident) -> str:
    """A victim that recorded something after all of it was said to be gone, and before anything was started anew."""
    late = after_death(evidence, one, number((one.begin or {}).get("t")) + CLOCK_S)
    return f"{late[0]} went on training after it was said to be killed" if late else ""


def after_death(evidence: Evidence, one: Incident, dead_t: float) -> tuple[str, float] | None:
    """(who, when) of the first record of a victim after a moment and before the next life of its process."""
    sources = set(of_victims(evidence, one))
    if math.isnan(dead_t) or not sources:
        return None
    begun: dict[str, float] = {}
    for record in one.recorded(LAUNCHED, WORKING):
        begun.setdefault(str(record["source"]), float(record["t"]))
    until_t = max((begun.get(name, one.until_t) for name in sources), default=one.until_t)
    rows = between(evidence.rows, dead_t, until_t, "t")
    found = [(name, float(t)) for name in sources for t in steps_of(evidence, rows, name)[:1]]
    found += [(str(it["source"]), float(it["t"])) for it in one.recorded(*WRITTEN) if it.get("source") in sources]
    late = [(name, t) for name, t in found if dead_t < t < begun.get(name, math.inf)]
    return min(late, key=lambda it: it[1], default=None)


def steps_of(evidence: Evidence, rows: pd.DataFrame, source: str) -> list[float]:
    """When a process recorded its steps."""
    mine = rows["process"].to_numpy() == evidence.job.processes.get(source, -1)
    return [float(t) for t in rows["t"].to_numpy()[mine]]


def of_victims(evidence: Evidence, one: Incident) -> Iterator[str]:
    """The sources that can record nothing more until a new process begins."""
    ends = one.traits.get("ends")
    for node in nodes_of(one) if ends in (NODE, LAUNCHER) else ():
        yield f"{node}.launch"
        if ends == NODE:
            yield from (name for name in evidence.job.processes if name.partition(".")[0] == node)
    if ends not in (NODE, LAUNCHER, NOBODY):
        for it in victims(one):
            newest = evidence.lives.newest(str(it.get("node")), WORKING, one.inject_t)
            yield from (source for source, (_, pid) in newest.items() if pid == it.get("pid"))


def victims(one: Incident) -> list[Mapping[str, Any]]:
    """The processes that the evidence says were hit."""
    found = ((one.begin or {}).get("evidence") or {}).get(one.traits.get("victims") or "", ())
    return [it for it in found if isinstance(it, Mapping)] if isinstance(found, list) else []


def nodes_of(one: Incident) -> list[str]:
    """The nodes that were aimed at."""
    return [name.partition(".")[0] for name in one.target]


def made_a_step(evidence: Evidence, node: str, t: float) -> set[int]:
    """The pids of a node's workers that had made a step in their present life: those were there."""
    newest = evidence.lives.newest(node, WORKING, t)
    return {
        pid
        for source, (since, pid) in newest.items()
        if steps_of(evidence, between(evidence.rows, since, t, "t"), source)
    }


def not_ended(evidence: Evidence, node: str, t: float) -> set[int]:
    """The pids, as the harness sees them, of what it had started on a node and nobody had seen end."""
    ended = evidence.lives.ended
    return {pid for pid in evidence.lives.pids(node, STARTED, t) if not ended.get(pid, math.inf) < t - CLOCK_S}


# --- in words ---------------------------------------------------------------------------------------------------------


def listed(one: Incident) -> str:
    """What proves it, as short as it can be read: `n2 pid 4711 gone`, `1,204 packets dropped`, else what was asked."""
    said = [word for key, words in EVIDENCE_WORDS.items() if one.evidence.get(key) and (word := words(one.evidence))]
    return "; ".join(said) or "; ".join(str(it.get("means")) for it in one.traits.get("proof") or ())


def processes(found: Any) -> str:  # noqa: ANN401 - as recorded
    """`n2 pid 4711, n3 pid 4712`."""
    named = [f"{it.get('node', '')} pid {it.get('pid')}".strip() for it in found if isinstance(it, Mapping)]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


EVIDENCE_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "path": lambda it: f"{it['path']} is not what it was",
    "killed": lambda it: f"{processes(it['killed'])} gone",
    "stopped": lambda it: f"{processes(it['stopped'])} stopped",
    "dropped": lambda it: f"{sum(it['dropped'].values()):,} packets dropped" if isinstance(it["dropped"], dict) else "",
}
"""Key of evidence → what it says."""
