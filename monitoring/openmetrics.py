"""A sealed run's figures as OpenMetrics text, for whoever keeps results in Prometheus. Called by `monitoring.readers`.

`results.json` in, text out. Each figure is a gauge of its median in its base unit, with its labels, run and suite; the
ends of its interval and its number of values stand beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from proving_ground.bench import contract
from proving_ground.bench.rundir import RunDir, RunDirError

PREFIX = "proving_ground"
UNITS: Mapping[str, tuple[str, float]] = {
    "ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "%": ("ratio", 1e-2), "h": ("seconds", 3600.0),
    "samples/s": ("samples_per_second", 1.0), "Mb/s": ("bits_per_second", 1e6), "x": ("ratio", 1.0),
    "steps": ("steps", 1.0), "MB": ("bytes", 1e6), "node·s": ("node_seconds", 1.0), "points": ("ratio", 1e-2),
}  # fmt: skip
"""Unit of a figure → the base unit in a metric's name, and what a value is multiplied with."""
VERDICTS = {"pass": 1.0, "fail": 0.0, "unknown": float("nan")}


class Figures(Collector):
    """The figures and verdicts of one run."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = results
        self._about = {
            "run": str(results["run_id"]),
            "suite": str(results["suite"]),
            "cluster": str(results["cluster"]),
        }

    def collect(self) -> Iterator[Metric]:
        """As the registry asks for them: a family for each name."""
        families: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        for it in self._results["figures"]:
            families.setdefault(name_of(it), {}).setdefault(it["unit"], []).append(it)
        for name, units in sorted(families.items()):
            every = [it for group in units.values() for it in group]
            keys = sorted({key for it in every for key in it["where"]} - {"label"})
            yield from self._family(name, every, keys)
        yield self._verdicts()

    def _family(self, name: str, figures: list[Mapping[str, Any]], keys: list[str]) -> Iterator[Metric]:
        labels = [*self._about, "label", *(legal(key) for key in keys)]
        value = GaugeMetricFamily(name, f"median of {figures[0]['name']}", labels=labels)
        count = GaugeMetricFamily(f"{name}_values", f"number of values of {figures[0]['name']}", labels=labels)
        ends = GaugeMetricFamily(f"{name}_ci95", "ends of its 95 % interval", labels=[*labels, "end"])
        for it in figures:
            scale = UNITS.get(it["unit"], ("", 1.0))[1]
            at = [*self._about.values(), it["label"], *(str(it["where"].get(key, "")) for key in keys)]
            value.add_metric(at, it["median"] * scale)
            count.add_metric(at, it["n"])
            for end, number in zip(("low", "high"), it["ci95"] or (), strict=False):
                ends.add_metric([*at, end], number * scale)
        yield value
        yield count
        if ends.samples:
            yield ends

    def _verdicts(self) -> Metric:
        keys = sorted({key for it in self._results["verdicts"] for key in it["where"]})
        labels = [*self._about, "check", *(f"at_{legal(key)}" for key in keys)]
        found = GaugeMetricFamily(f"{PREFIX}_verdict", "1 pass, 0 fail, NaN unknown", labels=labels)
        for it in self._results["verdicts"]:
            at = [*self._about.values(), it["check"], *(str(it["where"].get(key, "")) for key in keys)]
            found.add_metric(at, VERDICTS[it["verdict"]])
        return found


def name_of(figure: Mapping[str, Any]) -> str:
    """`proving_ground_step_time_seconds`."""
    unit = UNITS.get(figure["unit"], ("", 1.0))[0]
    name = legal(str(figure["name"]).removesuffix("_s"))
    return "_".join(filter(None, (PREFIX, name, "" if name.endswith(unit) else unit)))


def legal(name: str) -> str:
    """The name as Prometheus allows it."""
    return re.sub(r"\W", "_", name)


def text(run: RunDir) -> str:
    """The text of one run.

    Raises:
        RunDirError: there are no results yet, or they are not as a report writes them; says how to make them.
    """
    if not run.results.exists():
        raise RunDirError(f"{run.path}: no results.json yet; make it: pg reports {run.path}")
    registry, document = CollectorRegistry(), contract.read(run)
    try:
        registry.register(Figures(document))
        made: bytes = generate_latest(registry)  # type: ignore[no-untyped-call] # it ships no types there
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise contract.damaged(run, f"{type(error).__name__}: {error}") from None
    return made.decode()
