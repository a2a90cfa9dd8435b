"""Jobs that somebody cancels, that run into their time limit, or have notice of it: what the run says, and goes on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.remote.slurm import SlurmPool
from proving_ground.bench.clusters.remote.slurm_fate import FORGOTTEN
from proving_ground.bench.protocols import ClusterError, ProcessExit
from tests.engines import needs, slurm, traces
from tests.engines.machines import Machine
from tests.engines.runs import Session, command, events, leaves
from tests.engines.slurm import Cluster
from tests.engines.traces import ROOT

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]

SETTINGS = {"MinJobAge": "2", "KillWait": "8"}


@pytest.fixture(scope="module")
def bed(volume: Path) -> Iterator[Cluster]:
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(4, volume, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def slurm_here(monkeypatch: pytest.MonkeyPatch, bed: Cluster, quick: None) -> None:
    """A cluster that is driven by this process needs the clients' configuration, too."""
    del quick
    monkeypatch.setenv("SLURM_CONF", str(bed.conf))


def option(volume: Path, **more: str) -> str:
    own = {"python": sys.executable, "volume": str(volume), "emulated": "true"}
    return "slurm:main," + ",".join(f"{name}={value}" for name, value in {**own, **more}.items())


def job(bed: Cluster) -> str:
    """The number of the only job."""
    return bed.run("squeue", "--noheader", "--format=%i").strip()


def nothing_is_left(bed: Cluster) -> None:
    assert traces.until(lambda: not bed.run("squeue", "--noheader").strip())
    for name, machine in bed.nodes.items():
        bed.wait_for(name, "idle")
        assert traces.until(partial(has_no_agent, machine)), name


def has_no_agent(machine: Machine) -> bool:
    """Neither its folder nor its process."""
    look = "ls -d /tmp/proving-ground-*/* 2>/dev/null; pgrep -f agent[.]pyz"
    return not machine.run(["sh", "-c", look], check=False).stdout


def begun(bed: Cluster, runs: Path, words: Sequence[str], event: str) -> subprocess.Popen[str]:
    """A command that has got as far as to have recorded this event."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--runs", str(runs)], cwd=ROOT, env=bed.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def has() -> bool:
        files = runs.glob("**/events/*.jsonl")
        return any(f'"event": "{event}"' in text or f'"event":"{event}"' in text for text in map(Path.read_text, files))

    while not has():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    return process


def test_a_job_that_somebody_cancels_ends_the_run_with_slurm_s_word_and_keeps_what_it_has(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    words = ("bench", "run", "--suite", "smoke", "--cluster", option(volume))
    process = begun(bed, tmp_path, words, "step")
    number, begin = job(bed), time.monotonic()
    bed.run("scancel", number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert time.monotonic() - begin < 40, "promptly"
    assert f"slurm: job {number} was cancelled (CANCELLED)" in err.splitlines()[-1], err
    store = rundir.find(tmp_path)
    assert rundir.verify(store) == []
    assert not store.read("seal")["complete"]
    assert any(it["event"] == "step" for it in rundir.read_history(store))
    assert not [it for it in rundir.read_history(store) if it["event"] == "trial_end" and it["ok"]]
    nothing_is_left(bed)


@pytest.mark.usefixtures("slurm_here")
def test_a_job_that_slurm_has_forgotten_is_over_and_its_end_is_none_of_a_mistake(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    with Session(option(volume), tmp_path / "run", 2) as session:
        number = job(bed)
        session.start("n2", "sleep", "600")
        pool = session.cluster.pool
        assert isinstance(pool, SlurmPool)
        assert pool._story
        pool._story.end()  # nobody asks meanwhile
        bed.run("scancel", number)
        while number in bed.run("squeue", "--noheader", "--states=all", "--format=%i"):
            time.sleep(0.5)
        assert FORGOTTEN in unasked(bed, "squeue", f"--jobs={number}")
        pool._story.look()
        with pytest.raises(ClusterError, match=f"^slurm: job {number} is not known to Slurm any more$"):
            session.cluster.exits()
    nothing_is_left(bed)


def unasked(bed: Cluster, *command: str) -> str:
    """What a command complains of."""
    return subprocess.run(command, env=bed.env, capture_output=True, text=True, check=False).stderr


@pytest.mark.minutes
def test_training_goes_on_after_a_time_limit_that_came_near(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    text = (ROOT / "chaos" / "suites" / "slurm-limit.toml").read_text()
    assert "twins = [3]" in text
    own = tmp_path / "own.toml"
    own.write_text(text.replace("twins = [3]", "twins = []"))
    words = ("chaos", "run", "--suite", str(own), "--cluster", option(volume, notice_s="20", requeue="true"))
    results = command(tmp_path / "runs", *words, env=bed.env)
    (trial,) = results["trials"]
    assert [trial["verdicts"][name] for name in ("happened", "healed", "trained_on")] == ["pass"] * 3, results["out"]
    (fault,) = events(results, "fault_begin")
    evidence = fault["evidence"]
    assert evidence["limit"]["limit_min"] < evidence["limit"]["before_min"] == 120
    assert sorted(evidence["noticed"]) == ["n1", "n2", "n3", "n4"]
    assert [it["same"] for it in events(results, "agent_back")] == [False] * 4
    assert {it["node"] for it in events(results, "node_notice")} == {"n1", "n2", "n3", "n4"}
    assert not events(results, "gap")
    assert {"PENDING", "RUNNING"} <= {it["reason"] for it in events(results, "engine_event")}
    nothing_is_left(bed)


def ended(session: Session) -> str:
    """What the run is told when its job is over."""
    said: list[str] = []

    def over() -> bool:
        try:
            session.cluster.exits()
        except ClusterError as why:
            said.append(str(why))
        return bool(said)

    session.until(over)
    return said[0]


@pytest.mark.minutes
@pytest.mark.usefixtures("slurm_here")
def test_a_job_that_reaches_its_time_limit_says_which_option_allows_for_more(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    with Session(option(volume, time_min="1"), tmp_path / "run", 2) as session:
        number = job(bed)
        session.start("n2", "sleep", "600")
        assert ended(session) == (
            f"slurm: job {number} reached its time limit of 1 min (TIMEOUT): time_min= allows for more"
        )
    nothing_is_left(bed)


@pytest.mark.minutes
@pytest.mark.usefixtures("slurm_here")
def test_all_leave_in_time_where_there_is_notice_of_a_time_limit(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    with Session(option(volume, time_min="2", notice_s="20"), tmp_path / "run", 2) as session:
        number = job(bed)
        for node in ("n1", "n2"):
            session.start(node, *leaves(1, 75))
        left: list[ProcessExit] = []
        while len(left) < 2:
            left += session.exits()
        assert {(it.node, it.code) for it in left} == {("n1", 75), ("n2", 75)}
        assert ended(session) == (
            f"slurm: job {number} left before its time limit of 2 min (FAILED, exit status 75): "
            "time_min= allows for more"
        )
        session.cluster.stop(0.1)
        for node in ("n1", "n2"):
            assert re.fullmatch(r"here\n(noticed\n)+left\n", (session.run / f"logs/t1.{node}.0.log").read_text())
        assert {it["node"] for it in session.told("node_notice")} == {"n1", "n2"}
        assert not session.told("gap")
    nothing_is_left(bed)
