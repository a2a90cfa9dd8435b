"""A job array on a real Slurm: what happens to one of its elements, and what becomes of the node that it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.bench.clusters import choose
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.protocols import ClusterError, ClusterRequest
from tests.engines import needs, slurm, traces
from tests.engines.runs import Session, clean, command, events, passed, shortened
from tests.engines.slurm import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.timeout(450)]

MACHINES = 5
SETTINGS = {"ReturnToService": "1", "KillWait": "15", **slurm.KEEPALIVE}
SHORTER = {"hold_s = 330": "hold_s = 25", "patience_s = 900": "patience_s = 120"}


@pytest.fixture(scope="module")
def bed(volume: Path) -> Iterator[Cluster]:
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(MACHINES, volume, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def slurm_here(monkeypatch: pytest.MonkeyPatch, bed: Cluster, quick: None) -> None:
    """A cluster that is driven by this process needs the clients' configuration, too."""
    del quick
    monkeypatch.setenv("SLURM_CONF", str(bed.conf))


def option(bed: Cluster, volume: Path) -> str:
    own = {"python": sys.executable, "volume": str(volume), "emulated": "true", "power": f"{bed.program} power"}
    return "slurm:main,array=true," + ",".join(f"{name}={value}" for name, value in own.items())


def idle(bed: Cluster) -> bool:
    """Whether Slurm has no job left, and all machines back."""
    return not bed.run("squeue", "--noheader") and set(bed.states().values()) == {"idle"}


@pytest.mark.usefixtures("slurm_here")
def test_one_element_is_begun_again_elsewhere_and_the_others_run_on(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    bed.run("sbatch", "--nodes=3", "--exclusive", "--chdir=/", "--output=/dev/null", "--wrap=sleep 3")
    with Session(option(bed, volume), tmp_path / "run", 3) as session:
        cluster, before = session.cluster, {it.name: it for it in session.nodes}
        assert "2 of 3 machines are there: Resources" in [it["why"] for it in session.told("queued")]
        pid, lost = session.start("n1", "sleep", "600"), before["n2"].host
        cluster.mark(lost, "drain")
        cluster.requeue(["n2"])
        while "n2" not in cluster.away:
            cluster.sleep(0.05)
        session.back("n2")
        now = {it.name: it for it in cluster.present()}
        cluster.mark(lost, "resume")
        assert (now["n1"], now["n3"]) == (before["n1"], before["n3"])
        assert now["n2"].host not in {it.host for it in session.nodes}
        assert now["n2"].address == bed.nodes[now["n2"].host].address
        assert [it.pid for it in cluster.processes("n1")] == [pid]
        assert "PENDING: BeginTime" in " ".join(it["why"] for it in session.told("queued"))
        assert clean(option(bed, volume), "--dry-run", env=bed.env)[0].startswith("in use by ")
    assert traces.until(lambda: idle(bed))


@pytest.mark.usefixtures("slurm_here")
def test_what_never_is_complete_is_given_back(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    cluster, _ = choose(option(bed, volume))
    assert isinstance(cluster, AgentCluster)
    cluster.pool.wait_s = 2.0
    (tmp_path / "run" / "scratch").mkdir(parents=True)
    request = ClusterRequest("many", MACHINES + 1, 1, tmp_path / "run" / "scratch", volume_mb=1)
    try:
        with pytest.raises(ClusterError, match=r"5 of 6 machines are there after .* min"):
            cluster.setup(request, lambda _event, **_about: None)
    finally:
        cluster.teardown()
    assert traces.until(lambda: idle(bed))


@pytest.mark.usefixtures("slurm_here")
def test_a_node_for_which_no_machine_is_left_is_given_up_with_slurm_s_reason(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    with Session(option(bed, volume), tmp_path / "run", MACHINES) as session:
        cluster = session.cluster
        assert cluster._absent
        cluster._absent.wait_s, lost = 9.0, cluster.machine("n2")["where"]
        cluster.mark(lost, "down")
        with pytest.raises(ClusterError, match=r"slurm: n2 has not come back for .*: PENDING: .*; wait_min= allows"):
            session.exits()
        cluster.mark(lost, "resume")
    assert traces.until(lambda: idle(bed))


@pytest.mark.usefixtures("slurm_here")
def test_an_array_that_is_cancelled_is_the_end_of_the_run_and_one_element_is_not(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    with Session(option(bed, volume), tmp_path / "run", 2) as session:
        array = bed.run("squeue", "--noheader", "--format=%F").split()[0]
        bed.run("scancel", f"{array}_2")
        session.until(lambda: session.cluster._lost == {"n2"})
        session.start("n1", "true")
        assert [(it.node, it.code) for it in session.exits()] == [("n1", 0)]
        bed.run("scancel", array)
        with pytest.raises(ClusterError, match=f"slurm: array {array} is over: CANCELLED"):
            session.exits()
    assert traces.until(lambda: idle(bed))


@pytest.mark.minutes
@pytest.mark.timeout(900)
def test_training_goes_on_while_machines_are_lost_and_is_the_same_once_slurm_gives_others(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    words = ("chaos", "run", "--suite", shortened("slurm-array", tmp_path, SHORTER), "--cluster", option(bed, volume))
    results = command(tmp_path / "runs", *words, env=bed.env)
    assert passed(results), results["out"]
    assert [it["kind"] for it in results["trials"]] == [
        "node_lost",
        "slurm_node_down",
        "slurm_requeue",
        "slurm_node_down",
    ]
    assert len(events(results, "node")) == 8, "each came back once"
    assert traces.until(lambda: idle(bed))
