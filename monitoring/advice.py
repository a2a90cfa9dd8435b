"""What would help a run, and what it is predicted to win. Called by `pg monitoring advice`; alerts name it.

Judged by the reports, not here: `bottleneck` and `gain` figures of `results.json` (`reports/README.md`). A run in
progress has none yet; it is told how to get them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proving_ground.bench import contract
from proving_ground.bench.rundir import RunDir, RunDirError

Figure = Mapping[str, Any]
NAMES = {
    "comm": "exposed communication", "data": "waiting for data", "checkpoint": "waiting for checkpoints",
    "gpu_memory": "GPU memory used", "gpu_utilization": "GPU utilisation",
}  # fmt: skip
LOWER_IS_WORSE = ("gpu_memory", "gpu_utilization")
SHOWN = 3  # gains of one finding


def lines(run: RunDir) -> Iterator[str]:
    """For people: each thing in the way with the changes that win most; then what else is predicted to win.

    Raises:
        RunDirError: there are no results yet; says how to make them.
    """
    if not run.results.exists():
        raise RunDirError(f"{run.path}: no results.json yet; make it when the run is over: pg reports {run.path}")
    figures: Sequence[Figure] = contract.read(run)["figures"]
    found = [it for it in figures if it["name"] == "bottleneck"]
    gains = [it for it in figures if it["name"] == "gain"]
    told: list[Figure] = []
    for it in found:
        own = [gain for gain in gains if belongs(gain, it)]
        told += own
        yield from of_finding(it, own)
    for gain in sorted((it for it in gains if it not in told), key=lambda it: -it["median"]):
        yield f"{about(gain)}: {gain['where']['advice']}: {won(gain)}"


def document(run: RunDir) -> dict[str, Sequence[Figure]]:
    """The same for machines: the figures as `results.json` has them."""
    figures: Sequence[Figure] = contract.read(run)["figures"]
    return {f"{name}s": [it for it in figures if it["name"] == name] for name in ("bottleneck", "gain")}


def belongs(gain: Figure, found: Figure) -> bool:
    """Whether a gain is of this finding."""
    keys = ("case", "scaling", "nodes", "part")
    return all(gain["where"].get(key) == found["where"][key] for key in keys)


def of_finding(found: Figure, gains: Sequence[Figure]) -> Iterator[str]:
    """One thing in the way, and what would help."""
    where = found["where"]
    side = "below" if where["part"] in LOWER_IS_WORSE else "above"
    doubt = "" if where["sure"] else ", not surely"
    share = f"{found['median']:.0f} % ({side} {where['limit']:g} %{doubt}; {found['label']})"
    yield f"{about(found)}: {NAMES.get(where['part'], where['part'])} {share}"
    for gain in gains[:SHOWN]:
        yield f"  {gain['where']['advice']}: {won(gain)}"
    if not gains:
        yield "  what a change would win cannot be predicted here"


def about(figure: Figure) -> str:
    """`resnet50 strong, 8 nodes`."""
    where = figure["where"]
    case = " ".join(str(where[key]) for key in ("case", "scaling") if key in where)
    return f"{case}, {where['nodes']} node{'s' if where['nodes'] != 1 else ''}"


def won(gain: Figure) -> str:
    """`predicted at most +20.9 % of samples/s`."""
    most = "at most " if gain["where"].get("at_most") else ""
    unit = "points of effective training time" if gain["unit"] == "points" else gain["unit"]
    return f"{gain['label']} {most}{gain['median']:+.1f} {unit}"
