"""Makes chaos run directories by the contract, with a known truth and knobs for what goes wrong.

Used by the tests of `reports.recovery`. A job is simulated step by step with a state that remembers all that was done
to it: parameters and optimizer are chained hashes over samples, learning rate and each other, and the sketch adds a
tiny noise that depends on the size of the world, as sums in another order do. So a mutant is a wrong behaviour, and
what the history then says of it follows by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import rundir

Record = dict[str, Any]
RUN_ID = "20260102T030405Z-c0de"
STEP_S, BATCH, ROWS = 0.1, 12, 240
CHECKPOINT_EVERY, FINGERPRINT_EVERY = 10, 5
BLOCK_S, DURABLE_S = 0.02, 0.05
DETECT, STOPPED, MET, LOADED, READY, FIRST = 0.4, 0.5, 0.9, 1.1, 1.2, 1.3  # seconds after a fault


@dataclass(frozen=True)
class Fault:
    """One fault of the made-up job. `how`: restart, shrink (go on with the others until it is back), or none."""

    id: str
    kind: str
    step: int  # after this one
    target: str
    how: str = "restart"
    phase: str = ""
    hold_s: float = 3.0
    slow: float = 4.0  # times a step while it lasts, where nothing has to recover
    evidence: Mapping[str, Any] = field(default_factory=lambda: {"killed": [{"pid": 7}], "left": []})
    healing: Mapping[str, Any] = field(default_factory=dict)
    happened: bool | None = True
    healed: bool = True
    refused: str = ""


FAULTS = (
    Fault("f01", "worker_kill", 26, "n2", hold_s=0.0),
    Fault("f02", "node_kill", 53, "n3", phase="allreduce"),
    Fault("f03", "link_rate", 77, "n1", how="none", evidence={"rate_mbps": 10}),
    Fault("f04", "checkpoint_bitflip", 97, "n1", hold_s=0.0, evidence={"path": "", "differs": 1}),
)


@dataclass(frozen=True)
class Knobs:
    """What the made-up run is like; the defaults make a right one. `mutant` goes wrong in fault `at`."""

    nodes: int = 3
    steps: int = 120
    faults: tuple[Fault, ...] = FAULTS
    twins: tuple[int, ...] = (3, 2)
    mutant: str = ""
    at: str = "f01"
    ledger: bool = True
    fingerprints: bool = True
    noise: float = 1e-9  # of sums in another order
    label: str = "emulated"
    exact: bool = False  # sums are the same in every world, and so are random states
    mechanisms: tuple[str, ...] = ()  # a job with these faults and twins under each; the mutant is in the first
    peers: tuple[str, ...] = ()  # of them, those that are set beside the others


@dataclass
class State:
    """What a checkpoint holds."""

    step: int = 0
    parameters: str = "p"
    optimizer: str = "o"
    sketch: tuple[float, float] = (0.0, 0.0)
    randoms: tuple[str, ...] = ("r0", "r1", "r2", "r3")
    by: int = 0  # generation that wrote it


def sha(*parts: object) -> str:
    """A short chained hash."""
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


def rate(step: int) -> float:
    """The learning rate of a step."""
    return 0.1 * (1 - step / 1000)


def batch(step: int) -> list[int]:
    """The sample ids of a step (from 1): a permutation of all rows in each pass."""
    first = (step - 1) * BATCH
    return [(7 * (first + k) + 11 * ((first + k) // ROWS)) % ROWS for k in range(BATCH)]


class Job:
    """One simulated job; writes the events of its processes."""

    def __init__(self, run: rundir.RunDir, name: str, nodes: int, knobs: Knobs, t: float) -> None:
        self.run, self.name, self.knobs, self.t = run, name, knobs, t
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.state, self.generation, self.bad, self.wrong = State(), 0, "", ""
        if knobs.exact:
            self.state.randoms = ("r",) * len(self.state.randoms)
        self.saved: dict[int, State] = {}
        self.told: dict[str, list[Record]] = {}
        self.harness: list[Record] = []

    def say(self, source: str, event: str, t: float | None = None, **fields: object) -> None:
        self.told.setdefault(source, []).append({"t": self.t if t is None else t, "event": event, **fields})

    def note(self, event: str, t: float | None = None, **fields: object) -> None:
        self.harness.append({"t": self.t if t is None else t, "event": event, "trial": self.name, **fields})

    def meet(self, nodes: list[str], begin: float, *, resume: bool) -> None:
        """The workers of these nodes start, and load what there is."""
        self.generation += 1
        for rank, node in enumerate(nodes):
            self.say(
                f"{node}.launch",
                "membership",
                begin + MET,
                round=self.generation,
                group_rank=rank,
                world_size=len(nodes),
            )
            about = {"rank": rank, "world_size": len(nodes), "pid": 100 + self.generation, "wall_s": 0.0}
            self.say(f"{node}.0", "start", begin + MET + 0.05, **about)
        if resume:
            self.load(nodes, begin + LOADED)
        for node in nodes:
            self.say(f"{node}.0", "ready", begin + READY, generation=self.generation)
        self.t = begin + FIRST

    def load(self, nodes: list[str], t: float) -> None:
        """Go on from the newest checkpoint that is not known to be bad."""
        mutant = self.wrong
        steps = sorted(self.saved)
        if self.bad and mutant != "load_corrupt":
            self.say(f"{nodes[0]}.0", "quarantine", t - 0.05, path=self.bad, why="checksum")
            steps = [step for step in steps if self.path(step) != self.bad]
        newest = steps[-1]
        self.state = replace(self.saved[newest])
        if mutant == "lost_optimizer":
            self.state.optimizer = "o"
        if mutant == "fresh_random":
            self.state.randoms = ("x0", "x1", "x2", "x3")
        if mutant == "load_corrupt" and self.bad:
            self.state.parameters = sha("flipped", self.state.parameters)
        sums = sha(newest, "other" if mutant == "other_checksum" else "")
        for node in nodes:
            by = {"of_generation": self.saved[newest].by, "sha256": sums, "read_s": 0.01}
            self.say(f"{node}.0", "resume", t, step=newest, path=self.path(newest), **by)
        self.bad = ""

    def path(self, step: int) -> str:
        return f"/ckpt/step-{step:08}"

    def step(self, nodes: list[str], seconds: float = STEP_S) -> None:
        """One step of these nodes' workers."""
        begin, state, mutant = self.t, self.state, self.wrong
        step = state.step = state.step + 1
        rows = batch(step + (mutant == "data_ahead"))
        shares = [rows[rank :: len(nodes)] for rank in range(len(nodes))]
        if mutant == "drop_samples":
            shares[-1] = []
        learned = sorted(row for share in shares for row in share)
        lr = rate(1) if mutant == "stale_lr" else rate(step)
        state.optimizer = sha(state.optimizer, learned)
        order_of_sums = 0 if self.knobs.exact and mutant != "float_sums" else len(nodes)
        state.parameters = sha(state.parameters, learned, lr, state.optimizer, order_of_sums)
        moved = lr * (sum(learned) + int(state.optimizer[:2], 16)) / 1e4
        state.sketch = (state.sketch[0] + moved, state.sketch[1] - moved + self.knobs.noise * order_of_sums)
        state.randoms = tuple(sha(one, step) for one in state.randoms)
        saving = step % CHECKPOINT_EVERY == 0
        self.t = begin + seconds + BLOCK_S * saving
        for rank, node in enumerate(nodes):
            ledger = {"rows": shares[rank]} if self.knobs.ledger else {}
            about = {
                "step": step,
                "samples": len(shares[rank]),
                "generation": self.generation,
                "world_size": len(nodes),
            }
            self.say(f"{node}.0", "step", self.t, begin_t=begin, **about, **ledger)
            if self.knobs.fingerprints and step % FINGERPRINT_EVERY == 0:
                self.fingerprint(f"{node}.0", rank, lr)
        if saving:
            self.saved[step] = replace(state, by=self.generation)
            self.commit(f"{nodes[0]}.0", step, self.generation, self.t + DURABLE_S)

    def commit(self, source: str, step: int, generation: int, t: float) -> None:
        about = {
            "path": self.path(step),
            "bytes": 100,
            "block_s": BLOCK_S,
            "durable_s": DURABLE_S,
            "sha256": sha(step, ""),
        }
        self.say(source, "checkpoint", t, step=step, generation=generation, **about)

    def fingerprint(self, source: str, rank: int, lr: float) -> None:
        state = self.state
        hashes = {"parameters_sha256": state.parameters, "optimizer_sha256": state.optimizer}
        self.say(
            source, "fingerprint", self.t + 0.001, step=state.step, **hashes, random_sha256=state.randoms[rank], lr=lr,
            sketch=list(state.sketch),
        )  # fmt: skip

    def train(self, faults: tuple[Fault, ...] = ()) -> bool:
        """From the first meeting to the last step; whether it got there."""
        self.note("trial_start")
        for number, node in enumerate(self.names):
            self.note("process_start", node=node, slot=0, pid=10 + number)
            self.say(f"{node}.launch", "launch", node=node, pid=10 + number)
        self.meet(self.names, self.t, resume=False)
        due = {fault.step: fault for fault in faults}
        while self.state.step < self.knobs.steps:
            self.step(self.names)
            fault = due.pop(self.state.step, None)
            if fault and not self.suffer(fault):
                return self.leave("no step for 60 s")
        for node in self.names:
            self.say(f"{node}.0", "end", step=self.state.step)
            self.note("process_exit", node=node, slot=0, pid=10, code=0)
        return self.leave("")

    def leave(self, why: str) -> bool:
        left = {"evidence": {"leftover": [4711]}} if self.knobs.mutant == "leftover" else {}
        self.note("trial_end", self.t + 0.1 + 60 * bool(why), ok=not why, why=why, **left)
        return not why

    def suffer(self, fault: Fault) -> bool:
        """One fault and what comes of it; whether training goes on."""
        mutant = self.knobs.mutant if fault.id == self.knobs.at else ""
        t = self.t + 0.03
        if fault.refused:
            self.note("fault_refused", t, fault=fault.id, kind=fault.kind, why=fault.refused)
            return True
        newest = self.path(max(self.saved))
        evidence = dict(fault.evidence) | ({"path": newest + "/model.pt"} if "path" in fault.evidence else {})
        told: Record = {} if fault.happened is None else {"happened": fault.happened}
        if mutant == "no_evidence":
            evidence, told = {}, {}
        if mutant == "idle":
            evidence, told = {"killed": [], "left": []}, {"happened": False}
        about = {"fault": fault.id, "kind": fault.kind, "target": [fault.target], "phase": fault.phase, "args": {}}
        self.note("fault_begin", t + 0.01, inject_t=t, evidence=evidence, heal_after_s=fault.hold_s, **about)
        self.wrong = mutant
        if mutant == "no_recovery":
            self.note("fault_end", t + fault.hold_s, fault=fault.id, healed=True, evidence={}, **told)
            return False
        if "path" in fault.evidence:
            self.bad = newest
        end_t = self.recover(fault, t, mutant)
        if mutant != "never_healed":
            healed = fault.healed and mutant != "not_healed"
            self.note("fault_end", end_t, fault=fault.id, healed=healed, evidence=dict(fault.healing), **told)
        return True

    def recover(self, fault: Fault, t: float, mutant: str) -> float:
        """Go on as the fault makes the job go on; when it was healed."""
        if fault.how == "none" or mutant in ("idle", "lying"):
            for _ in range(round(fault.hold_s / (fault.slow * STEP_S)) if fault.how == "none" else 0):
                self.step(self.names, fault.slow * STEP_S)
            return self.t + 0.01
        others = [name for name in self.names if name != fault.target]
        if fault.kind == "node_kill":
            self.note("process_exit", t + 0.02, node=fault.target, slot=0, pid=10, code=-9)
        self.restart(others if fault.how == "shrink" else self.names, others, t)
        self.go_wrong(fault, mutant, others)
        if fault.how == "shrink":
            while self.t < t + fault.hold_s:
                self.step(others)
            if mutant == "never_whole":
                self.names = others
                return self.t
            self.restart(self.names, others, self.t, why="membership_changed")
        return t + 0.02 if fault.how == "restart" else self.t

    def restart(self, nodes: list[str], survivors: list[str], t: float, why: str = "worker_failed") -> None:
        for number, node in enumerate(survivors):
            self.say(f"{node}.launch", "detected", t + DETECT + 0.01 * number, why=why, detail=None)
            self.say(f"{node}.launch", "workers_stopped", t + STOPPED + 0.01 * number)
        self.meet(nodes, t, resume=True)

    def go_wrong(self, fault: Fault, mutant: str, others: list[str]) -> None:
        """The mutants that need events of their own, once the new generation has made a step."""
        if mutant == "orphan":
            self.step(self.names)
            about = {
                "step": fault.step + 1,
                "samples": 4,
                "generation": self.generation - 1,
                "world_size": 3,
                "rows": [],
            }
            self.say(f"{fault.target}.1", "step", self.t + 0.3, begin_t=self.t + 0.2, **about)
        if mutant == "second_writer":
            for _ in range(12):
                self.step(self.names)
            self.commit(f"{others[0]}.0", self.state.step // 10 * 10, self.generation - 1, self.t + 0.08)
        if mutant in ("bystander", "late_bystander"):
            for _ in range(12 * (mutant == "late_bystander")):
                self.step(self.names)
            self.note("process_exit", self.t, node=others[0], slot=0, pid=10, code=1)
        if mutant == "again":
            for _ in range(10):
                self.step(self.names)
            self.restart(self.names, self.names, self.t)

    def write(self) -> None:
        """All event files of its processes."""
        for source, records in self.told.items():
            records.sort(key=lambda record: record["t"])
            lines = [json.dumps(record) + "\n" for record in records]
            if self.knobs.mutant == "truncated" and source == "n2.0" and self.name == "t001":
                lines = lines[: len(lines) // 3]
            (self.run.events / f"{self.name}.{source}.jsonl").write_text("".join(lines))


def make(root: Path, knobs: Knobs | None = None, *, complete: bool = True, suite: str = "kill") -> rundir.RunDir:
    """Write a sealed run directory."""
    knobs = knobs or Knobs()
    run = rundir.RunDir(root / suite / RUN_ID)
    run.events.mkdir(parents=True)
    run.logs.mkdir()
    for link, target in ((root / suite / "latest", Path(RUN_ID)), (root / "latest", Path(suite) / RUN_ID)):
        rundir.point_latest(link, target)
    trials = plan(knobs)
    cluster = {"name": "local", "abilities": [], "imitated": ["nodes: namespaces of one machine"]}
    run.write("spec", {"name": suite, "title": "Faults one after the other"})
    refused = [{"fault": "delay", "why": "this kernel has no netem"}]
    run.write("plan", {"trials": trials, "cluster": cluster, "estimate_s": 60, "refused": refused})
    run.write("provenance", PROVENANCE)
    harness: list[Record] = [{"t": 1000.0, "event": "run_start", "wall_s": 1767323045.0}]
    t, ok = 1000.1, True
    for trial in trials:
        job = Job(run, trial["id"], trial["nodes"], replace(knobs, mutant=knobs.mutant * (trial["id"] == "t001")), t)
        ok &= job.train(knobs.faults if trial["faults"] else ())
        job.write()
        harness += job.harness
        t = float(job.harness[-1]["t"]) + 1
    harness.append({"t": t, "event": "run_end", "ok": ok, "why": "" if ok else "trial t001: no step for 60 s"})
    harness.sort(key=lambda record: record["t"])
    (run.events / "harness.jsonl").write_text("".join(json.dumps(record) + "\n" for record in harness))
    rundir.merge(run)
    rundir.seal(run, complete=complete and ok)
    return run


def plan(knobs: Knobs) -> list[Record]:
    """The job with faults and its twins."""
    training: Record = {"ledger": knobs.ledger, "fingerprint_every": FINGERPRINT_EVERY * knobs.fingerprints}
    training |= {"reduction": "exact"} if knobs.exact else {}
    about = {"case": "digits", "workload": "digits", "seed": 1, "steps": knobs.steps, "training": training,
             "label": knobs.label, "imitated": ["nodes: namespaces"], "scaling": ["strong"], "repeat": 1}  # fmt: skip
    faults = [
        {"id": fault.id, "kind": fault.kind, "target": fault.target, "phase": fault.phase or None, "seed": 17}
        for fault in knobs.faults
    ]
    trials = []
    for mechanism in knobs.mechanisms or ("",):
        case = mechanism or "digits"
        own = {**about, "case": case, **({"mechanism": mechanism} if mechanism else {})}
        own |= {"peer": True} if mechanism in knobs.peers else {}
        trials.append({**own, "nodes": knobs.nodes, "faults": faults, "twin_of": None})
        trials += [{**own, "nodes": nodes, "faults": [], "twin_of": case} for nodes in knobs.twins]
    return [{"id": f"t{number:03}", **trial} for number, trial in enumerate(trials, 1)]


PROVENANCE: Record = {
    "argv": ["python", "-m", "chaos", "run", "--suite", "kill"],
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
    "host": {"cpu": "Test CPU @ 2.0 GHz", "cores": 2, "memory_mb": 24000, "kernel": "Linux 6.1", "root": True},
    "python": "3.11.9",
    "packages": {"torch": "2.13.0", "numpy": "2.2.0"},
    "seed": 1,
    "wall_s": 1767323045.0,
    "t": 1000.0,
}
