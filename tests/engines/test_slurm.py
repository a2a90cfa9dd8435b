"""A Slurm cluster runs jobs, carries bytes to its nodes and back, and goes on without a daemon or a node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import needs, slurm, traces
from tests.engines.slurm import Cluster

pytestmark = pytest.mark.engines

HOLD = """
import time
from tests.engines.slurm import slurm
from tests.engines.traces import namespace
with slurm(1) as bed:
    found = [bed.controller, *bed.nodes.values()]
    print(bed.folder, *[namespace(it.pid) for it in found], flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Cluster]:
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(2, partitions={"small": "Nodes=e1 State=UP"}) as made:
        yield made


@pytest.fixture
def job(bed: Cluster) -> Iterator[str]:
    """A job that holds all nodes, and goes on without one of them."""
    words = ["--parsable", "--nodes=2", "--no-kill", "--chdir=/", "--output=/tmp/out", "--wrap=sleep 600"]
    number = bed.run("sbatch", *words).strip()
    assert traces.until(lambda: bed.run("squeue", "--noheader", "--format=%T").strip() == "RUNNING")
    yield number
    bed.run("scancel", number)
    assert traces.until(lambda: not bed.run("squeue", "--noheader"))


def step(job: str, node: str, *command: str) -> list[str]:
    """A step beside whatever runs on a node; `--unbuffered` has bytes pass at once and not by lines."""
    return ["srun", "--overlap", f"--jobid={job}", "--unbuffered", "--chdir=/", "-w", node, "-N1", "-n1", *command]


def test_a_job_runs_on_each_node(bed: Cluster) -> None:
    assert sorted(bed.run("srun", "-N2", "--chdir=/", "hostname").split()) == ["e1", "e2"]
    assert bed.run("srun", "-N1", "--partition=small", "--chdir=/", "hostname") == "e1\n"


def test_bytes_pass_unchanged_both_ways(bed: Cluster, job: str) -> None:
    sent = os.urandom(1 << 20)
    done = subprocess.run(step(job, "e2", "cat"), input=sent, env=bed.env, capture_output=True, check=True)
    assert done.stdout == sent


def test_a_byte_passes_at_once_and_a_step_ends_with_its_input_or_its_srun(bed: Cluster, job: str) -> None:
    for end in (end_input, subprocess.Popen.kill):
        with conversation(bed, job) as process:
            assert answers(process)
            end(process)
        assert traces.until(lambda: not runs(bed, "e2", "cat"))


def test_a_step_goes_on_without_daemons(bed: Cluster, job: str) -> None:
    with conversation(bed, job) as process:
        assert answers(process)
        bed.save(job)
        bed.kill_slurmd("e2")
        bed.kill_controller()
        assert answers(process)
        bed.start_controller()
        bed.start_slurmd("e2")
        assert answers(process)
        end_input(process)
        assert process.wait() == 0


def test_a_node_whose_power_is_cut_is_down_and_comes_back(bed: Cluster, job: str) -> None:
    bed.power_off("e2")
    bed.wait_for("e2", "down", "down*")
    assert bed.run("squeue", "--noheader", f"--job={job}", "--format=%T %N") == "RUNNING e1\n"
    bed.power_on("e2")
    bed.wait_for("e2", "idle")


def test_nothing_is_left_after_a_kill() -> None:
    needs.require(slurm.PROGRAMS)
    folder, *spaces = traces.killed(HOLD)
    assert len(spaces) == 2
    assert traces.until(lambda: not traces.processes(set(spaces)) and not traces.named(folder))
    assert not Path(folder).exists()


def conversation(bed: Cluster, job: str) -> subprocess.Popen[bytes]:
    """A step on e2 that sends back what it gets."""
    pipe = subprocess.PIPE
    return subprocess.Popen(step(job, "e2", "cat"), env=bed.env, bufsize=0, stdin=pipe, stdout=pipe)


def answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether a byte comes back."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x")
    return process.stdout.read(1) == b"x"


def end_input(process: subprocess.Popen[bytes]) -> None:
    """Say no more."""
    assert process.stdin is not None
    process.stdin.close()


def runs(bed: Cluster, node: str, program: str) -> bool:
    """Whether a node has such a process."""
    return bed.nodes[node].run(["pgrep", "-x", program], check=False).returncode == 0
