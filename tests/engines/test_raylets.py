"""What a user types, on a real Ray cluster with token and TLS, whose nodes share no folder but the volume."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from proving_ground.bench.clusters.remote.ray import ZONE
from tests.engines import needs, raylets, traces
from tests.engines.machines import DAY_S, Machine
from tests.engines.raylets import Cluster
from tests.engines.runs import Session, clean, command, events, every_step_is_there, passed, ranks_are_right
from tests.engines.traces import ROOT
from tests.programs import program

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
FREE = "import ray\nray.__version__ = '2.59.0'\n"
"""A `sitecustomize` with which this Ray says that it is another."""

HOLD = """
import sys
from pathlib import Path
from proving_ground.bench.clusters.remote import carried
from tests.engines.runs import Session

carried.PRELOAD = ""
session = Session(sys.argv[1], Path(sys.argv[2]), 2)
print("up", flush=True)
while True:
    session.cluster.sleep(1.0)
"""
"""A harness that has two nodes until it is killed."""


@pytest.fixture(scope="module")
def bed(volume: Path) -> Iterator[Cluster]:
    needs.require(raylets.PROGRAMS)
    if find_spec("ray") is None:
        pytest.skip("not installed: ray (extra `search`)")
    with raylets.raylets(3, volume) as made:
        yield made


def option(bed: Cluster, volume: Path, **more: str) -> str:
    table = {"token_file": str(bed.token_file), "volume": str(volume), "emulated": "true", **more}
    return ",".join([f"ray:{bed.address}", *(f"{key}={value}" for key, value in table.items())])


def test_survivors_carry_on_over_ray_and_nothing_is_left(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    words = ("chaos", "run", "--suite", "live", "--case", "exact", "--only", "worker_kill")
    results = command(tmp_path, *words, "--cluster", option(bed, volume), env=bed.env)
    assert passed(results), results["out"]
    assert results["cluster"] == "ray"
    assert every_step_is_there(results)
    assert not events(results, "gap")
    offsets = {it["node"]: round(it["offset_s"] / DAY_S) for it in events(results, "node_clock")}
    assert offsets == {"n1": 1, "n2": 2, "n3": 3, "n4": raylets.HEAD_NUMBER}
    for machine in (*bed.nodes.values(), bed.head):
        assert "proving-ground" not in machine.run(["ls", "/tmp"]).stdout
        assert traces.until(lambda: not actors(machine))  # noqa: B023 - it is called here


@pytest.mark.minutes
def test_one_of_two_ranks_and_then_a_whole_node_are_killed_over_ray(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    words = ("chaos", "run", "--suite", "ranks", "--case", "live", "--cluster", option(bed, volume))
    results = command(tmp_path, *words, env=bed.env)
    assert passed(results), results["out"]
    assert ranks_are_right(results)


def actors(machine: Machine) -> bool:
    """Whether it has an actor of ours."""
    return "ray::Shell" in machine.run(["ps", "-eo", "args"]).stdout


def asked(bed: Cluster, *words: str, **env: str) -> tuple[int, str]:
    """The status of `pg bench …`, and the last line of what it complains of."""
    done = subprocess.run(
        program("bench", *words),
        cwd=ROOT,
        env=bed.env | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def test_whom_ray_refuses_is_told_in_a_line(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("0" * 64)
    (tmp_path / "sitecustomize.py").write_text(FREE)
    run = ("run", "--suite", "smoke", "--runs", str(tmp_path / "runs"), "--cluster")
    known = option(bed, volume)
    said = {
        "token is missing or wrong": asked(bed, *run, f"ray:{bed.address}"),
        "UNAUTHENTICATED": asked(bed, *run, option(bed, volume, token_file=str(tmp_path / "wrong"))),
        "Ray: 2.59.0": asked(bed, *run, known, PYTHONPATH=str(tmp_path)),
        "needs 5 nodes, and cluster ray has 4": asked(bed, *run, known, "--nodes", "5"),
        "is RAY_USE_TLS as it is there?": asked(bed, *run, known, RAY_USE_TLS="0"),
    }
    assert {words: (status, words in line) for words, (status, line) in said.items()} == dict.fromkeys(
        said, (2, True)
    ), said
    assert not bed.head.run(["sh", "-c", "ls /tmp | grep proving || true"]).stdout


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, bed: Cluster, quick: None) -> None:
    """A cluster that is driven by this process is sure of Ray's certificate, too."""
    del quick
    for name, value in bed.tls.items():
        monkeypatch.setenv(name, value)


@pytest.mark.minutes
@pytest.mark.usefixtures("by_hand")
def test_a_node_whose_raylet_is_killed_is_lost_and_comes_back_with_another(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    where = option(bed, volume, power=str(bed.power))
    with Session(where, tmp_path / "run", 2) as session:
        known = session.nodes[1]
        assert (known.host, known.slots, known.gpus) == ("r2", raylets.CPUS, 0)
        assert known.marks == {ZONE: "zone-r2", "rack": "r1", "zone": "zone-r2"}
        pid, before = session.start("n2", "sleep", "600"), session.cluster.machine("n2")
        bed.kill_raylet("r2")
        session.lost("n2", pid)
        assert "sleep" not in bed.nodes["r2"].run(["ps", "-eo", "args"]).stdout  # it went with its raylet
        pulse = session.cluster.pulse("r2")
        session.cluster.power("r2", on=True)
        session.back("n2")
        assert session.cluster.pulse("r2") != pulse
        after = session.cluster.machine("n2")
        assert (before["where"], after["where"], before["id"] == after["id"]) == ("r2", "r2", False)
        session.cluster.power("r2", on=False)
    bed.start_raylet("r2")
    assert not [it for it in clean(where, env=bed.env) if "actor of" in it]  # it was ended though its node was away


@pytest.mark.minutes
def test_what_a_killed_harness_left_is_removed_and_what_is_in_use_is_not(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    where = option(bed, volume)
    words = [sys.executable, "-c", HOLD, where, str(tmp_path / "run")]
    with subprocess.Popen(words, cwd=ROOT, env=bed.env, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        try:
            assert harness.stdout.readline() == "up\n"
            said = "\n".join(clean(where, env=bed.env))
            assert (said.count("in use by"), said.count("in use, let be: r")) == (2, 2), said
        finally:
            harness.kill()
    assert len([it for it in clean(where, env=bed.env) if it.startswith("left: actor of n")]) == 2
    for machine in (bed.nodes["r1"], bed.nodes["r2"]):
        assert "proving-ground" not in machine.run(["ls", "/tmp"]).stdout
        assert traces.until(lambda: not actors(machine))  # noqa: B023 - it is called here
