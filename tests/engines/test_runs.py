"""Suites on machines of their own, whose clocks are days apart and who share no folder with the harness but the volume.

What runs is the command that a user types; what it must give is what it gives on nodes of this machine.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.bench.clusters import choose
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError
from tests.engines import needs, slurm, sshd, traces
from tests.engines.machines import DAY_S
from tests.engines.runs import (
    Session,
    clean,
    command,
    events,
    every_step_is_there,
    passed,
    ranks_are_right,
    shortened,
)
from tests.engines.slurm import Cluster as SlurmBed
from tests.engines.sshd import Hosts
from tests.engines.traces import ROOT
from tests.programs import program, smoke

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]


@pytest.fixture
def hosts(volume: Path) -> Iterator[Hosts]:
    needs.require(sshd.PROGRAMS)
    with sshd.ssh_hosts(4, volume) as made:
        yield made


@pytest.fixture
def slurm_bed(volume: Path) -> Iterator[SlurmBed]:
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(4, volume) as made:
        yield made


def by_slurm(volume: Path) -> str:
    return f"slurm:main,python={sys.executable},volume={volume},emulated=true"


def test_a_benchmark_by_ssh_has_one_clock_though_its_nodes_are_days_apart(
    hosts: Hosts, volume: Path, tmp_path: Path
) -> None:
    results = command(tmp_path, "bench", "run", "--suite", "smoke", "--cluster", hosts.option(volume, 2))
    assert not [it for it in results["verdicts"] if it["verdict"] == "fail"]
    offsets = {it["node"]: it["offset_s"] for it in events(results, "node_clock")}
    assert {name: round(it / DAY_S) for name, it in offsets.items()} == {"n1": 1, "n2": 2}
    moments = [it["t"] for it in results["history"]]
    assert moments[-1] - moments[0] < DAY_S / 24
    assert all(it["node_t"] - it["t"] > 0.9 * DAY_S for it in events(results, "step"))
    assert results["cluster"] == "ssh"
    assert {it["label"] for it in results["figures"]} <= {
        "emulated",
        "predicted",
    }  # they are one machine, and it is seen
    assert not events(results, "gap")


def test_a_job_by_ssh_is_broken_and_comes_back_while_connections_are_cut(
    hosts: Hosts, volume: Path, tmp_path: Path
) -> None:
    over = threading.Event()

    def cut_now_and_then() -> None:
        names = hosts.hosts[:4] * 100
        while names and not over.wait(2.0):
            with contextlib.suppress(subprocess.CalledProcessError):  # none was established just then
                hosts.cut(names.pop())

    cutter = threading.Thread(target=cut_now_and_then)
    cutter.start()
    try:
        results = command(tmp_path, "chaos", "run", "--suite", "smoke", "--cluster", hosts.option(volume, 4))
    finally:
        over.set()
        cutter.join()
    assert passed(results), results["out"]
    assert len(events(results, "agent_lost")) > 3
    assert not events(results, "gap")
    assert every_step_is_there(results)


def test_survivors_carry_on_over_slurm(slurm_bed: SlurmBed, volume: Path, tmp_path: Path) -> None:
    words = ("chaos", "run", "--suite", "live", "--case", "exact", "--only", "worker_kill", "--only", "node_kill")
    results = command(tmp_path, *words, "--cluster", by_slurm(volume), env=slurm_bed.env)
    assert passed(results), results["out"]
    assert slurm_bed.run("squeue", "--noheader").strip() == ""


RANKS = ("chaos", "run", "--suite", "ranks", "--case")


@pytest.mark.minutes
def test_one_of_two_ranks_and_then_a_whole_node_are_killed_by_ssh(hosts: Hosts, volume: Path, tmp_path: Path) -> None:
    results = command(tmp_path, *RANKS, "live", "--cluster", hosts.option(volume, 3))
    assert passed(results), results["out"]
    assert ranks_are_right(results)
    assert not events(results, "gap")


@pytest.mark.minutes
def test_one_of_two_ranks_and_then_a_whole_node_are_killed_over_slurm(
    slurm_bed: SlurmBed, volume: Path, tmp_path: Path
) -> None:
    results = command(tmp_path, *RANKS, "restart", "--cluster", by_slurm(volume), env=slurm_bed.env)
    assert passed(results), results["out"]
    assert ranks_are_right(results)


@pytest.mark.usefixtures("quick")
def test_what_slurm_knows_of_its_nodes_is_kept(volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(2, volume, switches={"s1": "e1", "s2": "e2"}) as bed:
        bed.run("scontrol", "update", "nodename=e2", "availablefeatures=ib,rack7")
        monkeypatch.setenv("SLURM_CONF", str(bed.conf))
        with Session(by_slurm(volume), tmp_path / "run", 2) as session:
            one, two = session.nodes
    assert (one.host, one.slots, one.gpus, one.zone, one.labels) == ("e1", slurm.CPUS, 0, "s1", {})
    assert (two.host, two.zone, two.labels) == ("e2", "s2", {"ib": "yes", "rack7": "yes"})
    assert two.marks == {"ib": "yes", "rack7": "yes", "zone": "s2"}


def test_what_slurm_refuses_is_one_line_and_status_2(slurm_bed: SlurmBed, tmp_path: Path) -> None:
    for where, says in (
        ("slurm:moon", "invalid partition|partition 'moon'"),
        ("slurm:main,constraint=warp", "cluster slurm: .*(feature|not available)"),
        ("slurm:main,time_min=soon", "time_min = 'soon'"),
    ):
        words = smoke(where, "--runs", str(tmp_path))
        done = subprocess.run(words, cwd=ROOT, env=slurm_bed.env, capture_output=True, text=True, check=False)
        line = done.stderr.strip().splitlines()[-1]
        assert (done.returncode, bool(pytest.importorskip("re").search(says, line))) == (2, True), done.stderr
    assert slurm_bed.run("squeue", "--noheader").strip() == ""


def began(runs: Path) -> bool:
    """Whether a run there has started a process of a trial."""
    return any('"process_start"' in it.read_text() for it in runs.glob("smoke/*/events/harness.jsonl"))


def test_what_a_killed_harness_left_is_removed_and_what_is_in_use_is_not(
    hosts: Hosts, volume: Path, tmp_path: Path
) -> None:
    cluster = hosts.option(volume, 2)
    words = smoke(cluster, "--runs", str(tmp_path))
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as harness:
        while harness.poll() is None and not began(tmp_path):  # who imports notes later that it is in use
            time.sleep(0.1)
        assert [line.partition(":")[0] for line in clean(cluster)[:-1]] == ["in use, let be"] * 2
        harness.kill()

    def told_that_both_are_left() -> bool:
        """A last word of the harness may still be on its way to an agent, which notes then that it has heard of it."""
        for machine in (hosts.machines["m1"], hosts.machines["m2"]):
            machine.run(["sh", "-c", "touch -d '1 minute ago' /tmp/proving-ground-0/*/*/heard"])
        return clean(cluster, "--dry-run")[-1] == "2 things would be removed"

    assert traces.until(told_that_both_are_left)
    hosts.stop_sshd("m2")
    words = program("bench", "clean", "--cluster", cluster)
    one_is_away = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert one_is_away.returncode == 1, one_is_away.stderr
    first, second, last = one_is_away.stdout.splitlines()
    assert (first.startswith("left: m1: "), second.startswith("not asked: m2: ")) == (True, True)
    assert last == "1 thing removed; 1 machine could not be asked: run it again"
    hosts.start_sshd("m2")
    assert clean(cluster)[-1] == "1 thing removed"
    for machine in (hosts.machines["m1"], hosts.machines["m2"]):
        assert "proving-ground" not in machine.run(["ls", "/tmp"]).stdout
        assert "agent.pyz" not in machine.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout


def test_the_job_of_a_killed_harness_is_cancelled_and_one_in_use_is_not(
    slurm_bed: SlurmBed, volume: Path, tmp_path: Path
) -> None:
    words = smoke(by_slurm(volume))
    with subprocess.Popen(
        [*words, "--runs", str(tmp_path)], cwd=ROOT, env=slurm_bed.env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as harness:  # fmt: skip
        while not slurm_bed.run("squeue", "--noheader", "--states=running"):
            pass
        assert "in use by" in clean(by_slurm(volume), env=slurm_bed.env)[0]
        harness.kill()
    assert clean(by_slurm(volume), env=slurm_bed.env)[-1] == "1 thing removed"
    while slurm_bed.run("squeue", "--noheader"):
        pass


@pytest.mark.usefixtures("quick")
def test_a_host_without_power_is_lost_and_comes_back_with_another_clock(
    hosts: Hosts, volume: Path, tmp_path: Path
) -> None:
    with (
        hosts.switched() as program,
        Session(f"{hosts.option(volume, 2)},power={program}", tmp_path / "run", 2) as session,
    ):
        pid, before = session.start("n2", "sleep", "600"), session.cluster.machine("n2")
        assert (before["where"], bool(before["id"])) == ("m2", True)
        session.cluster.power("m2", on=False)
        assert session.cluster.pulse("m2")["at"] == before["id"]
        session.lost("n2", pid)
        session.cluster.power("m2", on=True)
        session.back("n2")
        assert session.cluster.pulse("m2")["at"] not in ("", before["id"])
        assert session.cluster._nodes["n2"].clock.best.ahead_s < DAY_S / 24  # it began anew with the machine


@pytest.mark.minutes
def test_a_job_by_ssh_gets_over_a_host_that_is_switched_off(hosts: Hosts, volume: Path, tmp_path: Path) -> None:
    lost = {'kind = "node_kill"\nhold_s = 1': 'kind = "node_lost"\nhold_s = 4'}
    words = ("chaos", "run", "--suite", shortened("smoke", tmp_path, lost), "--only", "node_lost", "--cluster")
    with hosts.switched() as program:
        results = command(tmp_path / "runs", *words, f"{hosts.option(volume, 4)},power={program}")
    assert passed(results), results["out"]
    (begin,) = events(results, "fault_begin")
    assert begin["evidence"]["off"] == [begin["evidence"]["members"][0]["where"]]
    assert {it["node"] for it in events(results, "gap")} == set(begin["target"])


@pytest.mark.usefixtures("quick")
def test_a_partition_from_the_harness_ends_nothing(
    hosts: Hosts, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "proving_ground.bench.clusters.remote.node.LOST_S", 60.0
    )  # however long it takes to connect again
    with Session(hosts.option(volume, 1), tmp_path / "run", 1) as session:
        session.start("n1", sys.executable, "-c", "import time\nfor n in range(80):print(n,flush=True);time.sleep(.1)")
        hosts.partition("m1", on=True)
        session.cluster.sleep(3.2)
        hosts.partition("m1", on=False)
        assert [it.code for it in session.exits()] == [0]
        assert (tmp_path / "run/logs/t1.n1.0.log").read_text().split() == [str(n) for n in range(80)]
        assert not session.told("gap")


def test_what_ssh_refuses_is_one_line_with_the_right_status(hosts: Hosts, volume: Path, tmp_path: Path) -> None:
    config = hosts.config.read_text()
    lines = {
        "key": config.replace("client_key", "no_key"),
        "host": config.replace("known_hosts", "none_known"),
        "python": config,
        "port": config.replace("Host *", "Port 23\nHost *", 1),
    }
    said = {}
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
        program = "python0" if name == "python" else sys.executable
        with pytest.raises((SpecError, ClusterError)) as why:
            choose(f"ssh:m1,config={tmp_path / name},python={program},volume={volume}")[0].imitated()
        said[name] = (type(why.value), str(why.value))
    assert [kind for kind, _ in said.values()] == [SpecError, SpecError, SpecError, ClusterError], said
    assert "Permission denied" in said["key"][1]
    assert "Host key verification failed" in said["host"][1]
    assert "not found" in said["python"][1]
    assert "Connection refused" in said["port"][1]
    assert all("\n" not in words for _, words in said.values())
    assert json.dumps(said["key"][1])
