"""The node itself: it runs pods with images that no registry gave, and leaves nothing, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.config import ROOT
from tests.infra.apiserver.server import Server
from tests.infra.gotools import UnavailableError
from tests.infra.testbed import images, node
from tests.infra.testbed.cluster import cluster
from tests.infra.testbed.project import is_ready

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(900)]
WAIT_S = 60.0
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "loki", "namespace": "default"},
    "spec": {
        "containers": [
            {
                "name": "loki",
                "image": IMAGES["loki"],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 3100}},
            }
        ]
    },
}


@pytest.fixture(autouse=True)
def _possible() -> None:
    """Skipped where a node cannot be had; a failure where a hosted CI has the CLI and so is meant to run these."""
    try:
        node.missing()
    except UnavailableError as reason:
        if os.environ.get("CI") == "true" and shutil.which("pulumi"):
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@pytest.fixture
def before() -> set[str]:
    """What other testbeds of this machine have."""
    return set(shared())


def shared() -> list[str]:
    """Links and cgroups of all testbeds."""
    groups = [*node.CGROUPS.glob(f"*/{node.OURS}/*/"), *node.CGROUPS.glob(f"{node.OURS}/*/")]
    return [*(it.name for it in Path("/sys/class/net").glob("pgswitch*")), *map(str, groups)]


def left(folder: Path, before: set[str]) -> list[str]:
    """What is left of a cluster: processes, mounts, links, cgroups."""
    shown = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        for command in (["ps", "-ewwo", "pid=,args="], ["cat", "/proc/self/mountinfo"])
    ]
    ours = [line for lines in shown for line in lines if str(folder) in line]
    return [*ours, *(it for it in shared() if it not in before)]


def until(true: Callable[[], bool]) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < end:
        time.sleep(0.2)
    return true()


def test_a_pod_runs_and_answers_and_nothing_is_left_after_a_failure(tmp_path: Path, before: set[str]) -> None:
    with pytest.raises(KeyError, match="planted"), cluster(tmp_path) as bed:  # noqa: PT012 - a pod runs meanwhile
        run_a_pod(bed.server)
        assert why_no_log(bed.server) == ""
        raise KeyError("planted")
    assert until(lambda: not left(tmp_path, before)), left(tmp_path, before)
    assert not (tmp_path / "n1" / "lib").exists()


def run_a_pod(server: Server) -> None:
    """One of stand-in Loki, until its probe passes."""
    assert until(lambda: server.request("GET", ACCOUNT).status == 200)
    assert not server.request("POST", "/api/v1/namespaces/default/pods", POD).message
    assert until(lambda: is_ready(pod(server))), pod(server)["status"]


def pod(server: Server) -> dict[str, Any]:
    """The pod as the API server has it."""
    return server.request("GET", "/api/v1/namespaces/default/pods/loki").body


def why_no_log(server: Server) -> str:
    """Why the kubelet does not give the API server what the pod wrote; empty where it does, and that is no JSON."""
    try:
        return server.request("GET", "/api/v1/namespaces/default/pods/loki/log").message
    except ValueError:
        return ""


CHILD = """
import sys, time
from pathlib import Path
from tests.infra.testbed.cluster import cluster
from tests.infra.testbed.test_testbed import run_a_pod
with cluster(Path(sys.argv[1])) as bed:
    run_a_pod(bed.server)
    print("up", flush=True)
    time.sleep(600)
"""


def test_after_a_kill_only_empty_cgroups_stay_and_go_with_the_next_node(tmp_path: Path, before: set[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        running = left(tmp_path, before)
        child.send_signal(signal.SIGKILL)
    assert said == b"up\n"
    assert len(running) > len(("etcd", "API server", "controllers", "scheduler", "node"))
    assert until(lambda: all(it.startswith(str(node.CGROUPS)) for it in left(tmp_path, before))), left(tmp_path, before)
    node.sweep()
    assert left(tmp_path, before) == []


def test_a_stand_in_is_labelled_as_one() -> None:
    assert {name for name, part in images.PARTS.items() if not part.stand_in} == {
        "prometheus", "alertmanager", "node_exporter",
    }  # fmt: skip
    assert all("stand-in" in part.entry for part in images.PARTS.values() if part.stand_in)
