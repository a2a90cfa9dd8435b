"""What a suite may say, by rules of its own: the product's reader is not asked. Called by `tests.validations.suites`.

Each rule answers whether a value may stand there. Keys and ranges of the trainer are read from the table of
`training/README.md`; all others are written down here from the documents of `bench` and `chaos`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Rule = Callable[[Any], bool]
Table = Mapping[str, Any]

ROOT = Path(__file__).parent.parent.parent
ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \| (.*?) \| ")


def whole(low: float, high: float) -> Rule:
    """A whole number from one to another."""
    return lambda it: type(it) is int and low <= it <= high


def number(low: float, high: float) -> Rule:
    """A number from one to another; neither NaN nor infinite."""
    return lambda it: type(it) in (int, float) and math.isfinite(it) and low <= it <= high


def text(pattern: str) -> Rule:
    """A text that matches as a whole."""
    return lambda it: isinstance(it, str) and re.fullmatch(pattern, it, re.DOTALL) is not None


def every(rule: Rule) -> Rule:
    """A list of what a rule allows."""
    return lambda it: isinstance(it, list) and all(rule(each) for each in it)


def table(names: Rule, values: Rule) -> Rule:
    """A table of names and values."""
    return lambda it: isinstance(it, dict) and all(names(key) and values(value) for key, value in it.items())


def flag(it: object) -> bool:
    """True or false."""
    return isinstance(it, bool)


def sizes(it: object) -> bool:
    """Node counts, ascending."""
    return every(whole(1, 64))(it) and isinstance(it, list) and bool(it) and it == sorted(set(it))


def anything(it: object) -> bool:
    """Looked at elsewhere."""
    del it
    return True


NAMES = text(r"[a-z0-9][a-z0-9-]*")
BATCH = whole(1, 1e9)
REPEATS = whole(1, 1000)
TABLE = table(anything, anything)

KINDS = re.findall(r"^\| `(\w+)` \|.*\|.*\|.*\|", (ROOT / "chaos/README.md").read_text(), re.MULTILINE)

SUITE: dict[str, Rule] = {
    "name": text(r"[^/\0\s]+"), "title": text(r"[^\0-\x1f\x7f]*"), "nodes": sizes, "repeats": REPEATS,
    "seed": whole(0, 2**63), "spare_nodes": whole(0, 8), "disk_mb": whole(1, 1e6), "volume_mb": whole(1, 1e6),
    "predict_from": lambda it: it == [] or sizes(it), "predict_repeats": REPEATS, "monitor": flag,
    "monitor_factor": number(1, 1000), "calibrate": flag,
    "faithful": flag, "decide": flag, "limit_s": number(1, 1e6),
    "case": every(TABLE), "cases": every(TABLE), "matrix": TABLE,
}  # fmt: skip
CASE: dict[str, Rule] = {
    "name": NAMES,
    "workload": text(
        "digits|stocks|resnet18|resnet50|vit_b_16|(resnet50|resnet152|vit|bert|gpt2)-(tiny|full)|"
        "collectives|loading|storing|memory|plain|command"
    ),
    "steps": whole(1, 1e7), "estimated_step_s": number(0, 3600), "batch_per_node": BATCH, "global_batch": BATCH,
    "warmup_steps": whole(0, 1e7), "ranks_per_node": whole(1, 64), "repeats": REPEATS,
    "link_mbps": number(1, 400_000), "dilation": number(0.001, 1000),
    "cpus_per_node": number(0.01, 1024), "efficiency_min": table(text("[1-9][0-9]?"), number(0, 1)), "training": TABLE,
    "command": TABLE, "mechanism": text("|relaunch|torchrun|torchrun-tuned|restart|live"), "min_nodes": whole(1, 64),
    "faults": every(TABLE), "twins": every(whole(1, 64)), "apart": flag, "patience_s": number(1, 3600), "peer": flag,
    "startup_s": number(1, 86400), "silence_s": number(1, 86400), "neighbours": flag, "instead": every(TABLE),
    "quality_min": table(text(r"[A-Za-z][\w@/.-]{0,63}"), number(-1e9, 1e9)),
}  # fmt: skip
FAULT: dict[str, Rule] = {
    "kind": text("|".join(KINDS)), "id": text(r"[\w-]*"), "seed": whole(0, 2**63),
    "target": text(r"[a-z0-9, ]*|[\w./-]+=[\w./-]*"), "after_steps": whole(0, 1e5),
    "after_s": number(0, 60), "at_s": number(0, 86_400),
    "phase": text("|forward|allreduce|before_checkpoint|checkpoint_write|before_rename|recovery"),
    "hold_s": number(0, 600), "args": table(anything, number(-1e6, 1e6)),
}  # fmt: skip
COMMAND: dict[str, Rule] = {
    "argv": lambda it: every(text(r"[^\0]*"))(it) and bool(it),
    "env": table(text(r"\w+"), lambda it: isinstance(it, str | int | float | bool)),
    "entry": text(r"[^\0]*"),
    "pattern": table(text("step"), text(r".*\(\?P<.*")),
    "cwd": text(r"[^\0]*"),
    "tells": text("every rank|rank 0"),
}
PROGRAMS: dict[str, Rule] = dict.fromkeys(
    ["data_mb", "shard_mb", "sample_kb", "batch"], whole(1, 1e15)
) | {
    "prefetch": whole(0, 1e15), "steps": whole(1, 1e15), "timeout_s": number(1e-300, 1e15), "address": text(".*"),
    "device": text("auto|cpu|cuda"), "backend": text("auto|gloo|nccl"), "sizes": every(whole(4, 1e15)),
    "sizes_mb": every(whole(1, 1e15)), "batches": every(whole(1, 1e15)),
    "models": every(text("resnet18|resnet50|resnet152|vit_b_16")),
    "model": text("resnet50|resnet152|vit|bert|gpt2"), "size": text("tiny|full"), "precision": text("fp32|bf16|fp16"),
    "ddp": flag, "loaders": whole(1, 1e15), "ops": every(text("all_reduce|all_gather|broadcast|reduce_scatter")),
}  # fmt: skip
MEASURING = ("collectives", "loading", "storing", "memory", "plain")
PLANNED = ("model", "steps", "epochs", "global_batch", "seed")


def trainer_rules() -> dict[str, Rule]:
    """From the table of the trainer's keys; what the plan decides may not stand there."""
    rows = [ROW.match(line) for line in (ROOT / "training/README.md").read_text().splitlines()]
    found = {row[1]: trainer_rule(row[2], row[3].strip()) for row in rows if row}
    return {name: rule for name, rule in found.items() if name not in PLANNED}


def trainer_rule(default: str, may_be: str) -> Rule:
    """A key's default says its type, the third column its values."""
    if default in ("true", "false"):
        return flag
    if default.startswith("'"):
        return text(may_be.replace(", ", "|") or ".*")
    low = re.search(r"-?[\d.]+", may_be)
    least = float(low[0]) if low else -1e15
    if "." not in default:
        return whole(least, 1e15)
    return number(math.nextafter(least, math.inf) if may_be.startswith("above") else least, 1e15)


TRAINER = trainer_rules()


def wrong(document: Table, *, faults: bool) -> Iterator[str]:
    """What in a suite that was accepted may not be there; `faults`: whether it was accepted as one with faults."""
    yield from broken(document, SUITE, "suite")
    matrix = document.get("matrix", {})
    if matrix:
        yield from broken(matrix.get("case", {}), CASE, "matrix.case")
        for axis in matrix["axes"].values():
            for option in axis.values():
                yield from broken(option, CASE, "matrix.axes")
    if document.get("decide") is True and document.get("limit_s") is None:
        yield "suite: decide without limit_s"
    cases = document.get("case", document.get("cases", []))
    for case in cases:
        yield from of_case(case, faults=faults)
    if faults and not any(case.get("faults") for case in cases) and not matrix:
        yield "no faults"


def of_case(case: Table, *, faults: bool) -> Iterator[str]:
    """The same of a case."""
    yield from broken(case, CASE, "case")
    yield from (f"case: no {key}" for key in ("name", "workload", "steps", "estimated_step_s") if key not in case)
    if not {"batch_per_node", "global_batch"} & case.keys():
        yield "case: no batch"
    ranks = case.get("ranks_per_node", 1)
    if isinstance(ranks, int) and ranks > 1:
        batches = [case[key] for key in ("batch_per_node", "global_batch") if isinstance(case.get(key), int)]
        if any(it < ranks for it in batches):
            yield "case: a batch smaller than the ranks of a node"
    command = case.get("command", {})
    if case.get("mechanism") and command.get("tells") == "rank 0" and not command.get("pattern"):
        yield "case: one rank tells of all where faults are got over, and prints nothing"
    if case.get("faults") and not faults:
        yield "case: faults in a benchmark"
    for fault in case.get("faults", []) if faults else []:
        yield from broken(fault, FAULT, "fault")
        if len({"after_steps", "after_s", "at_s"} & fault.keys()) > 1 or ("at_s" in fault and fault.get("phase")):
            yield "fault: it says twice when it comes"
    settings = PROGRAMS if case.get("workload") in MEASURING else {} if case.get("workload") == "command" else TRAINER
    yield from broken(case.get("training", {}), settings, "training")
    yield from broken(case.get("command", {}), COMMAND, "command")


def broken(found: Table, rules: Mapping[str, Rule], where: str) -> Iterator[str]:
    """The keys that no rule knows, or whose rule is broken."""
    for key, value in found.items():
        if key not in rules or not rules[key](value):
            yield f"{where}: {key}"
