"""What one GPU shows: `python -m tests.validations gpu RUN RUN`, of the runs that were made where there is one.

    pg bench run --suite gpu && pg chaos run --suite gpu

The first sets the trainer beside a plain PyTorch loop, network by network; the second breaks training there. GPUs are
seldom at hand for long, so this keeps finished trials of a run that was cut off too. Each run counts once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir
from tests.validations.sitting import MEASURED, Document, KeptError, keep, runs_of

FILE = MEASURED / "gpu.json"
COMMAND = "nox -s validate -- gpu"
PLAIN, DDP = "-plain", "-plain-ddp"
ENOUGH = 3  # rates of a loop, from which it is told how far they lie apart
TARGET = 0.99  # of a plain loop's rate
LEAST_CORES = 4.0  # a plain loop has all: it computes by two threads, and reads by two


def main(argv: list[str]) -> int:
    """Keep what the runs came to; exit status 1 when a fault was not got over."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations gpu", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's directory, of bench or of chaos")
    options, document = parser.parse_args(argv), loaded()
    for path in options.runs:
        add(document, RunDir(path))
    keep(FILE, document)
    print(table(document), end="")
    return int(any(it["outcome"] != "recovered" for it in document["cells"]["faults"]["runs"]))


def loaded() -> Document:
    """What is kept already."""
    new: Document = {"command": COMMAND, "runs": [], "cells": {"faults": {"runs": []}}}
    found: Document = json.loads(FILE.read_text()) if FILE.exists() else new
    return found


def add(document: Document, run: RunDir) -> None:
    """Put a run's finished trials into the document."""
    if run.path.name in document["runs"]:
        return
    plans = {it["id"]: it for it in run.read("plan")["trials"]}
    events: dict[str, list[dict[str, Any]]] = {}
    for event in rundir.read_history(run):
        events.setdefault(event.get("trial", ""), []).append(event)
    known = run.read("provenance")
    machine = known["host"] | {"torch": known["packages"].get("torch")}
    if document.setdefault("machine", machine) != machine:
        raise KeptError(f"{run.path}: of another machine, GPU or torch than {FILE} has; move that away to start afresh")
    document["runs"].append(run.path.name)
    origin = {"commit": (known["git"]["commit"] or "")[:12] or None, "dirty": known["git"]["dirty"],
              "date": datetime.fromtimestamp(known["wall_s"], UTC).strftime("%Y-%m-%d")}  # fmt: skip
    if any(it["faults"] for it in plans.values()):
        document["cells"]["faults"]["runs"] += [fault_of(it) | origin for it in contract.read(run)["trials"]]
        return
    for name, plan in plans.items():
        told = events.get(name, [])
        if any(it["event"] == "trial_end" and it["ok"] for it in told):
            cell = document["cells"].setdefault(plan["case"], {"runs": []})
            cell |= {"batch": plan["training"].get("batch", plan["batch_per_node"])}
            cell |= {key: it[key] for it in told for key in ("flops_per_sample", "peak_tflops") if key in it}
            cell["runs"].append(values_of(plan, told) | {"cores": plan["cpus_per_node"]} | origin)


def fault_of(trial: Mapping[str, Any]) -> dict[str, Any]:
    """How one fault ended: seconds to the first step that all ranks committed, and whether the bits are the twin's."""
    begin, end = (trial["timeline"].get(it) for it in ("inject", "first_committed_step"))
    known = {key: trial[key] for key in ("mechanism", "kind", "phase", "outcome")}
    return known | {"recovery_s": end and round(end - begin, 3), "same_training": trial["verdicts"]["same_training"]}


def values_of(plan: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Samples a second over all measured steps, of both loops; else the median of a program's measured rounds."""
    measured = [it for it in events if it["event"] == "measure" and it["step"] > plan["warmup_steps"]]
    told = {name: [it["value"] for it in measured if it["name"] == name] for name in {it["name"] for it in measured}}
    if "plain_rate" in told:  # rounds of as many samples each
        return {"plain_rate": round(harmonic_mean(told["plain_rate"]), 2)}
    if told:
        return {name: round(median(values), 2) for name, values in sorted(told.items())}
    ends = [it["t"] for it in events if it["event"] == "step" and it["step"] >= plan["warmup_steps"]]
    return {"rate": round(plan["global_batch"] * (len(ends) - 1) / (ends[-1] - ends[0]), 2)}


def rates(document: Mapping[str, Any], case: str) -> list[float]:
    """Samples a second of every repeat."""
    return [it["rate"] if "rate" in it else it["plain_rate"] for it in runs_of(document, case)]


def cases(document: Mapping[str, Any]) -> list[str]:
    """The trainer's cases that a plain loop stands beside."""
    return [name for name in document["cells"] if name + PLAIN in document["cells"]]


def against(document: Mapping[str, Any], case: str) -> list[float]:
    """The trainer's rates over the plain loop's median."""
    return [it / median(rates(document, case + PLAIN)) for it in rates(document, case)]


def cores(document: Mapping[str, Any], case: str) -> list[float | None]:
    """Cores that the trainer had in every repeat; None: all."""
    return [it.get("cores") for it in runs_of(document, case)]


def verdict(document: Mapping[str, Any], case: str) -> str:
    """Whether the trainer is at least `TARGET` as fast: told only of loops with the same cores that repeat well."""
    ours, plain = (rates(document, it) for it in (case, case + PLAIN))
    if held := [it for it in cores(document, case) if it is not None and it < LEAST_CORES]:
        return f"cannot tell: the trainer was held to {min(held):g} core, the plain loop was not"
    if min(len(ours), len(plain)) < ENOUGH:
        return f"cannot tell: fewer than {ENOUGH} repeats"
    if min(ours) >= TARGET * max(plain):
        return "pass"
    return "fail" if max(ours) < TARGET * min(plain) else "cannot tell: repeats lie too far apart"


def of_peak(document: Mapping[str, Any], case: str) -> str:
    """The share of the GPU's peak that the network's own operations are."""
    cell = document["cells"][case]
    if "peak_tflops" not in cell:
        return "–"
    return f"{100 * median(rates(document, case)) * cell['flops_per_sample'] / cell['peak_tflops'] / 1e12:.1f} %"


def table(document: Mapping[str, Any]) -> str:
    """Every value, network by network; then checkpoints and faults."""
    rows = ["| network, samples a step | trainer | plain loop | in DDP | trainer / plain | of peak | ≥99 % |",
            "|---|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for case in sorted(cases(document)):
        values = [", ".join(f"{it:,.0f}" for it in rates(document, case + end)) or "–" for end in ("", PLAIN, DDP)]
        ratio = f"{100 * median(against(document, case)):.1f} %"
        cell = document["cells"][case]
        rows.append(
            f"| {case}, {cell['batch']} | {' | '.join(values)} | {ratio} | {of_peak(document, case)} | "
            f"{verdict(document, case)} |"
        )
    rows += ["", "Samples a second over all measured steps, one value a repeat.", "", *checkpoints(document), ""]
    rows += ["| fault | under | ends as | time to recovery | same bits as undisturbed |", "|---|---|---|--:|---|"]
    for it in document["cells"]["faults"]["runs"]:
        seconds = "–" if it["recovery_s"] is None else f"{it['recovery_s']:.2f} s"
        at = f" in {it['phase']}" if it["phase"] else ""
        rows.append(f"| `{it['kind']}`{at} | {it['mechanism']} | {it['outcome']} | {seconds} | {it['same_training']} |")
    machine = document["machine"]
    about = f"{machine['gpu']}, {machine['cores']} × {machine['cpu']}, torch {machine['torch']}"
    return "\n".join([*rows, "", f"{about}. The GPU is real; the nodes of the faults are emulated."]) + "\n"


def checkpoints(document: Mapping[str, Any]) -> list[str]:
    """What a state of the GPU's takes on its way to the disk."""
    found = runs_of(document, "checkpoints")
    words = {"checkpoint_block": "training stands still for", "checkpoint_save": "durable and hashed after",
             "checkpoint_load": "loaded and verified after"}  # fmt: skip
    told = [f"{text} {', '.join(f'{it[name]:,.0f}' for it in found)} ms" for name, text in words.items()]
    return [f"A state of 1,000 MiB on the GPU: {'; '.join(told)}."] if found else []
