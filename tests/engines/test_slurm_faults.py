"""Faults by Slurm's own means on a real controller and real slurmds: what happens to training, and what Slurm says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.remote import slurm_story
from tests.engines import needs, slurm, traces
from tests.engines.runs import Session, clean, command, events, leaves, shortened
from tests.engines.slurm import Cluster
from tests.engines.traces import ROOT
from tests.programs import program

pytestmark = [pytest.mark.engines, pytest.mark.minutes, pytest.mark.timeout(400)]

SLURMD_TIMEOUT_S = float(slurm.SETTINGS["SlurmdTimeout"])
PARTITIONS = {"main": f"{slurm.MAIN['main']} PriorityTier=1", "preferred": "Nodes=ALL State=UP PriorityTier=2"}
SETTINGS = {
    "ReturnToService": "1", "KillWait": "15", "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE",
}  # fmt: skip
DISABLED = "Slurm accounting storage is disabled"
SHORTER = {
    "twins = [3]": "twins = []",
    'kind = "slurmd_kill"': 'kind = "slurmd_kill"\nhold_s = 1',
    'kind = "slurm_node_drain"': 'kind = "slurm_node_drain"\nhold_s = 1',
    'kind = "slurmctld_kill"': 'kind = "slurmctld_kill"\nhold_s = 4',
    'kind = "slurm_preempt"': 'kind = "slurm_preempt"\nhold_s = 1',
    "patience_s = 30\n": "patience_s = 8\n",
}


@pytest.fixture(scope="module")
def bed(volume: Path) -> Iterator[Cluster]:
    """A machine that was marked down stays so until it is resumed, and a notice is long enough on a busy machine."""
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(4, volume, PARTITIONS, SETTINGS) as made:
        yield made


@pytest.fixture(autouse=True)
def idle(bed: Cluster) -> None:
    """No machine is still at work for the test before: the next would get another one than it counts on."""
    for name in bed.nodes:
        bed.wait_for(name, "idle")


def option(bed: Cluster, volume: Path, **more: str) -> str:
    own = {"python": sys.executable, "volume": str(volume), "emulated": "true"}
    programs = {"slurmd": str(bed.program), "slurmctld": str(bed.program), "power": f"{bed.program} power"}
    return "slurm:main," + ",".join(f"{name}={value}" for name, value in {**own, **programs, **more}.items())


@pytest.fixture
def shorter(tmp_path: Path) -> str:
    """The suite with faults that are held for as long as they have to be seen."""
    return shortened("slurm", tmp_path, SHORTER)


def values(trial: Mapping[str, Any]) -> list[str]:
    """What the report says of a fault as such."""
    return [trial["verdicts"][name] for name in ("happened", "healed", "trained_on")]


def said(results: Mapping[str, Any]) -> set[str]:
    """Slurm's own words for controller, job and machines."""
    return {f"{it['about'].partition('/')[0]} {it['reason']}" for it in events(results, "engine_event")}


def test_training_goes_on_without_daemons_on_a_drained_machine_after_a_requeue_and_a_preemption(
    bed: Cluster, volume: Path, shorter: str, tmp_path: Path
) -> None:
    words = ("chaos", "run", "--suite", shorter, "--case", "live")
    results = command(
        tmp_path, *words, "--cluster", option(bed, volume, requeue="true", preempt="preferred"), env=bed.env
    )
    kinds = {"slurmd_kill", "slurm_node_drain", "slurmctld_kill", "slurm_requeue", "slurm_preempt"}
    assert {it["kind"]: values(it) for it in results["trials"]} == dict.fromkeys(kinds, ["pass"] * 3), results["out"]
    assert [it["same"] for it in events(results, "agent_back")] == [False] * 4 * 2  # all of them, as the job began anew
    assert not events(results, "gap")  # what was written until the end of the notice came home
    assert {"Controller does not answer", "Node draining", "Job PENDING"} <= said(results)
    assert f"Time-outs of slurm: SlurmdTimeout {SLURMD_TIMEOUT_S:g} s, " in results["out"]
    assert {it["kind"] for it in results["trials"] if it.get("replaced")} == {"slurm_requeue", "slurm_preempt"}
    assert [(it["begins"], it["why"]) for it in events(results, "accounting")] == [([], DISABLED)]
    assert not bed.run("squeue", "--noheader")


def test_a_machine_that_slurm_takes_away_stays_away_and_the_verdict_says_so(
    bed: Cluster, volume: Path, shorter: str, tmp_path: Path
) -> None:
    words = ("chaos", "run", "--suite", shorter, "--case", "lost")
    results = command(tmp_path, *words, "--cluster", option(bed, volume), env=bed.env, status=1)
    (lost,) = results["trials"]
    assert values(lost) == ["pass"] * 3, results["out"]
    assert (lost["outcome"], lost["why"]) == ("stuck", "the job never came back to full strength")
    noticed = r"Noticed: slurm_node_down, 1 fault: node down after \d\.\d s .*; training went on after \d\.\d s"
    assert re.search(noticed, results["out"]), results["out"]
    assert {it.rstrip("*") for it in bed.states().values()} == {"idle"}


@pytest.fixture
def slurm_here(monkeypatch: pytest.MonkeyPatch, bed: Cluster, quick: None) -> None:
    """A cluster that is driven by this process needs the clients' configuration, too."""
    del quick
    monkeypatch.setenv("SLURM_CONF", str(bed.conf))


@pytest.mark.usefixtures("slurm_here")
def test_a_machine_without_power_is_known_to_slurm_after_its_time_out_and_to_the_harness_before(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    with Session(option(bed, volume), tmp_path / "run", 2) as session:
        cluster = session.cluster
        pid, where, pulse = session.start("n2", "sleep", "600"), cluster.machine("n2")["where"], cluster.pulse("e2")
        assert where == "e2"
        off_t = cluster.now()
        cluster.power(where, on=False)
        session.lost("n2", pid)
        lost_s = cluster.now() - off_t
        session.until(lambda: cluster.machine("n2")["state"].startswith("down"))
        assert cluster.machine("n2")["id"] == "", "the job has it no more"
        assert cluster.pulse(where) == pulse
        cluster.sleep(2 * slurm_story.LOOK_S)
        cluster.power(where, on=True)
        session.until(lambda: cluster.pulse(where) != pulse)
        cluster.stop(0.1)
        downs = [it for it in session.told("engine_event") if (it["node"], it["reason"]) == ("n2", "down*")]
        assert [it["message"] for it in downs] == ["Not responding"]
        known_s = downs[0]["at_t"] - off_t
        assert lost_s < SLURMD_TIMEOUT_S <= known_s + downs[0]["error_s"], (lost_s, known_s)
    bed.wait_for("e2", "idle")


@pytest.mark.usefixtures("slurm_here")
def test_a_requeue_gives_its_notice_and_what_is_written_until_the_end_comes_home(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    where = option(bed, volume, requeue="true")
    with Session(where, tmp_path / "run", 4) as session:  # all: it begins on the same again
        cluster = session.cluster
        for node in ("n1", "n2"):
            session.start(node, *leaves(2, 3))
        logs = [tmp_path / f"run/logs/t1.{node}.0.log" for node in ("n1", "n2")]
        session.until(lambda: all(log.exists() for log in logs))
        cluster.requeue([it.name for it in session.nodes])
        ended = [*session.exits()]
        while len(ended) < 2:
            ended += session.exits()
        assert {(it.node, it.code) for it in ended} == {("n1", 3), ("n2", 3)}
        for log in logs:  # Slurm signals all processes of a step, and the agent passes its notice on to them
            assert re.fullmatch(r"here\n(noticed\n)+left\n", log.read_text())
        assert {it["node"] for it in session.told("node_notice")} == {"n1", "n2", "n3", "n4"}
        session.back("n2")
        assert not session.told("gap")


@pytest.mark.usefixtures("slurm_here")
def test_steps_survive_a_slurmd_that_comes_back_and_end_with_one_that_slurm_has_given_up(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    with Session(option(bed, volume), tmp_path / "run", 2) as session:
        cluster = session.cluster
        pid = session.start("n2", "sleep", "600")
        where = cluster.machine("n2")["where"]  # any: Slurm gives what it likes of those that are idle
        cluster.daemon(where, on=False)
        assert not cluster.answers(where)
        cluster.daemon(where, on=True)
        assert traces.until(lambda: cluster.answers(where))
        cluster.daemon(where, on=False)
        session.until(lambda: cluster.machine("n2")["state"].startswith("down"))
        assert (cluster.machine("n2")["id"], cluster.away) == ("", frozenset()), "given up, and it still trains"
        cluster.daemon(where, on=True)
        session.lost("n2", pid)
    bed.wait_for(where, "idle")


def test_what_a_killed_harness_had_closed_is_opened_and_what_lacks_is_told(bed: Cluster, volume: Path) -> None:
    bed.run("scontrol", "update", "nodename=e1", "state=drain", "reason=proving-ground-gone")
    bed.run("scontrol", "update", "nodename=e2", "state=drain", "reason=disk broken")
    assert clean(option(bed, volume), env=bed.env)[0] == "left: machine e1, drained by proving-ground-gone"
    assert (bed.states()["e1"].rstrip("*"), bed.states()["e2"]) == ("idle", "drain")
    bed.run("scontrol", "update", "nodename=e2", "state=resume")
    listed = subprocess.run(
        program("chaos", "list", "--json", "--cluster", f"slurm:main,volume={volume}"),
        cwd=ROOT, env=bed.env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for said in ("without requeue=true", "no slurmd= that", "no slurmctld= that", "no power= that"):
        assert said in listed
