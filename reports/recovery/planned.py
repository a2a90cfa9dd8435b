"""Is the plan what the suite asks for? Called by `reports.recovery.results`.

Both were saved when the run began. What decides how a run is judged is compared: which jobs there are, what they train,
how they recover, their faults and their twins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proving_ground.bench.jobstate import disturbances

KEPT = ("workload", "mechanism", "min_nodes", "steps", "global_batch", "ranks_per_node")
"""Settings of a case that its trials have unchanged, where the case says them."""
BESIDE = ("replay", "reference")  # roles of trials that nothing is done to, and that have no recovery of their own
STRETCHED = "pace"  # of the training: multiplied by the case's dilation

Document = Mapping[str, Any]


def differences(spec: Document, plan: Document, trials: Mapping[str, Document | None]) -> list[str]:
    """What does not fit: plan and suite, and the trials that the history knows; one line each, empty where all does.

    `trials`: name → the traits of its mechanism, as the history has them.
    """
    cases = {str(case.get("name")): case for case in spec.get("cases") or ()}
    planned = {str(trial["id"]) for trial in plan["trials"]}
    found = [f"history.jsonl has a trial {name}, and the plan has none" for name in trials if name not in planned]
    for trial in plan["trials"]:
        if (told := trials.get(str(trial["id"]))) is not None and told != (trial.get("traits") or {}):
            found.append(f"plan.json: trial {trial['id']}: its mechanism is another than in history.jsonl")
        case = cases.get(str(trial.get("case")))
        found += [f"plan.json: trial {trial['id']}: {why}" for why in of_trial(trial, case)]
    return found + [f"plan.json: case {name}: {why}" for name, case in cases.items() for why in missing(case, plan)]


def of_trial(trial: Document, case: Document | None) -> Iterator[str]:
    """What a trial has that its case did not ask for."""
    if case is None:
        yield f"the suite has no case {trial.get('case')!r}"
        return
    for key in KEPT if trial.get("role") not in BESIDE else ("workload", "steps", "global_batch"):
        wanted = case.get(key)
        if (
            wanted not in (None, "")
            and key in trial
            and trial[key] != (min(wanted, trial["nodes"]) if key == "min_nodes" else wanted)
        ):
            yield f"{key} is {trial[key]!r}, and the suite asks for {wanted!r}"
    mine, asked = ({key: it for key, it in (of.get("training") or {}).items() if key != STRETCHED}
                   for of in (trial, case))  # fmt: skip
    for key in sorted(mine.keys() | asked.keys()):
        if mine.get(key) != asked.get(key):
            yield f"training.{key} is {mine.get(key)!r}, and the suite asks for {asked.get(key)!r}"


def missing(case: Document, plan: Document) -> Iterator[str]:
    """What a case asks for and no trial has: a fault, a twin; or what a trial has in its place."""
    own = [trial for trial in plan["trials"] if trial.get("case") == case.get("name")]
    if not own:  # refused: the plan says why
        return
    wanted = [as_asked(it) for it in case.get("faults") or ()]
    twins = {trial["nodes"] for trial in own if trial.get("twin_of") and trial.get("role") not in BESIDE}
    if lost := sorted(set(case.get("twins") or ()) - twins):
        yield f"no twin of {lost[0]} nodes, and the suite asks for one"
    broken = [trial for trial in own if not trial.get("twin_of")]
    listed = [as_planned(it, wanted) for trial in broken for it in trial.get("faults") or ()]
    rounds = len(broken) // max(1, len(disturbances(wanted))) if case.get("apart") else len(broken)
    for fault in wanted:
        if listed.count(fault) < wanted.count(fault) * rounds:
            yield f"the fault {fault.get('kind')} is not in every job as the suite asks for it"
    if len(listed) != len(wanted) * rounds:
        yield f"{len(listed)} faults, and the suite asks for {len(wanted) * rounds}"


def as_asked(fault: Document) -> dict[str, Any]:
    """A fault of a suite: what nobody set is left out."""
    return {key: value for key, value in fault.items() if value not in (None, "")}


def as_planned(fault: Document, wanted: Sequence[Document]) -> dict[str, Any]:
    """A planned fault without what the plan adds to every fault: an id and a seed where the suite gave none."""
    given = {key for it in wanted for key in it}
    added = {"traits", *({"id", "seed"} - given)}
    return {key: value for key, value in fault.items() if key not in added and value not in (None, "")}
