"""A job of a hundred pods: planned, given machines together, and gone afterwards.

Real are the API server, the controllers and the scheduler. **The machines are simulated** by kwok, which calls pods
running without running anything: what is seen here is scheduling and the harness' own part of it, no training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.bench.clusters.remote.kubernetes import PODGROUPS, KubernetesOptions, KubernetesPool
from proving_ground.bench.protocols import ClusterError, ClusterRequest
from tests.engines import needs
from tests.engines.folders import vanishing
from tests.engines.kubernetes import BOUND_S, PROGRAMS, left_soon, objects
from tests.infra.apiserver.server import Program, Server, controlling, running, scheduling
from tests.infra.gotools import UnavailableError, find

pytestmark = [pytest.mark.engines, pytest.mark.minutes, pytest.mark.timeout(1500)]  # Kubernetes and kwok are built once
MACHINES, SPACE = 100, "many"
STAGES = Path(__file__).with_name("stages.yaml")


@dataclass(frozen=True)
class Many:
    """A control plane with simulated machines."""

    server: Server
    folder: Path


@pytest.fixture(scope="module")
def many() -> Iterator[Many]:
    needs.require({program: PROGRAMS[program] for program in ("etcd", "openssl", "go")})
    with vanishing("pg-many-") as folder:
        try:
            kwok = find("kwok")
            with running(folder) as server, controlling(server, folder), scheduling(server, folder):
                words = ["--kubeconfig", str(folder / "kubeconfig"), "--config", str(STAGES), "--manage-all-nodes"]
                with Program([str(kwok), *words], folder / "kwok.log"):
                    populate(server)
                    yield Many(server, folder)
        except UnavailableError as reason:
            pytest.fail(str(reason))


def populate(server: Server) -> None:
    """Machines, and a namespace for pods."""
    server.request("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    for number in range(1, MACHINES + 1):
        name = f"m{number}"
        about = {"name": name, "labels": {"kubernetes.io/hostname": name, "simulated": "true"}}
        assert not server.request("POST", "/api/v1/nodes", {"metadata": about}).message
    deadline = time.monotonic() + BOUND_S
    while len(list(filter(is_ready, server.request("GET", "/api/v1/nodes").body["items"]))) < MACHINES:
        assert time.monotonic() < deadline, "the simulated machines are not ready"
        time.sleep(0.2)
    account = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
    while server.request("GET", account).message:
        time.sleep(0.2)


def is_ready(node: dict[str, Any]) -> bool:
    """Whether kwok says so, and nothing keeps pods away."""
    conditions = {it["type"]: it["status"] for it in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


@pytest.fixture
def reached(many: Many, monkeypatch: pytest.MonkeyPatch) -> Many:
    monkeypatch.setenv("KUBECONFIG", str(many.folder / "kubeconfig"))
    return many


def pool(wait_min: int = 15) -> KubernetesPool:
    return KubernetesPool(KubernetesOptions(image="simulated:1", namespace=SPACE, emulated=True, wait_min=wait_min))


def request(nodes: int, folder: Path) -> ClusterRequest:
    return ClusterRequest(f"r{time.time_ns()}", nodes, 1, folder)


def test_a_hundred_pods_are_planned_get_machines_together_and_go(reached: Many, tmp_path: Path) -> None:
    made = pool()
    trial: Any = SimpleNamespace(nodes=MACHINES)
    manifests = made.plan([], trial).split("\n}\n")
    assert len(manifests) - 1 == 1 + 1 + MACHINES, "the Job, the agent, a name for each node"
    assert json.loads(f"{manifests[0]}}}")["spec"]["scheduling"] == {
        "schedulingPolicy": {"gang": {"minCount": MACHINES}}
    }
    told: list[str] = []
    try:
        members = made.allocate(request(MACHINES, tmp_path), lambda _: b"an agent", told.append)
        assert len({it.host for it in members}) == len({it.address for it in members}) == MACHINES
        (group,) = objects(reached.server, SPACE, "podgroups")
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": MACHINES}}
        assert reached.server.request("GET", PODGROUPS).status == 200
    finally:
        made.release()
    assert left_soon(reached.server, SPACE) == []


def test_of_one_pod_too_many_none_gets_a_machine_and_all_go(reached: Many, tmp_path: Path) -> None:
    made = pool(wait_min=1)
    with pytest.raises(ClusterError, match=rf"0 of {MACHINES + 1} pods run after 1 min: Unschedulable: "):
        made.allocate(request(MACHINES + 1, tmp_path), lambda _: b"an agent", lambda _: None)
    assert not any(it["spec"].get("nodeName") for it in objects(reached.server, SPACE, "pods"))
    made.release()
    assert left_soon(reached.server, SPACE) == []
