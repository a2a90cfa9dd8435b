"""Nodes that an engine gives back elsewhere: what is started again then, and by which address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.protocols import ClusterRequest, Emit, Node, ProcessSpec
from proving_ground.bench.run import run
from proving_ground.bench.spec import Case, Suite

CASE = Case(
    name="moved", workload="digits", mechanism="restart", steps=400, estimated_step_s=0.02, warmup_steps=5,
    global_batch=96,
)  # fmt: skip
SUITE = Suite(name="unit", title="Unit", nodes=(2,), cases=(CASE,), repeats=2, volume_mb=64)
ELSEWHERE = "10.0.0.99"
MOVE_T = 1002.0


class Moving(FakeCluster):
    """A cluster of which one node is elsewhere after two seconds."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which, self.started = which, list[ProcessSpec]()

    def setup(self, request: ClusterRequest, emit: Emit) -> Sequence[Node]:
        self.nodes = super().setup(request, emit)
        return self.nodes

    def present(self) -> Sequence[Node]:
        is_there = self.now() < MOVE_T
        moved = [replace(it, address=ELSEWHERE, zone="c") if it.name == self.which else it for it in self.nodes]
        return self.nodes if is_there else moved

    def start(self, process: ProcessSpec) -> int:
        self.started.append(process)
        return super().start(process)


@pytest.mark.parametrize(
    ("which", "again", "flag"),
    [("n2", ["n2.0"], "--address"), ("n3", ["n1.0", "n2.0"], "--coordinator"), ("n9", [], "")],
)
def test_what_names_an_address_that_is_no_more_is_started_with_the_new_one(
    tmp_path: Path, which: str, again: list[str], flag: str
) -> None:
    cluster = Moving(which)
    store = run(SUITE, cluster, tmp_path)
    assert store.read("seal")["complete"]
    assert rundir.verify(store) == []
    first, then, second = cluster.started[:3], cluster.started[3:-3], cluster.started[-3:]
    assert sorted(it.name for it in then) == again
    assert not [it for it in first if ELSEWHERE in " ".join(it.argv)]
    told = [it.name for it in second if f"{flag} {ELSEWHERE}" in " ".join(it.argv)]
    assert sorted(told) == again, "so does the next trial"
    assert all(f"{flag} {ELSEWHERE}" in " ".join(it.argv) for it in then)
