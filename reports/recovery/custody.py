"""The checks about who wrote what: intact checkpoints, one writer, no orphan, nothing broken that nobody aimed at.

Called by `reports.recovery.results`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import numpy as np

from proving_ground.reports.recovery import injection
from proving_ground.reports.recovery.checks import Answer, Evidence
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.jobs import Job, Record
from proving_ground.reports.recovery.lives import STARTED
from proving_ground.reports.recovery.steps import between
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

WORKERS = "workers"  # what a fault ends
LEFTOVERS = ("leftover", "leftovers", "orphans")  # evidence of processes that should be gone
STILL_S = 2.0  # samples come once a second: where there is none and no step either, heartbeats were late, too
BLAMED_S = 10.0  # before a detection: a failure that the machine made believe is found within that
AGREED_S = 0.05  # a survivor's event may be written this much after the moment it is about


def intact_only(evidence: Evidence, one: Incident) -> Answer:
    """Each checkpoint that was loaded had been committed whole, and was never one that was known to be bad."""
    loaded = one.recorded("resume")
    for record in loaded:
        answer = about_load(evidence, record)
        if answer[0] != PASS:
            return answer
    if not loaded:
        return (PASS, "nothing was loaded") if one.new is None else unread(evidence, one)
    names = dict.fromkeys(PurePath(str(record["path"])).name for record in loaded)
    peers = all("peer" in record for record in loaded)
    how = "sent by a rank that had made the step" if peers else "committed, and never seen to be bad"
    return PASS, f"loaded {', '.join(names)}: {how}"


def unread(evidence: Evidence, one: Incident) -> Answer:
    """Of a new generation that loaded nothing: right if it began anew or each of its ranks had made the step before."""
    first = evidence.steps.loc[evidence.steps["generation"] == one.new, "step"].min()
    if first == 1:
        return PASS, "it began anew"
    if kept_their_state(evidence, one, first - 1):
        return PASS, f"nothing was loaded: every rank had made step {first - 1:.0f} itself, and lives on"
    return UNKNOWN, "nobody recorded what the new generation loaded"


def kept_their_state(evidence: Evidence, one: Incident, step: float) -> bool:
    """Whether every rank of the new generation had made a step in the same life before."""
    rows, begun = evidence.rows, one.moments.get("first_step") or one.until_t
    ranks = set(rows.loc[rows["generation"] == one.new, "process"])
    had = set(rows.loc[(rows["generation"] < one.new) & (rows["step"] == step), "process"])
    started = {record["source"] for record in evidence.job.within(one.inject_t, begun, "start")}
    return ranks <= had - {evidence.job.processes.get(source) for source in started}


def about_load(evidence: Evidence, record: Record) -> Answer:
    """One load: fail when it was bad, unknown when nobody knows who committed it and no fingerprint proves it good."""
    if "peer" in record:
        return from_peer(evidence, record)
    path, t = str(record["path"]), float(record["t"])
    name = PurePath(path).name
    commits = [commit for commit in evidence.commits.get(name, ()) if float(commit["t"]) <= t]
    # What was damaged while the commit was still to be told was damaged all the same.
    newest = float(commits[-1]["t"]) - float(commits[-1].get("durable_s") or 0) if commits else float("-inf")
    if any(newest < at <= t for at in known_bad(evidence, name, t)):
        return FAIL, f"loaded {name}, which was known to be bad"
    if overwritten(evidence, commits, record):
        commits = []
    if commits and (why := another(name, commits[-1], record)):
        return FAIL, why
    sums = [str(found["sha256"]) for found in (record, *commits[-1:]) if found.get("sha256")]
    if len(set(sums)) > 1:
        return FAIL, f"loaded {name} with another checksum ({sums[0][:12]}…) than was committed ({sums[1][:12]}…)"
    if not commits and evidence.sameness.bitwise_after(int(record["step"]) + 1) is None:
        return UNKNOWN, f"loaded {name}, and nobody recorded that it was committed"
    return PASS, "intact"


def overwritten(evidence: Evidence, commits: Sequence[Record], load: Record) -> bool:
    """Whether a file that each checkpoint overwrites has one whose commit nobody lived to tell: a later step's."""
    steps, sums = {int(it["step"]) for it in commits}, {it.get("sha256") for it in commits} - {None}
    made = evidence.steps[evidence.steps["end"] <= float(load["t"])]["step"]
    later = len(steps) > 1 and int(load["step"]) > max(steps) and load.get("sha256") not in sums
    return later and bool((made == int(load["step"])).any())


def another(name: str, commit: Record, load: Record) -> str:
    """How what was loaded is not what was committed under that name; empty where it is."""
    if int(commit["step"]) != int(load["step"]):
        return f"{name} was committed at step {commit['step']} and loaded as step {load['step']}"
    by = commit.get("generation"), load.get("of_generation")
    return f"{name} was committed by generation {by[0]} and loaded as generation {by[1]}'s" if differ(*by) else ""


def differ(one: object, other: object) -> bool:
    """Whether two things are known, and not the same."""
    return None not in (one, other) and one != other


def from_peer(evidence: Evidence, record: Record) -> Answer:
    """A state that another rank sent: right if that step had been made by the generation that it is said to be of."""
    steps = evidence.steps
    made = steps[(steps["step"] == record["step"]) & (steps["generation"] == record.get("of_generation"))]
    if len(made) or not record["step"]:
        return PASS, "a peer's"
    return UNKNOWN, f"{record['path']} sent step {record['step']}, and nobody recorded that it was made"


def known_bad(evidence: Evidence, name: str, t: float) -> list[float]:
    """Since when a checkpoint was known to be bad by then: quarantined, or broken by a fault."""
    found = [float(r["t"]) for r in evidence.job.within(-math.inf, t, "quarantine") if names(r["path"], name)]
    return found + [at for path, at in evidence.broken if at <= t and names(path, name)]


def names(path: object, checkpoint: str) -> bool:
    """Whether a path is that of a checkpoint, or of a file in it; a fault may name it from its folder on."""
    return checkpoint in PurePath(str(path)).parts


def one_writer(evidence: Evidence, one: Incident) -> Answer:
    """No two generations, and no two processes of one, committed checkpoints side by side."""
    inside = [record for record in one.recorded("checkpoint") if record.get("generation")]
    if not inside:
        return PASS, "no checkpoint was written meanwhile"
    writers: dict[int, str] = {}
    before = len(evidence.job.within(-math.inf, one.inject_t, "checkpoint"))
    newest = evidence.newest_writers[before - 1] if before else 0
    for record in inside:
        generation, source = int(record["generation"]), str(record["source"])
        if generation < newest:
            return (
                FAIL,
                f"{source} of generation {generation} committed step {record['step']} after generation {newest}",
            )
        if writers.setdefault(generation, source) != source:
            return FAIL, f"{writers[generation]} and {source} both committed in generation {generation}"
        newest = generation
    return PASS, f"{len(inside)} checkpoints, each generation by one process"


def no_orphan(evidence: Evidence, one: Incident) -> Answer:
    """Nothing of an old generation went on after the new one's first step; nothing was left running.

    A process that was stopped in a step and continued later may end that one step: it began before the fault.
    """
    left = leftovers(evidence, one)
    if left:
        return FAIL, f"left running: {left}"
    since = one.moments.get("first_committed_step")
    if one.new is None or since is None:
        return PASS, "no generation followed another"
    rows = between(evidence.rows, since + AGREED_S, one.until_t, "t")
    old = (rows["generation"] < one.new) & (rows["generation"] > 0)
    struck_t = float((one.begin or {"t": one.inject_t})["t"])  # a signal takes its time, a notice longer than others
    struck_t = max(one.inject_t, min(struck_t, one.moments.get("first_step") or since))
    late = rows[old & ~(rows["begin_t"] <= struck_t)]  # a step without a known begin is late
    if len(late):
        names = {number: name for name, number in evidence.job.processes.items()}
        row = late.iloc[0]
        return FAIL, (
            f"{names[int(row['process'])]} made step {row['step']:.0f} of generation {row['generation']:.0f} "
            f"{row['t'] - since:.2f} s after generation {one.new} had begun"
        )
    return PASS, f"nothing of generation {one.old} after generation {one.new} had begun"


def leftovers(evidence: Evidence, one: Incident) -> Any:  # noqa: ANN401 - whatever the evidence names
    """Processes that evidence names as left running after this fault was healed, or at the end of its job."""
    told = [
        ((one.end or {}).get("evidence") or {}),
        *((record.get("evidence") or record) for record in evidence.job.of("trial_end")),
    ]
    return next((found[key] for found in told for key in LEFTOVERS if found.get(key)), None)


def nothing_else_broke(evidence: Evidence, one: Incident) -> Answer:
    """Nothing ended that was not aimed at, and training was not interrupted again once it was back."""
    meant = ended_for_a_move(one)
    exits = [it for it in one.recorded("process_exit") if it not in meant and not aimed_at(evidence, one, it)]
    since = one.moments.get("first_committed_step") if one.ends_others else -math.inf
    until = evidence.last_begin
    broken = [it for it in exits if since is not None and it.get("code") and since < float(it["t"]) < until]
    if broken:
        said = f"{broken[0]['node']}.{broken[0]['slot']}, not aimed at, ended with status {broken[0]['code']}"
        known = one.ends_others is not None
        return (FAIL, said) if known else (UNKNOWN, f"{said}, and the plan does not say if its mechanism does that")
    downs = [record for record in one.recorded("node_down") if not aimed_at(evidence, one, record)]
    if downs:
        return FAIL, f"node {downs[0].get('node')} went down, and nobody aimed at it"
    again = [(float(it["t"]), stood_still_s(evidence, float(it["t"]))) for it in interrupted_again(evidence, one)]
    if again:
        t, still_s = min(again, key=lambda it: it[1] > STILL_S)  # the first that nothing excuses, if there is one
        said = f"training was interrupted again {t - one.inject_t:.1f} s after the fault"
        return (UNKNOWN, f"{said}, and nothing at all ran for {still_s:.1f} s") if still_s > STILL_S else (FAIL, said)
    return PASS, "only what was aimed at"


def ended_for_a_move(one: Incident) -> Sequence[Record]:
    """The exits of processes that the harness ended, since their commands named an address that was no more."""
    exits, found = one.recorded("process_exit"), list[Record]()
    for told in one.recorded("moved"):
        for name in told.get("ends") or ():
            own = [it for it in exits if f"{it.get('node')}.{it.get('slot')}" == name and it["t"] >= told["t"]]
            found += own[:1]  # what befell it once it was started again is another matter
    return found


def aimed_at(evidence: Evidence, one: Incident, record: Record) -> bool:
    """Whether what befell a node was meant: by this fault, or by one begun by then that is later or overlaps."""
    t = float(record["t"])
    begun = [it for it in evidence.incidents if it.injected and it.inject_t <= t]
    others = [it for it in begun if one.inject_t < it.inject_t or (one.among and one.among == it.among)]
    return any(record.get("node") in nodes_of(it) and not spared(evidence, it, record) for it in (one, *others))


def spared(evidence: Evidence, one: Incident, record: Record) -> bool:
    """Whether it befell another rank of the node: one without a launcher, beside the one that was hit."""
    if one.traits.get("ends") != WORKERS or record["event"] != "process_exit":
        return False
    node, pids = str(record.get("node")), {it.get("host_pid") for it in injection.victims(one)}
    started = evidence.lives.newest(node, STARTED, one.inject_t)
    hit = {source for source, (_, pid) in started.items() if pid in pids}
    return bool(hit) and f"{node}.{record.get('slot')}" not in hit


def nodes_of(one: Incident) -> set[str]:
    """The nodes of what was aimed at."""
    return {name.partition(".")[0] for name in one.target}


def interrupted_again(evidence: Evidence, one: Incident) -> Sequence[Record]:
    """What was detected after full speed was back and before the next fault.

    Of faults that overlap the last one before it had to be got over.
    """
    group = [it for it in evidence.incidents if it is one or (one.among and it.among == one.among)]
    found = []
    for record in one.recorded("detected"):
        t = float(record["t"])
        before = max((it for it in group if it.inject_t <= t), key=lambda it: it.inject_t)
        back = before.moments.get("full_speed")
        if back is not None and before.new is not None and back < t < evidence.last_begin:
            found.append(record)
    return found


def stood_still_s(evidence: Evidence, t: float) -> float:
    """The longest time shortly before a moment in which nobody recorded anything, and the harness was not at work.

    Samples alone would not do: a terminal that takes no words keeps the harness from its next one.
    """
    job, since = evidence.job, max(t - BLAMED_S, evidence.job.start_t)
    if not job.machine:
        return 0.0
    work = [(begin, min(end, t)) for begin, end in at_work(job) if begin < t and end >= since]
    told = [float(it["t"]) for it in job.within(since, t, *job.events)]
    sampled = [it[0] for it in job.machine if since <= it[0] < t]
    steps = between(evidence.rows, since, t, "t")["t"]
    moments = np.unique([since, t, *told, *sampled, *steps, *(edge for it in work for edge in it if edge >= since)])
    pieces = [(a, b) for a, b in pairwise(moments.tolist()) if not any(begin <= a and b <= end for begin, end in work)]
    return max((b - a for a, b in pieces), default=0.0)


def at_work(job: Job) -> list[tuple[float, float]]:
    """When the harness broke and healed something, begin and end: it takes no sample meanwhile."""
    due = {it.get("fault"): float(it["t"]) for it in job.of("fault_due")}
    broke = [
        (due.get(it.get("fault"), float(it["t"])), float(it["t"])) for it in job.of("fault_begin", "fault_refused")
    ]
    healed = [(float(it.get("begun_t") or it["t"]), float(it["t"])) for it in job.of("fault_end")]
    return broke + healed
