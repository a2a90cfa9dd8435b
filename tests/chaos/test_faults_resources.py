"""Nodes with too little computing time or memory: measured, killed by the real kernel, and after healing."""

from __future__ import annotations

import time

import pytest

from proving_ground.bench.clusters.local.clean import exists
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults import FAULTS, resources
from tests.chaos.conftest import Idle, Job, works

BURN = """
import time
begin, cpu = time.monotonic(), time.process_time()
while time.monotonic() - begin < 0.6: pass
print((time.process_time() - cpu) / 0.6)
"""


@pytest.mark.root
def test_slow_node_gets_less_computing_time_until_healed(job: Job) -> None:
    fault, scene = FAULTS["slow_node"], job.injection("slow_node", "n2", cores=0.1)
    job.cluster.shape(None, 0.8)
    try:
        begin = fault.inject(scene)
        assert float(job.run("n2", BURN)) < 0.2
        end = fault.heal(scene)
        assert works(fault, scene, begin, end) is True
        assert (begin["during"]["n2"]["cores"], end["cores_after"]["n2"]) == (0.1, 0.8)
        assert works(fault, scene, begin) is None
        throttled = job.cluster.share_state("n1")["throttled_s"]
        assert throttled <= end["at_end"]["n2"]["throttled_s"]
        fault.heal(scene)
        assert job.cluster.share_state("n2")["cores"] == 0.8
    finally:
        job.cluster.shape(None, None)


@pytest.mark.root
def test_a_node_that_had_nothing_to_do_was_not_slowed(job: Job) -> None:
    scene = job.injection("slow_node", "n2", cores=0.5)
    begin = FAULTS["slow_node"].inject(scene)
    assert works(FAULTS["slow_node"], scene, begin, FAULTS["slow_node"].heal(scene)) is False


@pytest.mark.root
def test_memory_limit_has_the_kernel_kill_the_worker_and_it_alone(job: Job) -> None:
    fault, scene = FAULTS["memory_limit"], job.injection("memory_limit", "n2")
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    (victim,) = begin["killed"]
    assert (victim["node"], victim["pid"]) == ("n2", job.pids("n2")[0])
    assert not exists(victim["host_pid"])
    assert len(job.cluster.processes("n2")) == 1, "the launcher lives; the other tenant is none of the node's"
    fault.heal(scene)
    assert job.cluster.memory_state("n2")["limit_bytes"] is None
    fault.heal(scene)
    job.cluster.stop(0)
    job.start("n2")


@pytest.mark.root
def test_a_limit_below_what_is_in_use_is_refused_in_one_line(job: Job) -> None:
    if job.cluster.memory_state("n2")["usage_bytes"] < 2**21:
        pytest.fail("the worker holds 16 MB")
    with pytest.raises(ClusterError, match=r"n2: its memory: .*busy"):
        job.cluster.limit("n2", 1)
    job.cluster.limit("n2", None)


@pytest.mark.root
@pytest.mark.parametrize("key", ["slow_node", "memory_limit", "clock_skew"])
def test_without_effect_it_did_not_work(job: Job, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "KILL_S", 0.05)
    scene = job.injection(key, "n2", cluster=Idle(job.cluster))
    begin = FAULTS[key].inject(scene)
    job.run("n2", BURN)
    assert works(FAULTS[key], scene, begin, FAULTS[key].heal(scene)) is False


CLOCK = "import time; print(time.time(), time.monotonic())"
CHILD = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-I', '-S', '-c', sys.argv[1]]).returncode)"


def off_by(job: Job, seconds: float, node: str, code: str, *words: str) -> bool:
    """Whether a node's wall clock, read between two looks at ours, is so far off, and its timers are right."""
    before = time.time(), job.cluster.now()
    wall, timers = map(float, job.run(node, code, *words).split())
    return before[0] <= wall - seconds <= time.time() and before[1] <= timers <= job.cluster.now()


@pytest.mark.root
def test_clock_skew_is_one_node_s_wall_clock_and_nothing_else(job: Job) -> None:
    fault, scene = FAULTS["clock_skew"], job.injection("clock_skew", "n2", seconds=-3600)
    begin = fault.inject(scene)
    for code, words in ((CLOCK, ()), (CHILD, (CLOCK,))):
        assert off_by(job, -3600, "n2", code, *words)
        assert off_by(job, 0, "n1", code, *words)
    end = fault.heal(scene)
    assert works(fault, scene, begin, end) is True
    assert off_by(job, 0, "n2", CLOCK)
    assert fault.heal(scene)["ahead_s"]["n2"] == pytest.approx(0, abs=1)


@pytest.mark.root
def test_a_run_that_asked_for_no_clocks_says_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.cluster._parts, "clocks", {})
    with pytest.raises(ClusterError, match="the run asked for no clocks"):
        FAULTS["clock_skew"].inject(job.injection("clock_skew", "n2"))


class Gpus:
    """A cluster with a GPU of 1 GiB on each node, of which `effective` programs can take memory."""

    def __init__(self, *, effective: bool) -> None:
        self.effective = effective
        self.free = 900 * 2**20

    def now(self) -> float:
        return 0.0

    def gpu_state(self, node: str) -> list[dict[str, object]]:
        return [{"name": f"GPU of {node}", "free_bytes": self.free, "total_bytes": 2**30}]

    def fill_gpu(self, node: str, leave_mebi: int | None) -> None:
        assert node == "n2"
        if self.effective:
            self.free = 900 * 2**20 if leave_mebi is None else leave_mebi * 2**20


@pytest.mark.parametrize("effective", [True, False])
def test_gpu_memory_on_a_stand_in(plain_job: Job, effective: bool) -> None:  # noqa: FBT001 - a case
    scene = plain_job.injection("gpu_memory", "n2", cluster=Gpus(effective=effective))
    begin = FAULTS["gpu_memory"].inject(scene)
    end = FAULTS["gpu_memory"].heal(scene)
    assert works(FAULTS["gpu_memory"], scene, begin, end) is effective
    assert end["now"]["n2"][0]["free_bytes"] == 900 * 2**20


@pytest.mark.root
def test_gpu_memory_on_this_machine(job: Job) -> None:
    """Where there is a GPU its memory really is taken up; elsewhere the reason is told."""
    fault, scene = FAULTS["gpu_memory"], job.injection("gpu_memory", "n2")
    if why := fault.why_not(job.cluster):
        assert why.startswith("gpu memory: no NVIDIA GPU")
        with pytest.raises(ClusterError, match="no NVIDIA GPU"):
            fault.inject(scene)
        return
    begin = fault.inject(scene)
    assert works(fault, scene, begin, fault.heal(scene)) is True
