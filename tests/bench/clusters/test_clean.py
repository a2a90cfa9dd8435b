"""What a killed harness leaves behind, and that `clean` removes that and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proving_ground.bench.agent.orders import HARNESS_VARIABLE, RUN_VARIABLE
from proving_ground.bench.clusters.local import groups, shares
from proving_ground.bench.clusters.local.clean import Leftover, clean, exists, leftovers, lives, marked_processes
from proving_ground.bench.clusters.local.cluster import LocalCluster
from tests.bench.clusters.conftest import Bench, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HARNESS = """
import json, sys, time
from pathlib import Path
from proving_ground.bench.clusters.local.cluster import LocalCluster
from tests.bench.clusters.conftest import Bench
bench = Bench(LocalCluster(() if sys.argv[2] == "plain" else None, preload=None), Path(sys.argv[1]), sys.argv[3])
bench.up(3, volume_mb=16)
bench.cluster.shape(None, 0.5 if sys.argv[2] == "isolated" else None)
code = "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True); print('up'); time.sleep(60)"
for node in ("n1", "n2", "n3"):
    bench.python(node, code)
    bench.wait_until_said(node, "up")
print("running", flush=True)
time.sleep(60)
"""


def processes_of(run_id: str) -> list[int]:
    return [pid for pid, run, _ in marked_processes() if run == run_id and exists(pid)]


def loop_devices() -> str:
    """The files behind all loop devices of this machine."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(file.read_text())
    return "".join(found)


def killed_harness(folder: Path, kind: str, run_id: str) -> None:
    """Start a harness with three busy nodes and SIGKILL it."""
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, str(folder), kind, run_id], stdout=subprocess.PIPE)
    assert harness.stdout
    assert harness.stdout.readline() == b"running\n"
    assert len(processes_of(run_id)) >= 10, "a fork server, three agents, three processes with a child each"
    assert leftovers(run_id) == [], "it lives: nothing of it is a leftover"
    assert clean(run_id) == []
    assert (str(folder) in loop_devices()) == (kind == "isolated")
    harness.kill()
    harness.wait()
    harness.stdout.close()


@pytest.mark.root
def test_sigkill_of_the_harness_takes_every_process_of_isolated_nodes(tmp_path: Path) -> None:
    run_id = f"killed-{os.getpid()}"
    killed_harness(tmp_path, "isolated", run_id)
    until(lambda: not processes_of(run_id))
    until(lambda: str(tmp_path) not in loop_devices())
    left = leftovers(run_id)
    assert {it.kind for it in left} == {"cgroup"}
    assert clean(run_id) == [f"removed cgroup {it.what} of run {run_id}" for it in left]
    assert not any(Path(it.what).exists() for it in left)
    assert leftovers(run_id) == []


def test_sigkill_of_the_harness_takes_every_process_of_plain_nodes(tmp_path: Path) -> None:
    run_id = f"killed-plain-{os.getpid()}"
    killed_harness(tmp_path, "plain", run_id)
    until(lambda: not processes_of(run_id), 5)  # children that left their parent's group included
    assert leftovers(run_id) == []


BROKEN = """
import sys, time
from pathlib import Path
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.chaos.faults import FAULTS
from tests.chaos.conftest import job_on
job = next(jobs := job_on(LocalCluster(preload=None), Path(sys.argv[1]), sys.argv[2]))
job.start()
for key in sys.argv[3:]:
    FAULTS[key].inject(job.injection(key, "n2" if FAULTS[key].target == "one" else ""))
job.cluster.crowd("n2", 8)
print("broken", flush=True)
time.sleep(60)
"""
AT_WORK = (
    "hang",
    "partition",
    "partition_pair",
    "link_rate",
    "loss",
    "slow_node",
    "disk_full",
    "disk_slow",
    "clock_skew",
)


@pytest.mark.root
def test_sigkill_of_the_harness_while_faults_are_at_work_leaves_nothing(tmp_path: Path) -> None:
    run_id = f"broken-{os.getpid()}"
    command = [sys.executable, "-c", BROKEN, str(tmp_path), run_id, *AT_WORK]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as harness:
        assert harness.stdout
        assert harness.stdout.readline() == b"broken\n"
        groups_of_it = [path for path, run, _ in groups.run_groups() if run == run_id]
        try:  # four launchers, four workers, another tenant
            until(lambda: len({pid for path in groups_of_it for pid in groups.members(path)}) >= 9)
            tenants = [pid for path in groups_of_it for pid in groups.members(path)]
        finally:
            harness.kill()
    until(lambda: not any(exists(pid) for pid in tenants))
    until(lambda: str(tmp_path) not in loop_devices())
    clean(run_id)
    assert leftovers(run_id) == []
    assert not any(path.exists() for path in groups_of_it)


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    marks = {RUN_VARIABLE: "orphaned", HARNESS_VARIABLE: "4194304.1"}
    with subprocess.Popen(["sleep", "600"], env=os.environ | marks) as process:
        yield process
        process.kill()


def test_clean_ends_an_orphan_of_the_named_run_only(orphan: subprocess.Popen[bytes]) -> None:
    until(lambda: orphan.pid in processes_of("orphaned"))
    assert clean("another-run") == []
    assert leftovers("orphaned") == [Leftover("orphaned", "process", str(orphan.pid))]
    assert clean("orphaned") == [f"removed process {orphan.pid} of run orphaned"]
    assert orphan.wait(30) == -signal.SIGKILL


@pytest.mark.root
def test_clean_removes_a_group_with_processes_in_it(orphan: subprocess.Popen[bytes]) -> None:
    group = shares.place().parent / f"{groups.PREFIX}orphaned.4194304.1"
    (group / "n1").mkdir(parents=True)
    (group / "n1" / "cgroup.procs").write_text(str(orphan.pid))
    assert [line.split(" ", 2)[:2] for line in clean("orphaned")] == [["removed", "process"], ["removed", "cgroup"]]
    assert not group.exists()
    assert orphan.wait(30) == -signal.SIGKILL


@pytest.mark.root
def test_clean_lets_a_run_be_whose_harness_lives(make_bench: Callable[[LocalCluster], Bench]) -> None:
    bench = make_bench(LocalCluster(preload=None))
    bench.up(2)
    assert clean(bench.run_id) == []
    bench.python("n1", "print('fine')")
    assert bench.wait_for_exits(1)[0].code == 0
    bench.cluster.teardown()
    assert [run for _, run, _ in (*marked_processes(), *groups.run_groups()) if run == bench.run_id] == []


def test_an_owner_lives_by_pid_and_start_time() -> None:
    assert lives(groups.owner())
    assert not lives(f"{os.getpid()}.1")
    assert not lives("4194304.0")
    assert not lives("nonsense")
    assert not lives("")


def test_leftovers_can_be_told_as_one_line() -> None:
    assert json.dumps(str(Leftover("r1", "cgroup", "/g"))) == '"cgroup /g of run r1"'
