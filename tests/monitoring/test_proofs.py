"""Every alert about searches, end points and queues comes by a real fault, and none comes while nothing is broken."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from proving_ground.bench.servers import HERE, free_port
from proving_ground.serving import load, servers
from tests.monitoring import proofs
from tests.monitoring.conftest import needs_prometheus

pytestmark = [needs_prometheus, pytest.mark.timeout(600)]
REPLICA = Path(__file__).with_name("small_replica.py")
EXAMPLE = load.Example({"inputs": {}}, {"output": [[1.0]]})
needs_proxy = pytest.mark.skipif(
    shutil.which("haproxy") is None and not Path("/usr/sbin/haproxy").exists(), reason="needs HAProxy"
)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[search]'")


@contextlib.contextmanager
def end_point(folder: Path) -> Iterator[servers.EndPoint]:
    """Two small replicas behind the real HAProxy."""
    front, *ports = (free_port(0) for _ in range(3))
    with contextlib.ExitStack() as stack:
        replicas = [
            stack.enter_context(
                servers.started_group(f"r{number}", port, folder, [sys.executable, str(REPLICA), str(port)], os.environ)
            )
            for number, port in enumerate(ports, 1)
        ]
        command = [servers.found_proxy(), "-db", "-f", str(servers.write_proxy(folder, front, ports, "/"))]
        proxy = stack.enter_context(servers.started_group("haproxy", front, folder, command, os.environ))
        for it in (*replicas, proxy):
            servers.wait_ready(it, "/")
        yield servers.EndPoint(f"http://{HERE}:{front}/score", replicas, folder, proxy)


@needs_proxy
def test_a_broken_end_point_is_told(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with end_point(logs) as it:
        rows = proofs.of_end_point(it, EXAMPLE, tmp_path)
    came = {row.alert for row in rows}
    assert came == {name for name in proofs.OURS if name.startswith(("EndPoint", "Queue"))}


@needs_ray
def test_a_search_whose_workers_are_stopped_is_told(tmp_path: Path) -> None:
    assert [it.alert for it in proofs.of_search(tmp_path)] == ["SearchStalled"]
