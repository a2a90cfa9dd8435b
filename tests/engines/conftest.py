"""What tests of several engines have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import kubernetes, needs
from tests.engines.folders import vanishing
from tests.engines.kubernetes import Kubernetes
from tests.infra.gotools import UnavailableError


@pytest.fixture(scope="module")
def volume() -> Iterator[Path]:
    """The one folder that machines share with the harness."""
    with vanishing("pg-volume-") as folder:
        yield folder


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, volume: Path) -> Iterator[Kubernetes]:
    """A Kubernetes of as many nodes as the module says (`NODES`)."""
    needs.require(kubernetes.PROGRAMS)
    with vanishing("pg-kubernetes-") as folder:
        try:
            with kubernetes.kubernetes(folder, request.module.NODES, volume) as made:
                yield made
        except UnavailableError as reason:
            pytest.fail(str(reason))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch, and a node is lost sooner."""
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.LOST_S", 4.0)
    settings = ("BatchMode=yes", "ConnectTimeout=2", "ServerAliveInterval=1", "ServerAliveCountMax=2")
    monkeypatch.setattr("proving_ground.bench.clusters.remote.ssh.SETTINGS", settings)
