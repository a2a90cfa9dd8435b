"""The ways in which `tests.validations.tampering` changes a record. Each changes one thing at one fault.

A way returns whether there was anything to change: a hang leaves nothing killed, a kill no dropped packets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.recovery.incidents import Incident
from tests.reports.rewritten import Record

CONTROL = "nothing"
SECOND = 1.0
OTHER = "0" * 64  # a hash that nothing has
HASHES = ("parameters_sha256", "buffers_sha256", "optimizer_sha256", "random_sha256")


@dataclass
class Scene:
    """A run to be changed at one fault; `plan` and `records` are changed in place."""

    one: Incident
    plan: dict[str, Any]
    spec: dict[str, Any]
    records: list[Record] = field(default_factory=list)

    @property
    def trial(self) -> dict[str, Any]:
        """The planned trial."""
        return next(it for it in self.plan["trials"] if it["id"] == self.one.job.id)

    @property
    def planned(self) -> dict[str, Any]:
        """The planned fault."""
        return next(it for it in self.trial["faults"] if it["id"] == self.one.fault)

    @property
    def twin(self) -> str:
        """The undisturbed job that it is compared with: that of the same size."""
        own = self.trial
        same = [it for it in self.plan["trials"] if it["twin_of"] == own["case"] and it["nodes"] == own["nodes"]]
        return str(same[0]["id"])

    def of(self, *events: str, trial: str = "") -> list[Record]:
        """The records of a trial (the fault's, where none is named) with these names."""
        name = trial or self.one.job.id
        return [it for it in self.records if it.get("trial") == name and it["event"] in events]

    def told(self, event: str) -> list[Record]:
        """What the nemesis recorded of the fault."""
        return [it for it in self.of(event) if it.get("fault") == self.one.fault]

    @property
    def begin(self) -> Record:
        """The record of the injection."""
        return self.told("fault_begin")[0]

    @property
    def evidence(self) -> dict[str, Any]:
        """Of the injection."""
        found: dict[str, Any] = self.begin["evidence"]
        return found

    @property
    def hit(self) -> list[dict[str, Any]]:
        """The processes that it killed or stopped."""
        return [*self.evidence.get("killed", ()), *self.evidence.get("stopped", ())]

    def after(self, *events: str) -> list[Record]:
        """The records with these names after the fault and before the next one."""
        return [it for it in self.of(*events) if self.one.inject_t < it["t"] < self.one.until_t]

    def lineage(self, event: str) -> list[Record]:
        """Those of a step half-way to the next fault that the final weights come from, of all ranks."""
        inside = [it for it in self.after(event) if self.one.since < it["step"] <= self.one.until]
        if not inside:
            return []
        step = sorted(it["step"] for it in inside)[len(inside) // 2]
        newest = max(it.get("generation") or 0 for it in inside if it["step"] == step)
        return [it for it in inside if it["step"] == step and (it.get("generation") or 0) == newest]

    def remove(self, found: list[Record]) -> bool:
        """Take records away."""
        gone = {id(it) for it in found}
        self.records = [it for it in self.records if id(it) not in gone]
        return bool(found)

    def add(self, record: Record) -> bool:
        """One more record."""
        self.records.append(record)
        return True


Tamper = Callable[[Scene], bool]


# --- what proves the fault --------------------------------------------------------------------------------------------


def evidence_is(found: dict[str, Any]) -> Tamper:
    """The evidence of injection and healing replaced."""

    def tamper(scene: Scene) -> bool:
        for record in (*scene.told("fault_begin"), *scene.told("fault_end")):
            record["evidence"] = {"t": scene.one.inject_t, **found} if found else {}
        return True

    return tamper


def nothing_killed(scene: Scene) -> bool:
    """What was hit is an empty list."""
    for key in ("killed", "stopped"):
        if key in scene.evidence:
            scene.evidence[key] = []
    return bool(scene.one.traits.get("victims"))


def victim_left(scene: Scene) -> bool:
    """A killed process was still there."""
    if not scene.evidence.get("killed"):
        return False
    scene.evidence["left"] = [scene.evidence["killed"][0]]
    return True


def still_running(scene: Scene) -> bool:
    """A stopped process was running."""
    for process in scene.evidence.get("stopped", ()):
        process["state"] = "R"
    return "stopped" in scene.evidence


def numbers_undone(scene: Scene) -> bool:
    """What had changed by the fault has not: counters, rates, hashes and space are as before."""
    evidence, end = scene.evidence, scene.told("fault_end")[0]["evidence"]
    for mine, key, its, other in (
        (end, "dropped", evidence, "dropped_before"), (evidence, "during", evidence, "before"),
        (evidence, "after", evidence, "before"), (evidence, "free_bytes", end, "free_bytes"),
        (end, "pulses_after", evidence, "pulses"), (evidence, "said", evidence, "members"),
    ):  # fmt: skip
        if key in mine and other in its:
            mine[key] = its[other]
            return True
    return False


def each_process(key: str, value: Callable[[Any], Any]) -> Tamper:
    """One field of the processes that were hit."""

    def tamper(scene: Scene) -> bool:
        for process in scene.hit:
            process[key] = value(process[key])
        return bool(scene.hit)

    return tamper


def other_node(name: str) -> str:
    """The next node."""
    return f"n{int(name[1:]) % 3 + 1}"


def of_begin(key: str, value: Callable[[Any], Any]) -> Tamper:
    """One field of the record of the injection."""

    def tamper(scene: Scene) -> bool:
        before = scene.begin[key]
        scene.begin[key] = value(before)
        return bool(scene.begin[key] != before)

    return tamper


def shifted(seconds: float, *, evidence: bool, record: bool = False, due: bool = False) -> Tamper:
    """The moments of the injection moved: what the record says, the evidence, the record itself, when it was due."""

    def tamper(scene: Scene) -> bool:
        begin = scene.begin
        begin["inject_t"] += seconds
        for key in ("t", "cut_t", "sent_t") if evidence else ():
            if key in begin["evidence"]:
                begin["evidence"][key] += seconds
        begin["t"] += seconds * record
        for it in scene.told("fault_due"):
            it["t"] += seconds * due
        return True

    return tamper


def swapped(scene: Scene) -> bool:
    """Injected after it was healed."""
    (end,) = scene.told("fault_end")
    scene.begin["t"], end["t"] = end["t"], scene.begin["t"]
    return True


def without(event: str) -> Tamper:
    """A record of the nemesis removed."""
    return lambda scene: scene.remove(scene.told(event))


def not_healed(scene: Scene) -> bool:
    """It could not be healed."""
    scene.told("fault_end")[0]["healed"] = False
    return True


# --- what was trained -------------------------------------------------------------------------------------------------


def marks(scene: Scene) -> list[Record]:
    """The fingerprints of a step after the fault, of all ranks."""
    return scene.lineage("fingerprint")


def each_mark(key: str, value: Callable[[Any], Any], ranks: int = 64) -> Tamper:
    """One field of a fingerprint."""

    def tamper(scene: Scene) -> bool:
        found = [record for record in marks(scene)[:ranks] if key in record]
        for record in found:
            record[key] = value(record[key])
        return bool(found)

    return tamper


def without_buffers(scene: Scene) -> bool:
    """A rank says nothing of its buffers."""
    return any(record.pop("buffers_sha256", None) for record in marks(scene)[:1])


def equalised(scene: Scene) -> bool:
    """All fingerprints of the job after the fault say the same."""
    for record in scene.after("fingerprint"):
        record.update({key: OTHER for key in HASHES if key in record})
    return bool(scene.after("fingerprint"))


def in_the_twin(key: str, value: Callable[[Any], Any]) -> Tamper:
    """The same field of the twin's fingerprints at that step."""

    def tamper(scene: Scene) -> bool:
        step = {it["step"] for it in marks(scene)}
        found = [it for it in scene.of("fingerprint", trial=scene.twin) if it["step"] in step and key in it]
        for record in found:
            record[key] = value(record[key])
        return bool(found)

    return tamper


def without_the_twin(scene: Scene) -> bool:
    """Nothing of the twin was recorded."""
    return scene.remove([it for it in scene.records if it.get("trial") == scene.twin])


def each_step(key: str, value: Callable[[Any], Any], ranks: int = 64) -> Tamper:
    """One field of a step, of all ranks or of the first."""

    def tamper(scene: Scene) -> bool:
        found = [it for it in scene.lineage("step") if it.get(key) not in (None, [])][:ranks]
        for record in found:
            record[key] = value(record[key])
        return bool(found)

    return tamper


def other_samples(scene: Scene) -> bool:
    """A rank's samples are those of the step before."""
    found = [it for it in scene.lineage("step") if it.get("rows")]
    before = [it for it in scene.of("step") if found and it["step"] == found[0]["step"] - 1 and it.get("rows")]
    if not before:
        return False
    found[0]["rows"] = list(before[0]["rows"])[: len(found[0]["rows"])]
    return True


def doubled_step(scene: Scene) -> bool:
    """A step recorded twice by the same rank."""
    found = scene.lineage("step")
    return bool(found) and scene.add({**found[0], "t": found[0]["t"] + 1e-4})


def renumbered_generation(scene: Scene) -> bool:
    """One step of a rank is of another generation."""
    found = scene.lineage("step")
    for record in found[:1]:
        record["generation"] = (record.get("generation") or 0) + 1
    return bool(found)


def orphan(scene: Scene) -> bool:
    """A victim made a step after its death and before its next life."""
    workers = {(it["source"].partition(".")[0], it["pid"]) for it in scene.of("start")}
    nodes = {it["node"] for it in scene.evidence.get("killed", ()) if (it["node"], it["pid"]) in workers}
    before = [it for it in scene.of("step") if it["t"] < scene.one.inject_t and it["source"].partition(".")[0] in nodes]
    if not before:
        return False
    last = before[-1]
    return scene.add({**last, "t": scene.begin["t"] + 0.2, "step": last["step"] + 1})


# --- what was loaded and saved ----------------------------------------------------------------------------------------


def of_resume(key: str, value: Callable[[Any], Any]) -> Tamper:
    """One field of what was loaded after the fault, by all ranks."""

    def tamper(scene: Scene) -> bool:
        found = [it for it in scene.after("resume") if it.get(key) is not None]
        for record in found:
            record[key] = value(record[key])
        return bool(found)

    return tamper


def without_resume(scene: Scene) -> bool:
    """Nobody recorded what was loaded."""
    return scene.remove(scene.after("resume"))


def loaded(scene: Scene) -> list[Record]:
    """The commits of the checkpoints that were loaded after the fault."""
    names = {str(it["path"]).rpartition("/")[2] for it in scene.after("resume")}
    return [it for it in scene.of("checkpoint") if str(it["path"]).rpartition("/")[2] in names]


def without_commit(scene: Scene) -> bool:
    """Nobody recorded that it was committed."""
    return scene.remove(loaded(scene))


def other_commit(scene: Scene) -> bool:
    """It was committed with another checksum."""
    found = [it for it in loaded(scene) if it.get("sha256")]
    for record in found:
        record["sha256"] = OTHER
    return bool(found)


def second_writer(scene: Scene) -> bool:
    """Another process of the same generation committed it too."""
    found = scene.after("checkpoint")
    if not found:
        return False
    source = f"{other_node(found[0]['source'].partition('.')[0])}.0"
    return scene.add({**found[0], "source": source, "t": found[0]["t"] + 1e-3})


# --- what ran ---------------------------------------------------------------------------------------------------------


def other_rows(scene: Scene) -> bool:
    """The data set has twice as many samples, by what the ranks said when they were ready."""
    found = [it for it in scene.after("ready") if it.get("rows")]
    for record in found:
        record["rows"] *= 2
    return bool(found)


def without_exit(scene: Scene) -> bool:
    """Nobody recorded that the process ended which the harness had started."""
    pids = {it["host_pid"] for it in scene.evidence.get("killed", ())}
    return scene.remove([it for it in scene.of("process_exit", "neighbour_exit") if it["pid"] in pids])


def one_more_exit(scene: Scene) -> bool:
    """A process that was not aimed at ended, too."""
    nodes = {it["node"] for it in scene.of("process_start")} - set(scene.one.target)
    starts = [it for it in scene.of("process_start") if it["node"] in nodes and it["t"] < scene.one.inject_t]
    if not starts:
        return False
    about = {key: starts[-1][key] for key in ("trial", "source", "node", "slot", "pid")}
    t = scene.begin["t"] + 0.5
    return scene.add({**about, "t": t, "event": "process_exit", "code": 1, "ended_t": t})


def effect_first(scene: Scene) -> bool:
    """It was detected before it was injected."""
    found, t = scene.after("detected", "node_down"), scene.one.inject_t - 0.06
    if not found or any(t < it["t"] < scene.one.inject_t for it in scene.of("step")):
        return False  # a step between: what was detected before it is of something else
    found[0]["t"] = t
    return True


def of_end(**fields: object) -> Tamper:
    """How the harness says that the job ended."""

    def tamper(scene: Scene) -> bool:
        for record in scene.of("trial_end"):
            record.update(fields)
        return True

    return tamper


def without_end(scene: Scene) -> bool:
    """The harness never said that the job ended."""
    return scene.remove(scene.of("trial_end"))


# --- what was planned -------------------------------------------------------------------------------------------------


def fault_not_planned(scene: Scene) -> bool:
    """The plan has no such fault."""
    scene.trial["faults"].remove(scene.planned)
    return True


def without_proof(scene: Scene) -> bool:
    """The plan does not say what would prove it."""
    scene.planned["traits"]["proof"] = []
    return True


def weaker_proof(scene: Scene) -> bool:
    """A condition less."""
    scene.planned["traits"]["proof"].pop()
    return True


def trained_otherwise(scene: Scene) -> bool:
    """The plan asks for another learning rate, of job and twin."""
    for trial in scene.plan["trials"]:
        if trial["case"] == scene.trial["case"]:
            trial["training"]["lr"] = 1.5 * trial["training"].get("lr", 0.1)
    return True


def no_ledger(scene: Scene) -> bool:
    """The plan asks for no ledger, so that its lack is no reason to doubt."""
    for trial in scene.plan["trials"]:
        if trial["case"] == scene.trial["case"]:
            trial["training"]["ledger"] = False
    return True


def twin_not_planned(scene: Scene) -> bool:
    """The plan has no such twin."""
    name = scene.twin
    scene.plan["trials"] = [it for it in scene.plan["trials"] if it["id"] != name]
    return True


def ends_others(scene: Scene) -> bool:
    """The plan says that under the job's mechanism one failure ends others too, so that such an end is no defect."""
    scene.trial["traits"]["ends_others"] = not scene.trial["traits"]["ends_others"]
    return True


TAMPERS: dict[str, Tamper] = {
    "evidence emptied": evidence_is({}),
    "evidence: happened": evidence_is({"happened": True}),
    "nothing killed or stopped": nothing_killed,
    "victim left": victim_left,
    "stopped process runs": still_running,
    "effect undone": numbers_undone,
    "pid changed": each_process("pid", lambda pid: pid + 1000),
    "host pid changed": each_process("host_pid", lambda pid: pid + 1000),
    "node of the victim changed": each_process("node", other_node),
    "inject_t 1 s late": shifted(SECOND, evidence=False),
    "inject_t 1 s early": shifted(-SECOND, evidence=False),
    "inject_t, evidence 1 s late": shifted(SECOND, evidence=True),
    "inject_t, evidence 1 s early": shifted(-SECOND, evidence=True),
    "inject_t, evidence, due 1 s early": shifted(-SECOND, evidence=True, due=True),
    "injection 1 s late": shifted(SECOND, evidence=True, record=True),
    "begin and end swapped": swapped,
    "fault_due removed": without("fault_due"),
    "fault_begin removed": without("fault_begin"),
    "fault_end removed": without("fault_end"),
    "kind changed": of_begin("kind", lambda kind: "hang" if kind != "hang" else "worker_kill"),
    "target changed": of_begin("target", lambda nodes: sorted(other_node(name) for name in nodes)),
    "args changed": of_begin("args", lambda args: {key: 2 * value + 1 for key, value in args.items()}),
    "not healed": not_healed,
    "parameters changed": each_mark("parameters_sha256", lambda _: OTHER),
    "parameters of a rank changed": each_mark("parameters_sha256", lambda _: OTHER, 1),
    "buffers changed": each_mark("buffers_sha256", lambda _: OTHER),
    "buffers of a rank changed": each_mark("buffers_sha256", lambda _: OTHER, 1),
    "buffers of a rank removed": without_buffers,
    "optimizer changed": each_mark("optimizer_sha256", lambda _: OTHER),
    "random states changed": each_mark("random_sha256", lambda _: OTHER),
    "learning rate of a mark +50 %": each_mark("lr", lambda lr: 1.5 * lr),
    "fingerprints equalised": equalised,
    "fingerprints removed": lambda scene: scene.remove(scene.after("fingerprint")),
    "twin's parameters changed": in_the_twin("parameters_sha256", lambda _: OTHER),
    "twin's buffers changed": in_the_twin("buffers_sha256", lambda _: OTHER),
    "twin's learning rate +50 %": in_the_twin("lr", lambda lr: 1.5 * lr),
    "twin missing": without_the_twin,
    "learning rate of steps +50 %": each_step("lr", lambda lr: 1.5 * lr),
    "sample ids of another step": other_samples,
    "sample id twice": each_step("rows", lambda rows: [*rows[:-1], rows[0]], 1),
    "sample id removed": each_step("rows", lambda rows: rows[:-1], 1),
    "sample ids all removed": each_step("rows", lambda _: []),
    "step of a rank removed": lambda scene: scene.remove(scene.lineage("step")[:1]),
    "step of all ranks removed": lambda scene: scene.remove(scene.lineage("step")),
    "step doubled": doubled_step,
    "step renumbered": each_step("step", lambda step: step + 1000, 1),
    "world size changed": each_step("world_size", lambda size: size - 1),
    "generation renumbered": renumbered_generation,
    "orphan step added": orphan,
    "resume: step changed": of_resume("step", lambda step: step + 1),
    "resume: hash changed": of_resume("sha256", lambda _: OTHER),
    "resume: generation changed": of_resume("of_generation", lambda number: number + 50),
    "resume removed": without_resume,
    "commit removed": without_commit,
    "commit: hash changed": other_commit,
    "commit by a second process": second_writer,
    "ready: rows changed": other_rows,
    "process_exit removed": without_exit,
    "process_exit added": one_more_exit,
    "effect before cause": effect_first,
    "trial_end says failed": of_end(ok=False, why="no step for 60 s"),
    "trial_end removed": without_end,
    "plan: fault removed": fault_not_planned,
    "plan: proof removed": without_proof,
    "plan: a condition removed": weaker_proof,
    "plan: training changed": trained_otherwise,
    "plan: ledger not asked for": no_ledger,
    "plan: twin removed": twin_not_planned,
    "plan: mechanism ends others": ends_others,
}
"""What is changed → how."""


def line_of(run: RunDir, one: Incident) -> Iterator[tuple[str, int]]:
    """(a line of the history, its number) of a step of the job after the fault."""
    with run.history.open() as lines:
        every = list(lines)
    for number, line in enumerate(every):
        record = json.loads(line)
        if (record["event"], record.get("trial")) == ("step", one.job.id) and record["t"] > one.inject_t:
            yield line, number


def history_alone(run: RunDir, one: Incident) -> bool:
    """A step's samples changed in the history, and not where they were recorded."""
    line, number = next(line_of(run, one))
    lines = run.history.read_text().splitlines(keepends=True)
    lines[number] = json.dumps({**json.loads(line), "samples": 1}, separators=(",", ":")) + "\n"
    run.history.write_text("".join(lines))
    return True


def events_alone(run: RunDir, one: Incident) -> bool:
    """The same where it was recorded, and not in the history."""
    record = json.loads(next(line_of(run, one))[0])
    file = run.events / f"{record['trial']}.{record['source']}.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if json.loads(line)["t"] == record["t"])
    lines[at] = json.dumps({**json.loads(lines[at]), "samples": 1}, separators=(",", ":")) + "\n"
    file.write_text("".join(lines))
    return True


ON_DISK: dict[str, Callable[[RunDir, Incident], bool]] = {
    "history changed, events not": history_alone,
    "events changed, history not": events_alone,
}

EQUIVALENT: dict[str, str] = {
    "host pid changed": "a worker is known by the pid that it says itself; no other record has the host's",
    **dict.fromkeys(
        ("twin's parameters changed", "twin's learning rate +50 %"),
        "a job whose size changes is judged by its replay, which makes every step again, and by its twin no more",
    ),
    "commit removed": "what was loaded is proven by a later fingerprint that equals the twin's, bit by bit",
    "inject_t, evidence, due 1 s early": (
        "three records moved together fit all others where the job had waited by then, and the victim records nothing; "
        "a recovery can only look longer by it"
    ),
}
"""Change → the rule by which it says nothing about the training or the fault."""
