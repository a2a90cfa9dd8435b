"""How busy machines elsewhere are: in cores of the harness' machine, by which the report divides."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.bench.clusters.remote.cluster import AgentCluster


def node(**counters: float) -> Any:
    return SimpleNamespace(attached=True, ask=lambda _: None, counters=counters)


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ([node(cpu_s=40.0, cores=4), node(cpu_s=40.0, cores=4)], 10.0),  # all of their cores, for ten seconds
        ([node(cpu_s=40.0, cores=4), node(cpu_s=0.0, cores=12)], 2.5),
        ([node(cpu_s=7.0)], 7.0 / (os.cpu_count() or 1)),  # an agent that does not tell its cores
    ],
)
def test_seconds_of_all_cores_are_a_share_of_them(nodes: list[Any], share: float) -> None:
    cluster: Any = SimpleNamespace(_nodes=dict(enumerate(nodes)))
    assert AgentCluster.sample(cluster)["cpu_s"] / (os.cpu_count() or 1) == pytest.approx(share)


def test_what_no_machine_told_is_left_out() -> None:
    cluster: Any = SimpleNamespace(_nodes={"n1": node()})
    assert AgentCluster.sample(cluster) == {}
