"""Makes chaos run directories by the contract, with a known truth and knobs for what goes wrong.

Used by the tests of `reports.recovery`. A job is simulated step by step with a state that remembers all that was done
to it: parameters and optimizer are chained hashes over samples, learning rate, the size of the world (whose sums are in
another order) and each other. So a mutant is a wrong behaviour, and what the history then says of it follows by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.mechanisms import MECHANISMS
from proving_ground.chaos.faults import FAULTS as KINDS

Record = dict[str, Any]
RUN_ID = "20260102T030405Z-c0de"
STEP_S, BATCH, ROWS = 0.1, 12, 240
CORES = 2
CHECKPOINT_EVERY, FINGERPRINT_EVERY = 10, 5
BLOCK_S, DURABLE_S = 0.02, 0.05
SLOW = 6.7  # times a step of a job that is slow ever after
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
    healed: bool = True
    refused: str = ""
    after_steps: int | None = None
    after_s: float | None = None  # in the plan: it overlaps with the one before
    at_s: float | None = None  # in the plan: so long after the job was steady

    @property
    def traits(self) -> Record:
        """What the plan knows of such a fault."""
        kind = KINDS[self.kind]
        return kind.traits(kind.with_defaults({}, "synthetic"))


FAULTS = (
    Fault("f01", "worker_kill", 26, "n2", hold_s=0.0),
    Fault("f02", "node_kill", 53, "n3", phase="allreduce"),
    Fault("f03", "link_rate", 77, "n1", how="none"),
    Fault("f04", "checkpoint_bitflip", 97, "n1", hold_s=0.0),
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
    replays: bool = True  # the job's steps are made again, undisturbed, in worlds of the same sizes
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
        self.sizes: dict[int, int] = {}  # step → ranks of the world that made it last
        self.told: dict[str, list[Record]] = {}
        self.harness: list[Record] = []
        self.traits: Record = {}  # of its mechanism
        self.pids: dict[str, int] = {}  # node → its launcher, as the harness and, here, the node see it

    def start(self, node: str, t: float) -> None:
        """The harness starts a node's launcher."""
        again = {"again": 1} if node in self.pids else {}
        self.pids[node] = self.pids.get(node, 0) + 10 + int(node[1:])
        self.note("process_start", t, node=node, slot=0, pid=self.pids[node], **again)
        self.say(f"{node}.launch", "launch", t, node=node, pid=self.pids[node])

    def end(self, node: str, t: float, code: int) -> None:
        """A launcher has ended."""
        self.note("process_exit", t, node=node, slot=0, pid=self.pids[node], code=code)

    def hit(self, fault: Fault) -> list[Record]:
        """The processes that a kill ends, as evidence has them."""
        pids = [100 + self.generation, *([self.pids[fault.target]] if fault.kind == "node_kill" else [])]
        about = {"start": 1, "state": "S", "cmd": "python"}
        return [{"node": fault.target, "pid": pid, "host_pid": pid, **about} for pid in pids]

    def evidence(self, fault: Fault) -> tuple[Record, Record]:
        """Of the injection and of the healing."""
        if fault.kind == "link_rate":
            free, slow = ({"mbps": [rate, rate], "held_back": [0, 0]} for rate in (None, 5.0))
            held = {**slow, "held_back": [70, 0]}
            return {"before": {fault.target: free}, "during": {fault.target: slow}}, {"at_end": {fault.target: held}}
        killed: Record = {"killed": self.hit(fault), "left": []}
        if fault.kind != "checkpoint_bitflip":
            return killed, {}
        before, after = ({"bytes": 100, "sha256": sha(fault.id, what)} for what in ("before", "after"))
        part = f"{self.path(max(self.saved))}/model.pt"
        return {"path": part, "damaged": {part: self.t}, "before": before, "after": after, **killed}, {}

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
            self.say(f"{node}.0", "ready", begin + READY, generation=self.generation, rows=ROWS)
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
        seconds *= SLOW if mutant == "stays_slow" else 1.0
        step = state.step = state.step + 1
        self.sizes[step] = len(nodes)
        rows = batch(step + (mutant == "data_ahead"))
        shares = [rows[rank :: len(nodes)] for rank in range(len(nodes))]
        if mutant == "drop_samples":
            shares[-1] = []
        learned = sorted(row for share in shares for row in share)
        lr = rate(1) if mutant == "stale_lr" else rate(step)
        state.optimizer = sha(state.optimizer, learned)
        order_of_sums = 0 if self.knobs.exact and mutant != "float_sums" else len(nodes)
        state.parameters = sha(state.parameters, learned, lr, state.optimizer, order_of_sums)
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
                "lr": lr,
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
        )  # fmt: skip

    def train(self, faults: tuple[Fault, ...] = ()) -> bool:
        """From the first meeting to the last step; whether it got there."""
        self.note("trial_start", traits=self.traits)
        for node in self.names:
            self.start(node, self.t)
        self.meet(self.names, self.t, resume=False)
        due = {fault.step: fault for fault in faults}
        while self.state.step < self.knobs.steps:
            self.step(self.names)
            fault = due.pop(self.state.step, None)
            if fault and not self.suffer(fault):
                return self.leave("no step for 60 s")
        for node in self.names:
            self.say(f"{node}.0", "end", step=self.state.step)
            self.end(node, self.t, 0)
        return self.leave("")

    def replay(self, sizes: Mapping[int, int]) -> bool:
        """Every step again in worlds of the same sizes, undisturbed."""
        self.note("trial_start", traits=self.traits)
        if set(sizes.values()) == {len(self.names)}:
            self.note("no_replay", of="t001", why="its size never changed")
            return self.leave("")
        for step, size in sorted(sizes.items()):
            nodes = self.names[:size]
            if sizes.get(step - 1) != size:
                self.generation, self.t = self.generation + 1, self.t + 0.01
                for rank, node in enumerate(nodes):
                    if step == 1:
                        self.say(f"{node}.0", "start", rank=rank, world_size=len(self.names), pid=1, wall_s=0.0)
                    about = {"rank": rank, "world_size": size, "rows": ROWS}
                    self.say(f"{node}.0", "ready", generation=self.generation, **about)
            self.step(nodes)
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
        begun, healing = self.evidence(fault)
        evidence = {"t": t, **begun}
        if mutant == "no_evidence":
            evidence = {}
        if mutant == "idle":
            evidence |= {"killed": [], "left": []}
        if fault.phase:
            self.say(f"{fault.target}.0", "phase", t - 0.01, phase=fault.phase, step=self.state.step, hold=fault.id)
        about = {"fault": fault.id, "kind": fault.kind, "target": [fault.target], "phase": fault.phase}
        held_s = 0.0 if fault.how == "restart" else fault.hold_s
        about |= {"args": fault.traits["args"], "traits_sha256": KINDS[fault.kind].digest(fault.traits["args"])}
        self.note("fault_due", t - 0.005, fault=fault.id)
        self.note("fault_begin", t + 0.01, inject_t=t, evidence=evidence, heal_after_s=held_s, **about)
        self.wrong = mutant
        if mutant == "no_recovery":
            self.note("fault_end", t + fault.hold_s, fault=fault.id, healed=True, evidence={})
            return False
        if "path" in begun:
            self.bad = self.path(max(self.saved))
        end_t = self.recover(fault, t, mutant)
        if mutant != "never_healed":
            healed = fault.healed and mutant != "not_healed"
            self.note("fault_end", end_t, fault=fault.id, healed=healed, evidence=healing)
        return True

    def recover(self, fault: Fault, t: float, mutant: str) -> float:
        """Go on as the fault makes the job go on; when it was healed."""
        if fault.how == "none" or mutant in ("idle", "lying"):
            for _ in range(round(fault.hold_s / (fault.slow * STEP_S)) if fault.how == "none" else 0):
                self.step(self.names, fault.slow * STEP_S)
            return self.t + 0.01
        others = [name for name in self.names if name != fault.target]
        if fault.kind == "node_kill":
            self.end(fault.target, t + 0.02, -9)
            if fault.how == "restart":
                self.start(fault.target, t + 0.05)
        self.restart(others if fault.how == "shrink" else self.names, others, t)
        self.go_wrong(fault, mutant, others, t)
        if fault.how == "shrink":
            while self.t < t + fault.hold_s:
                self.step(others)
            healed_t = self.t
            if mutant == "never_whole":
                self.names = others
                return healed_t
            if fault.kind == "node_kill":
                self.start(fault.target, healed_t + 0.01)
            self.restart(self.names, others, healed_t, why="membership_changed")
            return healed_t
        return t + 0.02

    def restart(self, nodes: list[str], survivors: list[str], t: float, why: str = "worker_failed") -> None:
        for number, node in enumerate(survivors):
            self.say(f"{node}.launch", "detected", t + DETECT + 0.01 * number, why=why, detail=None)
            self.say(f"{node}.launch", "workers_stopped", t + STOPPED + 0.01 * number)
        self.meet(nodes, t, resume=True)

    def go_wrong(self, fault: Fault, mutant: str, others: list[str], t: float) -> None:
        """The mutants that need events of their own, once the new generation has made a step."""
        if mutant in ("orphan", "in_hand", "in_signal"):
            self.step(self.names)
            about = {
                "step": fault.step + 1,
                "samples": 4,
                "generation": self.generation - 1,
                "world_size": 3,
                "rows": [],
            }
            begin_t = {"orphan": self.t + 0.2, "in_hand": t - 0.01, "in_signal": t + 0.005}[mutant]
            self.say(f"{fault.target}.1", "step", self.t + 0.3, begin_t=begin_t, **about)
        if mutant == "second_writer":
            for _ in range(12):
                self.step(self.names)
            self.commit(f"{others[0]}.0", self.state.step // 10 * 10, self.generation - 1, self.t + 0.08)
        if mutant in ("bystander", "late_bystander"):
            for _ in range(12 * (mutant == "late_bystander")):
                self.step(self.names)
            self.end(others[0], self.t, 1)
            self.start(others[0], self.t + 0.01)
        if mutant == "again":
            for _ in range(10):
                self.step(self.names)
            self.restart(self.names, self.names, self.t)

    def watch(self, begin: float) -> None:
        """The machine's counters once a second: cores half busy."""
        for t in range(int(begin), int(self.harness[-1]["t"]) + 1):
            self.note("machine", float(t), steal_s=0.0, cpu_s=0.5 * CORES * t, load1=1.0, mhz=2000.0)

    def write(self) -> None:
        """All event files of its processes."""
        for source, records in self.told.items():
            records.sort(key=lambda record: record["t"])
            lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
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
    run.write("spec", {"name": suite, "title": "Faults one after the other", "cases": cases(trials)})
    refused = [{"fault": "delay", "why": "this kernel has no netem"}]
    run.write("plan", {"trials": trials, "cluster": cluster, "estimate_s": 60, "refused": refused})
    run.write("provenance", PROVENANCE)
    harness: list[Record] = [{"t": 1000.0, "event": "run_start", "wall_s": 1767323045.0}]
    t, ok = 1000.1, True
    jobs: dict[str, Job] = {}
    for trial in trials:
        job = Job(run, trial["id"], trial["nodes"], replace(knobs, mutant=knobs.mutant * (trial["id"] == "t001")), t)
        jobs[trial["id"]], job.traits = job, trial["traits"]
        if trial.get("replays"):
            ok &= job.replay(jobs[trial["replays"]].sizes)
        else:
            ok &= job.train(knobs.faults if trial["faults"] else ())
        job.write()
        job.watch(t)
        harness += job.harness
        t = float(job.harness[-1]["t"]) + 1
    harness.append({"t": t, "event": "run_end", "ok": ok, "why": "" if ok else "trial t001: no step for 60 s"})
    harness.sort(key=lambda record: record["t"])
    (run.events / "harness.jsonl").write_text(
        "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in harness)
    )
    rundir.merge(run)
    rundir.seal(run, complete=complete and ok)
    return run


def cases(trials: list[Record]) -> list[Record]:
    """What a suite asks for that is planned so."""
    found: dict[str, Record] = {}
    for trial in trials:
        name = trial["case"]
        case = found.setdefault(name, {"name": name, "twins": [], "faults": [], "training": trial["training"]})
        case["twins"] += [trial["nodes"]] if trial.get("role") == "twin" else []
        case["faults"] += [{key: it[key] for key in it if key != "traits"} for it in trial["faults"]]
    return list(found.values())


def plan(knobs: Knobs) -> list[Record]:
    """The job with faults and its twins."""
    training: Record = {"ledger": knobs.ledger, "fingerprint_every": FINGERPRINT_EVERY * knobs.fingerprints}
    training |= {"reduction": "exact"} if knobs.exact else {}
    about = {"case": "digits", "workload": "digits", "seed": 1, "steps": 10 * knobs.steps, "training": training,
             "label": knobs.label, "imitated": ["nodes: namespaces"], "scaling": ["strong"], "repeat": 1}  # fmt: skip
    faults = [
        {
            "id": fault.id,
            "kind": fault.kind,
            "target": fault.target,
            "phase": fault.phase or None,
            "seed": 17,
            "traits": fault.traits,
            **({} if fault.after_steps is None else {"after_steps": fault.after_steps}),
            **({} if fault.after_s is None else {"after_s": fault.after_s}),
            **({} if fault.at_s is None else {"at_s": fault.at_s}),
        }
        for fault in knobs.faults
    ]
    trials: list[Record] = []
    for mechanism in knobs.mechanisms or ("",):
        case = mechanism or "digits"
        way = MECHANISMS[mechanism or "restart"]
        own = {**about, "case": case, "mechanism": mechanism or "restart",
               "traits": {"ends_others": way.ends_others, "baseline": way.baseline}}  # fmt: skip
        own |= {"peer": True} if mechanism in knobs.peers else {}
        first = len(trials) + 1
        trials.append({**own, "nodes": knobs.nodes, "faults": faults, "twin_of": None})
        trials += [{**own, "nodes": nodes, "faults": [], "twin_of": case, "role": "twin"} for nodes in knobs.twins]
        if knobs.replays and not knobs.exact:
            again = {"twin_of": case, "role": "replay", "replays": f"t{first:03}"}
            trials.append({**own, "nodes": knobs.nodes, "faults": [], **again})
    return [{"id": f"t{number:03}", **trial} for number, trial in enumerate(trials, 1)]


PROVENANCE: Record = {
    "argv": ["python", "-m", "proving_ground.chaos", "run", "--suite", "kill"],
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
    "host": {"cpu": "Test CPU @ 2.0 GHz", "cores": CORES, "memory_mb": 24000, "kernel": "Linux 6.1", "root": True},
    "python": "3.11.9",
    "packages": {"torch": "2.13.0", "numpy": "2.2.0"},
    "seed": 1,
    "wall_s": 1767323045.0,
    "t": 1000.0,
}
