"""Isolated nodes: that each really has its own network, link, CPU share, disk, name and processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.protocols import ClusterError
from tests.bench.clusters.conftest import Bench

pytestmark = pytest.mark.root

RECEIVE = """
import socket, struct, time
server = socket.create_server(("n2", 5000)); print("up"); peer, _ = server.accept(); got = 0
(begin,) = struct.unpack("d", peer.recv(8, socket.MSG_WAITALL))
while chunk := peer.recv(1 << 18): got += len(chunk)
print("rate", got * 8 / (time.monotonic() - begin) / 1e6)
"""
SEND = """
import socket, struct, time
begin = time.monotonic()
peer = socket.create_connection(("n2", 5000)); peer.sendall(struct.pack("d", begin))
while time.monotonic() - begin < 1.5: peer.sendall(bytes(1 << 18))
"""
"""The clock runs from before the first packet: a receiver that wakes late makes the rate too low, never too high."""
BURN = """
import time
t, cpu = time.monotonic(), time.process_time()
while time.monotonic() - t < 1: pass
print('cpu', time.process_time() - cpu)
"""
LOOK = """
import json, os, socket
os.environ["RES_OPTIONS"] = "timeout:30 attempts:5"
try: socket.getaddrinfo("no-such-host.example", 80)
except OSError: unknown = True
print(json.dumps({"host": socket.gethostname(), "peer": socket.gethostbyname("n2"), "unknown": unknown,
    "interfaces": [name for _, name in socket.if_nameindex()],
    "servers": os.path.exists("/etc/resolv.conf") and open("/etc/resolv.conf").read(),
    "pids": [name for name in os.listdir("/proc") if name.isdecimal()],
    "files": sorted(map(int, os.listdir("/proc/self/fd"))), "pid": os.getpid()}))
"""
"""A look-up that stalls does so for minutes, longer than anybody waits for the process."""
FILL = """
import os, errno
file = os.path.join(os.environ["PROVING_GROUND_DISK"], "f")
try:
    with open(file, "wb", buffering=0) as out:
        while True: out.write(bytes(1 << 18))
except OSError as error: print(errno.errorcode[error.errno], os.path.getsize(file))
"""


def transfer(bench: Bench) -> float:
    """Mb/s from n1 to n2."""
    bench.python("n2", RECEIVE)
    bench.wait_until_said("n2", "up")
    bench.python("n1", SEND)
    assert [ended.code for ended in bench.wait_for_exits(2)] == [0, 0]
    rate = float(bench.said("n2").split()[-1])
    bench.log("n2").unlink()
    return rate


def carried(bench: Bench, least: float, most: float) -> float:
    """Mb/s of the first of three transfers that has the least, or of the last; none has more than the most.

    A receiver that waits for a core makes a link look slow.
    """
    for _ in range(3):
        rate = transfer(bench)
        assert rate <= most
        if rate >= least:
            break
    return rate


def test_links_carry_what_is_asked_and_change_while_up(isolated: Bench) -> None:
    isolated.up(2)
    isolated.cluster.shape(100, None)
    assert carried(isolated, 85, 100) >= 85
    isolated.cluster.shape(30, None)
    assert carried(isolated, 25, 30) >= 25
    isolated.cluster.shape(None, None)
    assert transfer(isolated) > 200
    with pytest.raises(ClusterError, match="at most 34000 Mb/s"):
        isolated.cluster.shape(40_000, None)


def test_cpu_shares(isolated: Bench) -> None:
    """Bounds that hold on a busy machine too: a node never gets more, and is held back only while there is a limit."""
    isolated.up(2)
    isolated.cluster.shape(None, 0.08)
    for node in ("n1", "n2"):
        isolated.python(node, BURN)
    isolated.wait_for_exits(2)
    assert all(0 < float(isolated.said(node).split()[-1]) <= 0.2 for node in ("n1", "n2"))
    throttled = isolated.cluster.sample()["throttled_s"]
    assert all(throttled[node] > 0.05 for node in ("n1", "n2"))
    isolated.cluster.shape(None, None)
    isolated.python("n1", BURN)
    isolated.wait_for_exits(1)
    assert isolated.cluster.sample()["throttled_s"] == throttled


def test_a_node_from_the_inside(isolated: Bench) -> None:
    nodes = isolated.up(2)
    assert [(node.name, node.address) for node in nodes] == [("n1", "10.77.0.1"), ("n2", "10.77.0.2")]
    isolated.python("n1", LOOK)
    isolated.wait_for_exits(1)
    seen = json.loads(isolated.said("n1"))
    assert (seen["host"], seen["peer"], seen["unknown"]) == ("n1", "10.77.0.2", True)
    assert not seen["servers"], "a look-up waits for one that cannot be reached"
    assert seen["interfaces"] == ["lo", "eth0"]
    assert sorted(map(int, seen["pids"])) == [1, seen["pid"]], "sees processes of others"
    assert seen["files"] == [0, 1, 2, 3], "inherited a descriptor of the agent's"


def test_disks_are_full_when_they_are_full_and_a_node_s_own(isolated: Bench) -> None:
    isolated.up(2, disk_mb=3)
    for node in ("n1", "n2"):
        isolated.python(node, FILL)
        isolated.wait_for_exits(1)
        assert isolated.said(node).split() == ["ENOSPC", str(3 * 2**20)]


KEEP = """
import os, sys
for folder in ("/dev/shm", os.environ["PROVING_GROUND_DISK"]):
    print(sorted(os.listdir(folder)))
    if len(sys.argv) > 1:
        os.mkdir(folder + "/kept"), open(folder + "/kept/file", "w").close(), open(folder + "/file", "w").close()
"""


def test_a_power_cut_empties_memory_and_leaves_the_disk(isolated: Bench) -> None:
    isolated.up(2)
    isolated.python("n2", "open('/dev/shm/other', 'w').close()")
    isolated.start("n1", "python", "-c", KEEP, "write")
    isolated.wait_for_exits(2)
    assert isolated.cluster.kill("n1", None, 9) == []
    isolated.python("n1", KEEP)
    isolated.wait_for_exits(1)
    assert isolated.said("n1").splitlines() == ["[]", "[]", "[]", "['file', 'kept']"]
    isolated.python("n2", "import os; print(os.listdir('/dev/shm'))", slot=1)
    isolated.wait_for_exits(1)
    assert isolated.said("n2", 1) == "['other']\n"


def test_two_clusters_side_by_side(isolated: Bench, make_bench: Callable[[LocalCluster], Bench]) -> None:
    other = make_bench(LocalCluster(preload=None))
    isolated.up(2)
    other.up(2)
    isolated.cluster.shape(40, 0.5)
    other.cluster.shape(20, 0.4)
    with ThreadPoolExecutor(2) as pool:
        rates = list(pool.map(carried, (isolated, other), (33, 16), (40, 20)))
    assert rates[0] >= 33
    assert rates[1] >= 16
    other.cluster.teardown()
    isolated.python("n1", "print('still here')")
    assert isolated.wait_for_exits(1)[0].code == 0


def shown(bench: Bench) -> tuple[set[str], list[list[str]]]:
    """The host's interfaces and mounts, but for those of tests that run beside this one."""
    interfaces = {name for _, name in socket.if_nameindex() if not name.startswith("pgswitch")}
    own, others = str(bench.folder), tempfile.gettempdir()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return interfaces, [it for it in mounts if it[1].startswith(own) or not it[1].startswith(others)]


def test_nothing_of_it_shows_outside(isolated: Bench) -> None:
    before = shown(isolated)
    isolated.up(3)
    assert shown(isolated) == before


OPEN = """
import os, subprocess, sys
from proving_ground.bench.agent import kernel
def closed(path):
    return next((folder for folder in [*list(path.parents)[::-1], path] if os.stat(folder).st_mode & 5 != 5), None)
kernel.unshare(kernel.NEWNS); kernel.make_mounts_private()
for path in map(Path, {sys.base_prefix, sys.prefix, os.getcwd()}):
    if folder := closed(path):
        inside = os.open(path, os.O_PATH)
        kernel.mount("tmpfs", str(folder), "tmpfs", options="mode=755")
        path.mkdir(parents=True)
        kernel.mount(f"/proc/self/fd/{inside}", str(path), flags=kernel.MS_BIND)
nobody = 65534
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]], user=nobody, group=nobody, extra_groups=[]).returncode)
"""
ORDINARY = """
import os, sys, tempfile
from pathlib import Path
from proving_ground.bench.clusters.local.userns import enter_user_namespace
print(enter_user_namespace())
from proving_ground.bench.clusters.local.cluster import LocalCluster
from tests.bench.clusters.conftest import Bench
from tests.bench.clusters.test_isolation import carried
folder = tempfile.TemporaryDirectory()
bench = Bench(LocalCluster(preload=None), Path(folder.name), "ordinary")
try:
    print(*[ability.name for ability in bench.cluster.abilities() if ability.yes])
    bench.up(2, volume_mb=4)
    bench.cluster.shape(50, None)
    print(carried(bench, 40, 50))
    bench.cluster.fill(0)
    print(os.statvfs(bench.cluster.volume).f_bavail)
    bench.cluster.readonly(on=True)
    print(os.statvfs(bench.cluster.volume).f_flag & os.ST_RDONLY)
    bench.cluster.readonly(on=False)
    bench.cluster.cut([("n1", "n2")])
    pid = bench.python("n1", "import time; time.sleep(60)")
    (process,) = bench.cluster.processes("n1")
    print(bench.cluster.signal("n1", process.pid, 9) == pid)
finally:
    bench.cluster.teardown()
    folder.cleanup()
"""


def test_an_ordinary_user_gets_nodes_and_links() -> None:
    """Where an interpreter lies in root's home, OPEN opens the way to it for this test's own processes only."""
    answer = subprocess.run(
        [sys.executable, "-c", "from pathlib import Path" + OPEN, ORDINARY], capture_output=True, text=True,
        timeout=240, check=False, env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    first, abilities, rate, *broken = answer.stdout.splitlines() or [answer.stderr] * 3
    if first.startswith("no: user namespaces are locked down"):
        pytest.skip(first)
    assert first == "yes: root inside a user namespace", answer.stderr
    assert {"namespaces", "links", "disks", "signals", "partitions", "loss", "volume"} <= set(abilities.split())
    assert 40 <= float(rate) <= 50
    assert broken == ["0", "1", "True"], answer.stderr
