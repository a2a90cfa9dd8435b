"""Constraints on a run's figures that decide an exit status. Called by `reports check` and by `proving_ground`.

A constraint names a figure, may narrow it by labels, and sets a bound: `efficiency{nodes=4} >= 0.9`. It is judged with
the figure's 95 % interval: one that lies on both sides of the bound is "cannot tell", and so are one value, a figure
that was not measured, and a run that is not whole. `every resume <= 5 s` speaks of the recorded values alone, and needs
no interval.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench.rundir import RunDirError
from proving_ground.reports import intervals
from proving_ground.reports.figures import Figure
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from proving_ground.training.typed import shown, unknown

OF_LOAD = ("requests_per_s", "p50", "p99", "longest", "error_share", "locust_cores", "saturation_users",
           "in_flight_at_kill", "lost_at_kill")  # fmt: skip
"""Figures of `pg serving load`, which holds itself to constraints."""
NAMES = (
    "throughput", "model_flops", "mfu", "step_time", "efficiency", "speedup", "time_share", "lost", "throttled",
    "efficiency_bound", "idle_pace", "step_bound", "above_bound", "prediction", "prediction_error", "collective_time",
    "algbw", "busbw", "node_hours", "epoch_time", "cost", "bottleneck", "gain", "quality", "time_to_detect", "resume",
    "time_to_recovery", "made_up_s", "full_speed_s", "held_s", "after_held_s", "lost_steps", "lost_work_s",
    "lost_node_s", "fault_cost", "checkpoint_block", "checkpoint_durable", "checkpoint_load", "ettr", "alert_delay",
    "clock_error", "queued_s", "charged_hours", "checkpoint_save", "memory_peak", "load_samples", "load_rate",
    "load_bandwidth", "load_wait", "load_memory", "gpu_utilization", "gpu_memory", *OF_LOAD,
)  # fmt: skip
"""Figures that some run has: one that this run has not is not measured, any other is misspelt."""
ALIASES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "goodput": ("ettr", {"by": "measured"}),
    "detect": ("time_to_detect", {}),
}
"""Other words, of the field or of version 1 of `results.json` → the figure and the labels that they mean."""
LINE = re.compile(
    r"(?P<every>every\s+)?(?P<name>[A-Za-z_]\w*)\s*(?:\{(?P<labels>[^{}]*)\})?\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<unit>\S.*?)?\s*",
    re.IGNORECASE,
)
FORM = "NAME{label=value, …} >= NUMBER [UNIT], with >=, <=, > or <, and `every` before it for each value"
LIKELY_SHARE = 3.0  # a bound without a unit from here on is told: somebody may have meant percent
WHOLE = ("sealed", "completed")
"""Checks without whose pass no figure of a run decides anything."""


@dataclass(frozen=True)
class Constraint:
    """One line of a file of constraints."""

    text: str
    name: str
    labels: Mapping[str, str]
    sign: str
    bound: float
    unit: str  # as it was typed; empty: the figure's, or a share of 1 where that is %
    every: bool  # each value, instead of what the interval says

    def holds(self, value: float, scale: float) -> bool:
        """Whether a value satisfies it; `scale` turns a share into the figure's unit."""
        bound = self.bound * scale
        return {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}[self.sign]


@dataclass(frozen=True)
class Answer:
    """What became of a constraint at one place: pass, fail or unknown, and why."""

    constraint: str
    verdict: str
    why: str
    where: Mapping[str, Any]


def read(file: Path) -> list[Constraint]:
    """The constraints of a TOML file: `require = ["goodput >= 0.95", …]`.

    Raises:
        RunDirError: it cannot be read, or has something else.
    """
    try:
        document = tomllib.loads(file.read_text())
    except OSError as error:
        raise RunDirError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise RunDirError(f"{file}: not TOML: {error}") from None
    for key in document:
        if key != "require":
            raise RunDirError(f"{file}: {unknown('key', key, ['require'])}")
    lines = document.get("require")
    if not isinstance(lines, list) or not lines or not all(isinstance(it, str) for it in lines):
        raise RunDirError(f'{file}: require = {shown(lines)}: must be a list of texts, such as ["goodput >= 0.95"]')
    return [parsed(line, str(file)) for line in lines]


def parsed(text: str, where: str) -> Constraint:
    """A line as a constraint.

    Raises:
        RunDirError: it is none, or names no figure.
    """
    found = LINE.fullmatch(text.strip())
    if not found:
        raise RunDirError(f"{where}: {shown(text)}: is no constraint; allowed: {FORM}")
    if found["name"] not in (*NAMES, *ALIASES):
        raise RunDirError(f"{where}: {shown(text)}: {unknown('figure', found['name'], (*ALIASES, *NAMES))}")
    pairs = [it.partition("=") for it in (found["labels"] or "").split(",") if it.strip()]
    if bad := [key for key, sign, value in pairs if not (key.strip() and sign and value.strip())]:
        raise RunDirError(f"{where}: {shown(text)}: {bad[0].strip()!r} is no label; allowed: label=value")
    name, meant = ALIASES.get(found["name"], (found["name"], {}))
    labels = {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
    unit = (found["unit"] or "").strip()
    return Constraint(
        text.strip(), name, {**meant, **labels}, found["sign"], float(found["bound"]), unit, bool(found["every"])
    )


def judge(constraints: Sequence[Constraint], results: Mapping[str, Any]) -> list[Answer]:
    """Every constraint at every place that it speaks of.

    Raises:
        RunDirError: a label or a unit that the figure does not have.
    """
    broken = [it for it in results["verdicts"] if it["check"] in WHOLE and it["verdict"] != PASS]
    if broken:
        why = f"cannot tell: the run is not whole: {broken[0]['check']}: {broken[0]['why']}"
        return [Answer(it.text, UNKNOWN, why, {}) for it in constraints]
    return [answer for it in constraints for answer in answers(it, results["figures"])]


def answers(constraint: Constraint, figures: Sequence[Figure]) -> Iterator[Answer]:
    """What the figures say of one constraint; those of single jobs are taken together."""
    named = [it for it in figures if it["name"] == constraint.name and it["label"] != "predicted"]
    known = {key for it in named for key in it["where"]}
    for key in constraint.labels:
        if named and key not in known:
            raise RunDirError(f"{constraint.text}: {unknown('label', key, sorted(known))}")
    if constraint.name == "time_share" or len({it["unit"] for it in named}) > 1:  # in ms and in %
        named = [it for it in named if it["unit"] == (constraint.unit or "%")]
    chosen = [it for it in named if matches(it["where"], constraint.labels) and not reference(it)]
    if not chosen:
        places = "; ".join(dict.fromkeys(place(it["where"]) for it in named if not reference(it)))
        yield Answer(constraint.text, UNKNOWN, f"cannot tell: not measured; measured: {places or 'nothing of it'}", {})
    groups: dict[str, list[Figure]] = {}
    for it in chosen:
        groups.setdefault(repr(sorted(apart(it["where"]).items())), []).append(it)
    for group in groups.values():
        yield answer(constraint, group)


def answer(constraint: Constraint, group: Sequence[Figure]) -> Answer:
    """One constraint and the figures of one place."""
    figure, values = group[0], [float(value) for it in group for value in it["values"]]
    scale = scale_of(constraint, figure["unit"])
    ends = figure["ci95"] if len(group) == 1 else intervals.plain_interval(median(values), values)
    unit = figure["unit"] and f" {figure['unit']}"
    if constraint.every:
        bad = [value for value in values if not constraint.holds(value, scale)]
        verdict = FAIL if bad else PASS
        why = f"{len(values) - len(bad)} of {len(values)} values hold" + (
            f"; {bad[0]:.4g}{unit} does not" if bad else ""
        )
    elif ends is None:
        verdict = UNKNOWN
        why = (
            f"cannot tell: {median(values):.4g}{unit} is one value, whose noise is not known; `every` asks for it alone"
        )
    else:
        kept = [constraint.holds(float(end), scale) for end in ends]
        verdict = PASS if all(kept) else UNKNOWN if any(kept) else FAIL
        straddles = "cannot tell: the interval lies on both sides: " if verdict == UNKNOWN else ""
        why = f"{straddles}{median(values):.4g}{unit} ({ends[0]:.4g} to {ends[1]:.4g}), n = {len(values)}"
    return Answer(constraint.text, verdict, why + read_as(constraint, scale), apart(figure["where"]))


def read_as(constraint: Constraint, scale: float) -> str:
    """How a bound was read that is no likely share; else nothing."""
    if scale == 1.0 or constraint.bound < LIKELY_SHARE:
        return ""
    return (
        f"; {constraint.bound:g} was read as {scale * constraint.bound:,.0f} %, for {constraint.bound:g} % add the unit"
    )


def scale_of(constraint: Constraint, unit: str) -> float:
    """What a bound is multiplied with; a bound without a unit is a share of 1 where the figure is in %.

    Raises:
        RunDirError: it has another unit than the figure.
    """
    if constraint.unit and constraint.unit != unit:
        raise RunDirError(f"{constraint.text}: {unknown('unit', constraint.unit, [unit] if unit else ['no unit'])}")
    return 100.0 if unit == "%" and not constraint.unit else 1.0


def matches(where: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a place has all of these labels."""
    return all(str(where.get(key)) == value for key, value in labels.items())


def reference(figure: Figure) -> bool:
    """Whether it is the size that others are compared with: 100 % by definition."""
    return "base_nodes" in figure["where"] and figure["where"]["base_nodes"] == figure["where"].get("nodes")


def apart(where: Mapping[str, Any]) -> dict[str, Any]:
    """The place without the single job: jobs of one kind are repeats of each other."""
    return {key: value for key, value in where.items() if key != "trial"}


def place(where: Mapping[str, Any]) -> str:
    """`case=digits, nodes=4`."""
    return ", ".join(f"{key}={value}" for key, value in apart(where).items() if key not in ("workload", "base_nodes"))


def lines(found: Sequence[Answer]) -> Iterator[str]:
    """For people: what failed first, then what cannot be told; the last line says it all together."""
    for verdict in (FAIL, UNKNOWN, PASS):
        for it in found:
            if it.verdict == verdict:
                about = f" [{place(it.where)}]" if it.where else ""
                yield f"{verdict:<7} {it.constraint}{about}: {it.why}"
    counts = {verdict: sum(it.verdict == verdict for it in found) for verdict in (FAIL, UNKNOWN, PASS)}
    if counts[FAIL]:
        yield f"constraints: fail ({counts[FAIL]} of {len(found)} do not hold)"
    elif counts[UNKNOWN]:
        yield f"constraints: cannot tell ({counts[UNKNOWN]} of {len(found)}), which is no pass"
    else:
        yield f"constraints: pass ({len(found)} hold)"


def status(found: Sequence[Answer]) -> int:
    """0 where all hold, 1 where one does not or cannot be told."""
    return int(any(it.verdict != PASS for it in found))
