"""A local cluster that is taken down after the test, and what tests do with one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.protocols import ClusterRequest, Node, ProcessExit, ProcessSpec

WAIT_S = 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need real isolated nodes are skipped, in words, where there is no root."""
    root = sys.platform == "linux" and os.geteuid() == 0
    for item in items:
        if item.get_closest_marker("root") and not root:
            item.add_marker(pytest.mark.skip(reason="needs root on Linux: makes network namespaces"))


class Bench:
    """A cluster with a folder for what its processes print."""

    def __init__(self, cluster: LocalCluster, folder: Path, run_id: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.run_id = run_id
        self.emitted: list[str] = []

    def up(self, nodes: int, disk_mb: int = 8, volume_mb: int | None = None) -> Sequence[Node]:
        request = ClusterRequest(self.run_id, nodes, disk_mb, self.folder / "scratch", volume_mb)
        return self.cluster.setup(request, lambda event, **_: self.emitted.append(event))

    def start(self, node: str, *argv: str, slot: int = 0, **env: str) -> int:
        return self.cluster.start(ProcessSpec(node, slot, argv, env, log=self.log(node, slot)))

    def python(self, node: str, code: str, slot: int = 0, **env: str) -> int:
        return self.start(node, "python", "-c", code, slot=slot, **env)

    def log(self, node: str, slot: int = 0) -> Path:
        return self.folder / f"{node}.{slot}.log"

    def said(self, node: str, slot: int = 0) -> str:
        return self.log(node, slot).read_text()

    def wait_for_exits(self, count: int) -> list[ProcessExit]:
        ended: list[ProcessExit] = []

        def all_of_them() -> bool:
            ended.extend(self.cluster.exits())
            return len(ended) >= count

        until(all_of_them)
        assert len(ended) == count
        return ended

    def wait_until_said(self, node: str, words: str) -> None:
        until(lambda: self.log(node).exists() and words in self.said(node))


def until(done: Callable[[], bool], seconds: float = WAIT_S) -> None:
    """Return when it is so; fail when it is not in time."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(cluster: LocalCluster) -> Bench:
        folder = tmp_path / f"b{len(made)}"
        folder.mkdir()
        made.append(Bench(cluster, folder, f"test{os.getpid()}-{time.monotonic_ns()}"))
        return made[-1]

    yield make
    for bench in made:
        bench.cluster.teardown()


@pytest.fixture
def isolated(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(LocalCluster(preload=None))


@pytest.fixture
def plain(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(LocalCluster((), preload=None))
