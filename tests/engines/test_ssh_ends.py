"""How a run by ssh ends where a host's disk is full, somebody presses Ctrl-C, or another run is on the same hosts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from tests.engines import needs, sshd
from tests.engines.runs import clean
from tests.engines.sshd import Hosts
from tests.engines.traces import ROOT
from tests.programs import program

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]

CHATTY = """
title = "Chatty"
nodes = [2]
repeats = 1
[[case]]
name = "chatty"
workload = "command"
steps = 100000
warmup_steps = 2
estimated_step_s = 0.01
batch_per_node = 8
[case.command]
argv = ["python", "-u", "-c", "SCRIPT"]
pattern = { step = "step (?P<step>[0-9]+)" }
"""
STEPS = "import time\\nfor n in range(1, 100000):\\n    print('step', n, 'x' * WIDTH)\\n    time.sleep(0.01)"


@pytest.fixture(scope="module")
def hosts(volume: Path) -> Iterator[Hosts]:
    needs.require(sshd.PROGRAMS)
    with sshd.ssh_hosts(2, volume) as made:
        yield made


def small_disk(hosts: Hosts, size: str) -> str:
    """Give both hosts a disk of their own that small; its folder."""
    for machine in hosts.machines.values():
        machine.run(
            ["sh", "-c", f"umount /small 2>/dev/null; mkdir -p /small && mount -t tmpfs -o size={size} x /small"]
        )
    return ",work=/small"


def chatty(folder: Path, width: int) -> list[str]:
    """A run of a trainer that prints so much a step."""
    (folder / "chatty.toml").write_text(CHATTY.replace("SCRIPT", STEPS.replace("WIDTH", str(width))))
    words = ["run", "--suite", str(folder / "chatty.toml"), "--runs", str(folder / "runs"), "--quiet", "--cluster"]
    return program("bench", *words)


def started(words: list[str], runs: Path) -> subprocess.Popen[str]:
    """A run whose trainers have both told of two steps."""
    harness = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while [it.read_bytes().count(b'"step"') > 1 for it in runs.rglob("t001.n?.0.jsonl")] != [True, True]:
        assert harness.poll() is None, harness.communicate()
        time.sleep(0.1)
    return harness


def recorded(runs: Path) -> list[dict[str, Any]]:
    """The history of the newest run, whose files are whole: every line that a trainer printed is a step, and no gap."""
    store = rundir.find(runs)
    assert rundir.verify(store) == []
    history = list(rundir.read_history(store))
    for node in ("n1", "n2"):
        lines = (store.logs / f"t001.{node}.0.log").read_text().splitlines()
        told = [it["step"] for it in history if it["source"] == f"{node}.0" and it["event"] == "step"]
        assert told == list(range(1, len(told) + 1))
        assert len(told) in (len(lines), len(lines) - 1)  # the last line may be half of one
        assert len(told) > 1
    assert [it for it in history if it["event"] == "gap"] == []
    return history


def nothing_is_left(hosts: Hosts, where: str) -> None:
    assert clean(where) == ["nothing was left behind"]
    for machine in hosts.machines.values():
        assert "proving-ground" not in machine.run(["sh", "-c", "ls /tmp /small"], check=False).stdout
        assert "agent.pyz" not in machine.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout


@pytest.mark.parametrize("size", ["16k", "400k"])
def test_a_disk_that_is_full_at_the_start_is_one_line(hosts: Hosts, volume: Path, tmp_path: Path, size: str) -> None:
    """For the agent, or for the trainer's code."""
    where = hosts.option(volume, 2) + small_disk(hosts, size)
    done = subprocess.run([*chatty(tmp_path, 10), where], cwd=ROOT, capture_output=True, text=True, check=False)
    says = r"bench: n[12]: /small/\S+: No space left on device: free some there, or name another folder with work=\n"
    assert (done.returncode, bool(re.fullmatch(says, done.stderr))) == (1, True), done.stderr
    nothing_is_left(hosts, where)


def test_a_disk_that_fills_up_fails_the_trial_in_one_line_and_all_before_is_kept(
    hosts: Hosts, volume: Path, tmp_path: Path
) -> None:
    where = hosts.option(volume, 2) + small_disk(hosts, "16m")
    done = subprocess.run([*chatty(tmp_path, 20000), where], cwd=ROOT, capture_output=True, text=True, check=False)
    says = (
        r"bench: trial t001 \(chatty, 2 nodes\): n[12].0 exited with status \d+.*; the disk of /small/\S+ is full: .*\n"
    )
    assert (done.returncode, bool(re.fullmatch(says, done.stderr))) == (1, True), done.stderr[-2000:]
    assert len(done.stderr) < 1000
    history = recorded(tmp_path / "runs")
    assert [it["ok"] for it in history if it["event"] == "trial_end"] == [False]
    nothing_is_left(hosts, where)


def test_ctrl_c_ends_all_and_keeps_what_was_recorded(hosts: Hosts, volume: Path, tmp_path: Path) -> None:
    where = hosts.option(volume, 2)
    harness = started([*chatty(tmp_path, 10), where], tmp_path / "runs")
    os.killpg(harness.pid, signal.SIGINT)  # as a terminal does: ssh is not to end by it first
    _, said = harness.communicate()
    assert harness.returncode == 130
    assert said.startswith("bench: interrupted; all that ran was stopped, what was measured is kept: ")
    assert said.count("\n") == 1
    history = recorded(tmp_path / "runs")
    assert history[-1]["why"] == "interrupted"
    assert {it["node"] for it in history if it["event"] == "process_exit"} == {"n1", "n2"}
    nothing_is_left(hosts, where)


@pytest.mark.minutes
def test_two_runs_on_the_same_hosts_leave_each_other_alone(hosts: Hosts, volume: Path, tmp_path: Path) -> None:
    where = hosts.option(volume, 2)
    smoke = ("--suite", "smoke", "--repeats", "1", "--no-report")
    words = program("bench", "run", *smoke, "--cluster", where, "--runs")
    both = [
        subprocess.Popen([*words, str(tmp_path / name)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for name in ("one", "two")
    ]
    folders = "ls -d /tmp/proving-ground-0/*/n*/code 2>/dev/null | wc -l"
    while int(hosts.machines["m1"].run(["sh", "-c", folders]).stdout) < 2:
        assert [it.poll() for it in both] == [None, None]
        time.sleep(0.1)
    assert [it.partition(":")[0] for it in clean(where)] == ["in use, let be"] * 4 + ["nothing was left behind"]
    for name, harness in zip(("one", "two"), both, strict=True):
        said = harness.communicate()[0].decode()
        store = rundir.find(tmp_path / name)
        assert harness.returncode == 0, said
        assert store.read("seal")["complete"]
        assert rundir.verify(store) == []
        assert [it for it in rundir.read_history(store) if it["event"] in ("gap", "warning")] == []
    nothing_is_left(hosts, where)
