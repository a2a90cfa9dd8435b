"""The metrics' names, kinds and units follow Prometheus' rules, and the README's table is theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proving_ground.monitoring.metrics import METRICS, table

README = Path(__file__).parents[2] / "monitoring" / "README.md"
ENDINGS = {
    "seconds": ("_seconds", "_seconds_total", "_seconds_estimated"),
    "bytes": ("_bytes", "_bytes_total"),
    "bytes per second": ("_bytes_per_second",),
    "ratio": ("_ratio",),
    "celsius": ("_celsius",),
    "watts": ("_watts",),
    "hertz": ("_hertz",),
    "dollars": ("_dollars_per_hour",),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_name_follows_the_rules(name: str) -> None:
    it = METRICS[name]
    assert re.fullmatch(
        r"(pg_)?(training|recovery|checkpoint|communication|gpu|node|search|endpoint|queue|chaos|exporter)(_[a-z0-9]+)+",
        name,
    )
    assert (it.kind == "counter") is name.endswith("_total")
    assert (it.kind == "histogram") is bool(it.buckets)
    assert list(it.buckets) == sorted(set(it.buckets))
    assert not it.unit or name.endswith(ENDINGS[it.unit])
    assert it.meaning
    assert it.source
    assert all(re.fullmatch(r"[a-z_]+", label) for label in it.labels)


def test_the_table_in_the_readme_is_generated() -> None:
    text = README.read_text()
    assert text.partition("compares -->\n")[2].partition("\n<!-- /metrics -->")[0] == table()
