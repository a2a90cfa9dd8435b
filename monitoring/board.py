"""The present value of every series, and the limits on how many there may be. Filled by `intake`, `node` and `gpu`.

Plain dictionaries, because a step of every rank goes through here: setting a value costs a look-up. What a scrape gets
is made of them by prometheus_client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from proving_ground.monitoring.metrics import JOB, METRICS

SERIES_OF_A_METRIC = 4_096  # 64 nodes with 8 workers and 7 parts of a step are 3,584
SERIES = 20_000  # of all metrics together
LABEL_LENGTH = 200  # characters of a label's value

Labels = tuple[str, ...]


@dataclass
class Distribution:
    """What a histogram has seen: how many in each bucket (the last: above all bounds), and their sum."""

    counts: list[int]
    total: float = 0.0


@dataclass
class Board:
    """Series by metric and label values. A new series beyond a limit is refused, and counted."""

    series_of_a_metric: int = SERIES_OF_A_METRIC
    series: int = SERIES
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    distributions: dict[str, dict[Labels, Distribution]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.values["exporter_series_refused_total"] = {(name,): 0.0 for name in METRICS}

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge, or a counter that somebody else counts.

        Raises:
            TypeError, ValueError: the value is no number.
        """
        value = float(value)
        held = self.values.setdefault(name, {})
        if labels in held or self._admit(name, labels, len(held)):
            held[labels] = value

    def add(self, name: str, labels: Labels, value: float = 1.0) -> None:
        """Raise a counter.

        Raises:
            TypeError, ValueError: the value is no number.
        """
        value = float(value)
        held = self.values.setdefault(name, {})
        if labels in held:
            held[labels] += value
        elif self._admit(name, labels, len(held)):
            held[labels] = value

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Add one observation to a histogram.

        Raises:
            TypeError, ValueError: the value is no number.
        """
        value = float(value)
        bounds = METRICS[name].buckets
        held = self.distributions.setdefault(name, {})
        if labels not in held:
            if not self._admit(name, labels, len(held)):
                return
            held[labels] = Distribution([0] * (len(bounds) + 1))
        seen = held[labels]
        seen.counts[bisect_left(bounds, value)] += 1
        seen.total += value

    def get(self, name: str, labels: Labels) -> float | None:
        """A value; None where there is no such series."""
        return self.values.get(name, {}).get(labels)

    def drop(self, name: str, labels: Labels) -> None:
        """Remove a series; nothing happens where there is none."""
        if self.values.get(name, {}).pop(labels, None) is not None:
            self.count -= 1

    def drop_job(self, *job: str, begins: tuple[str, ...] = ("",)) -> None:
        """Remove all series of a job (`run`, `trial`), or of a run, of metrics whose names begin so."""
        kept: list[dict[str, dict[Labels, float]] | dict[str, dict[Labels, Distribution]]]
        kept = [self.values, self.distributions]
        for every in kept:
            for name, held in every.items():
                if name.startswith(begins) and METRICS[name].labels[: len(job)] == JOB[: len(job)]:
                    for labels in [it for it in held if it[: len(job)] == job]:
                        held.pop(labels)
                        self.count -= 1

    def _admit(self, name: str, labels: Labels, held: int) -> bool:
        """Whether a new series may come to be; a refused one is counted under its metric's name."""
        short = all(len(value) <= LABEL_LENGTH for value in labels)
        if short and held < self.series_of_a_metric and self.count < self.series:
            self.count += 1
            return True
        self.values["exporter_series_refused_total"][name,] += 1
        return False

    def families(self) -> Iterator[Family]:
        """All series as prometheus_client wants them, in the order of the definitions."""
        for name, it in METRICS.items():
            if it.kind == "histogram":
                yield from self._histogram(name)
            elif held := self.values.get(name):
                kind = CounterMetricFamily if it.kind == "counter" else GaugeMetricFamily
                family = kind(name, it.meaning, labels=it.labels)
                for labels, value in held.items():
                    family.add_metric(labels, value)
                yield family

    def _histogram(self, name: str) -> Iterator[Family]:
        it, held = METRICS[name], self.distributions.get(name)
        if not held:
            return
        family = HistogramMetricFamily(name, it.meaning, labels=it.labels)
        bounds = [*map(str, it.buckets), "+Inf"]
        for labels, seen in held.items():
            below, buckets = 0, []
            for bound, number in zip(bounds, seen.counts, strict=True):
                below += number
                buckets.append((bound, float(below)))
            family.add_metric(labels, buckets, seen.total)
        yield family
