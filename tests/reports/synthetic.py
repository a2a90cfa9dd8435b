"""Makes run directories by the contract, with a known truth and knobs for what goes wrong.

Used by the tests of `reports`. Times are virtual: nothing is started and nothing waits. A step of a rank is data,
forward, backward, waiting for the slowest, all-reduce and optimizer; `comm` says what share of a step the exposed
all-reduce takes at each size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from proving_ground.bench import rundir

Record = dict[str, Any]
RUN_ID = "20260102T030405Z-abcd"
SHARES = ("processors: each node has 0.2 of this machine's cores, communication included",)
OPTIONAL = ("data_s", "forward_s", "backward_s", "comm_s", "optimizer_s", "checkpoint_s")
MARKS = ("begin_t", "data_t", "forward_t", "backward_t", "comm_t", "optimizer_t")


@dataclass(frozen=True)
class Knobs:
    """What the made-up run is like; the defaults make a healthy one."""

    nodes: tuple[int, ...] = (1, 2, 4, 8)
    repeats: int = 3
    steps: int = 20
    warmup: int = 3
    compute_s: float = 0.1  # forward and backward of the whole node batch
    comm: Mapping[int, float] = field(default_factory=lambda: {1: 0.0, 2: 0.01, 4: 0.03, 8: 0.08})  # of compute_s
    jitter: float = 0.004  # of each rank's compute
    noise: float = 0.003  # between repeats
    bars: Mapping[int, float] = field(default_factory=lambda: {2: 0.90, 4: 0.85, 8: 0.75})
    cases: tuple[str, ...] = ("digits",)
    scalings: tuple[str, ...] = ("weak", "strong")
    steal: float = 0.0  # share of all cores
    steal_repeats: tuple[int, ...] = ()  # which repeats it hits; empty: all
    steal_nodes: tuple[int, ...] = ()  # which sizes it hits; empty: all
    busy: float = 0.7
    kill: str = ""  # trial id whose last node dies in the middle
    bare: bool = False  # only t, step, samples, as a trainer of the user's own may write
    label: str = "emulated"
    imitated: tuple[str, ...] = SHARES
    cpus: float | None = 0.2
    cluster: str = "local"
    accuracy: float | None = None
    accuracy_min: float | None = None
    weights: Mapping[int, str] = field(default_factory=dict)  # rank → its hash after the last step; empty: none asked
    baseline: float | None = None
    seed: int = 7
    machine: bool = True
    plant: Mapping[str, float] = field(default_factory=dict)  # cause → seconds a step, at every size above the first
    work: Mapping[str, float] = field(default_factory=dict)  # what `ready` tells of a sample's operations
    read: float = 0.0  # seconds that reading a step's batches is told to take; 0: not told
    training: Mapping[str, Any] = field(default_factory=dict)  # keys of the trainer's that the plan has
    bound: Mapping[int, float] = field(default_factory=dict)  # nodes → the bound's step in seconds
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)  # (nodes, repeat) → the machine's time a step
    idle: bool = False  # idle nodes train by themselves
    late: float = 0.0  # seconds from a trial's start until they do


class Clock:
    """The virtual time of a run, in seconds."""

    t = 1000.0


def make(root: Path, knobs: Knobs | None = None, *, complete: bool = True, suite: str = "scaling") -> rundir.RunDir:
    """Write a sealed run directory."""
    knobs = knobs or Knobs()
    run = rundir.RunDir(root / suite / RUN_ID)
    run.events.mkdir(parents=True)
    rundir.point_latest(root / suite / "latest", Path(RUN_ID))
    rundir.point_latest(root / "latest", Path(suite) / RUN_ID)
    run.logs.mkdir()
    trials = plan(knobs)
    run.write("spec", {"name": suite, "title": "How training scales", "nodes": knobs.nodes, "repeats": knobs.repeats})
    cluster = {"name": knobs.cluster, "abilities": [], "imitated": ["nodes: namespaces of one machine"]}
    run.write(
        "plan",
        {
            "trials": trials,
            "cluster": cluster if knobs.label != "real" else cluster | {"imitated": []},
            "estimate_s": 60,
        },
    )
    run.write("provenance", PROVENANCE)
    write_events(run, knobs, trials)
    rundir.merge(run)
    rundir.seal(run, complete=complete and not knobs.kill)
    return run


PROVENANCE: Record = {
    "argv": ["python", "-m", "proving_ground.bench", "run", "--nodes", "1,2,4,8"],
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
    "host": {
        "cpu": "Test CPU @ 2.0 GHz",
        "gpu": "none",
        "cores": 2,
        "memory_mb": 24000,
        "kernel": "Linux 6.1",
        "root": True,
    },
    "python": "3.11.9",
    "packages": {"torch": "2.13.0", "numpy": "2.2.0"},
    "seed": 1,
    "wall_s": 1767323045.0,
    "t": 1000.0,
}


def plan(knobs: Knobs) -> list[Record]:
    """The trials, repeats outermost; one node serves weak and strong scaling."""
    wanted: list[Record] = []
    for repeat in range(1, knobs.repeats + 1):
        for case in knobs.cases:
            for nodes in knobs.nodes:
                both = nodes == knobs.nodes[0]
                groups = [knobs.scalings] if both else [(scaling,) for scaling in knobs.scalings]
                wanted += [one(knobs, case, group, nodes, repeat) for group in groups]
    return [{**trial, "id": f"t{number:03}"} for number, trial in enumerate(wanted, 1)]


def one(knobs: Knobs, case: str, scalings: tuple[str, ...], nodes: int, repeat: int) -> Record:
    """One planned trial."""
    batch = 64 * nodes if "weak" in scalings else 64
    return {
        "case": case, "workload": case, "scaling": list(scalings), "nodes": nodes, "repeat": repeat, "seed": 1,
        "batch_per_node": -(-batch // nodes), "global_batch": batch, "steps": knobs.steps, "warmup_steps": knobs.warmup,
        "link_mbps": 1000, "cpus_per_node": knobs.cpus, "compute": "real", "profile": None,
        "training": {**knobs.training, **({"fingerprint_every": knobs.steps} if knobs.weights else {})}, "command": {},
        "quality_min": {} if knobs.accuracy_min is None else {"accuracy": knobs.accuracy_min},
        "efficiency_min": knobs.bars.get(nodes) if "weak" in scalings else None, "label": knobs.label,
        "imitated": list(knobs.imitated), "estimate_s": 5.0,
        "bound": {"step_s": knobs.bound[nodes], "exposed_s": 0.0, "comm_s": 0.0} if nodes in knobs.bound else None,
    }  # fmt: skip


def write_events(run: rundir.RunDir, knobs: Knobs, trials: list[Record]) -> None:
    """All event files: each trial's processes and the harness."""
    clock, rng = Clock(), np.random.default_rng(knobs.seed)
    stolen = used = 0.0
    with (run.events / "harness.jsonl").open("w") as file:

        def say(event: str, **fields: object) -> None:
            file.write(json.dumps({"t": clock.t, "event": event, **fields}, separators=(",", ":")) + "\n")

        say("run_start", wall_s=1767323045.0)
        for trial in trials:
            begin = clock.t
            died = trial_events(run, knobs, trial, clock, rng, say)
            if knobs.machine:
                hit = not knobs.steal_repeats or trial["repeat"] in knobs.steal_repeats
                hit = hit and (not knobs.steal_nodes or trial["nodes"] in knobs.steal_nodes)
                for second in range(math.ceil(clock.t - begin) + 1):
                    stolen += 2 * knobs.steal * hit
                    used += 2 * knobs.busy
                    held = throttled(knobs, trial, begin, begin + second)
                    say("machine", t=begin + second, steal_s=stolen, cpu_s=used, load1=1.5, mhz=2000, throttled_s=held)
                clock.t += 2
            if died:
                break
        say("run_end", ok=not knobs.kill, why="n8.0 ended with exit status -9" if knobs.kill else "")


def throttled(knobs: Knobs, trial: Record, begin: float, t: float) -> Record:
    """Seconds for which each node was held back so far: the last one only, evenly."""
    if "cpu" not in knobs.plant:
        return {}
    names, step_s = [f"n{node}" for node in range(1, trial["nodes"] + 1)], step_length(knobs, trial)
    rate = knobs.plant["cpu"] / step_s if trial["nodes"] > knobs.nodes[0] else 0.0
    return dict.fromkeys(names, 0.0) | {names[-1]: rate * (t - begin)}


def step_length(knobs: Knobs, trial: Record) -> float:
    """Seconds of a step without noise."""
    nodes = int(trial["nodes"])
    share: float = trial["global_batch"] / nodes / 64
    planted = sum(knobs.plant.values(), 0.0) if nodes > knobs.nodes[0] else 0.0
    return float(knobs.compute_s) * (1.02 * share + knobs.comm.get(nodes, 0.1) + 0.03) + 0.00101 + planted


def trial_events(
    run: rundir.RunDir, knobs: Knobs, trial: Record, clock: Clock, rng: np.random.Generator, say: Callable[..., None]
) -> bool:
    """One trial's events; whether a worker died in it."""
    killed = bool(trial["id"] == knobs.kill)
    say("trial_start", trial=trial["id"])
    names = [f"n{node}" for node in range(1, trial["nodes"] + 1)]
    for name in names:
        say("process_start", trial=trial["id"], node=name, slot=0, pid=100)
    clock.t += (
        0.3 if knobs.weights or knobs.work else 0.0
    )  # what a process tells when it starts is told after the start
    rows = steps(knobs, trial, clock, rng)
    for rank, name in enumerate(names):
        mine = [row for row in rows if row["rank"] == rank]
        if killed and rank == len(names) - 1:
            mine = mine[: len(mine) // 2]
        write_process(run, knobs, trial, f"{name}.0", rank, mine)
    if knobs.idle and trial["nodes"] < knobs.nodes[-1]:
        tell_idle(knobs, trial, rows, say)
    for name in names:
        code = -9 if killed and name == names[-1] else 0
        say("process_exit", trial=trial["id"], node=name, slot=0, pid=100, code=code)
    say("trial_end", trial=trial["id"], ok=not killed, why=f"{names[-1]}.0 ended with exit status -9" if killed else "")
    return killed


def tell_idle(knobs: Knobs, trial: Record, rows: list[Record], say: Callable[..., None]) -> None:
    """What the harness tells of idle nodes: when they had made a step, and how many at which moment."""
    begin, end = rows[0]["moments"][0], rows[-1]["moments"][-1]
    one = {"nodes": knobs.nodes[0], "global_batch": trial["batch_per_node"] * knobs.nodes[0]}
    step_s = step_length(knobs, one) * knobs.slow.get((trial["nodes"], trial["repeat"]), 1.0)
    at = np.arange(begin + knobs.late, end + step_s, step_s).tolist()
    say("neighbours_up", t=at[0], trial=trial["id"])
    for node in range(trial["nodes"] + 1, knobs.nodes[-1] + 1):
        done = [trial["batch_per_node"] * (number + 1) for number in range(len(at))]
        say("neighbour_pace", trial=trial["id"], node=f"n{node}", at=at, samples=done)


def steps(knobs: Knobs, trial: Record, clock: Clock, rng: np.random.Generator) -> list[Record]:
    """Every rank's steps; the slowest rank sets the pace."""
    nodes = trial["nodes"]
    share = trial["global_batch"] / nodes / 64
    slow = knobs.slow.get((nodes, trial["repeat"]), 1.0)
    speed = slow * (1 + knobs.noise * rng.standard_normal())
    planted = knobs.plant if nodes > knobs.nodes[0] else {}
    last, first = np.arange(nodes) == nodes - 1, np.arange(nodes) == 0
    found: list[Record] = []
    saved = np.zeros(nodes)
    for step in range(1, knobs.steps + 1):
        begin = clock.t + 0.0005 + saved
        stall = planted.get("second", 0.0) * 2 * (step % 2 == 0)
        stall += planted.get("stall", 0.0) * (knobs.steps - knobs.warmup) * (step == knobs.steps - 1)
        scale = speed * share * (1 + knobs.jitter * np.abs(rng.standard_normal(nodes)))
        data = begin + 0.02 * knobs.compute_s * scale + planted.get("data", 0)
        forward = data + 0.35 * knobs.compute_s * scale
        backward = forward + planted.get("rest", 0) + stall + 0.65 * knobs.compute_s * scale
        backward = backward + last * (planted.get("wait", 0) + planted.get("cpu", 0))
        comm = max(backward) + speed * knobs.comm.get(nodes, 0.1) * knobs.compute_s + 1e-5 + planted.get("comm", 0)
        end = comm + slow * 0.03 * knobs.compute_s + planted.get("optimizer", 0)
        saved = first * planted.get("checkpoint", 0.0)
        for rank in range(nodes):
            moments = (begin[rank], data[rank], forward[rank], backward[rank], comm, end)
            row = {"rank": rank, "step": step, "samples": 64 * share, "moments": moments, "saved": saved[rank]}
            found.append(row | {"untimed": planted.get("rest", 0.0) + stall})
        clock.t = float(end) + 0.0005 + planted.get("between", 0)
    return found


def write_process(run: rundir.RunDir, knobs: Knobs, trial: Record, name: str, rank: int, rows: list[Record]) -> None:
    """One process' event file."""
    world = trial["nodes"]
    first = rows[0]["moments"][0]
    lines: list[Record] = [
        {"t": first - 0.2, "event": "start", "rank": rank, "world_size": world, "pid": 100, "wall_s": 0.0},
        {"t": first - 0.1, "event": "ready", **knobs.work},
        *(step_record(row, bare=knobs.bare) | ({"read_s": knobs.read} if knobs.read else {}) for row in rows),
    ]
    end = rows[-1]["moments"][-1] + 0.001
    if knobs.accuracy is not None and rank == 0:
        extra = {} if knobs.baseline is None else {"baseline": knobs.baseline}
        lines.append(
            {
                "t": end,
                "event": "eval",
                "step": knobs.steps,
                "split": "test",
                "metric": "accuracy",
                "value": knobs.accuracy,
                **extra,
            }
        )
    if rank in knobs.weights:
        hashes = {"parameters_sha256": knobs.weights[rank], "optimizer_sha256": "o", "random_sha256": "r", "lr": 0.1}
        lines.append({"t": end, "event": "fingerprint", "step": knobs.steps, **hashes})
    lines.append({"t": end, "event": "end", "step": knobs.steps})
    path = run.events / f"{trial['id']}.{name}.jsonl"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def step_record(row: Record, *, bare: bool) -> Record:
    """One step event, with or without what is optional."""
    moments = [float(moment) for moment in row["moments"]]
    record = {"t": moments[-1] + 0.0005 + row["saved"], "event": "step", "step": row["step"], "samples": row["samples"]}
    if bare:
        return record
    seconds = np.diff(moments).tolist()
    seconds[2] -= row["untimed"]  # before the backward pass
    return record | dict(zip(OPTIONAL, [*seconds, row["saved"]], strict=True)) | dict(zip(MARKS, moments, strict=True))
