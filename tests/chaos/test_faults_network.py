"""Networks that lose packets or are slow, on real nodes: who still reaches whom, measured, and after healing."""

from __future__ import annotations

import time

import pytest

from proving_ground.bench.protocols import ClusterError, ProcessSpec
from proving_ground.chaos.faults import FAULTS
from tests.bench.clusters.conftest import until
from tests.chaos.conftest import NODES, Idle, Job, works

pytestmark = pytest.mark.root
BOTH_WAYS, ONE_WAY, NOT_AT_ALL = (True, True), (True, False), (False, False)

BLAST = """
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(int(sys.argv[2])):
    out.sendto(b"x" * 1000, (sys.argv[1], 9999))
    if n % 20 == 0: time.sleep(0.001)
"""
SINK = """
import socket, struct, time
server = socket.create_server(("0.0.0.0", 5001)); print("up", flush=True)
peer, _ = server.accept(); got = 0
(begin,) = struct.unpack("d", peer.recv(8, socket.MSG_WAITALL))
while chunk := peer.recv(1 << 16): got += len(chunk)
print(got * 8 / (time.monotonic() - begin) / 1e6)
"""
SEND = """
import socket, struct, sys, time
begin = struct.pack("d", time.monotonic())
socket.create_connection((sys.argv[1], 5001)).sendall(begin + bytes(int(sys.argv[2])))
"""
"""The clock runs from before the first packet: a receiver that wakes late makes the rate too low, never too high."""


def rate(job: Job, one: str, other: str, size: int) -> float:
    """Mb/s that a transfer of `size` bytes gets."""
    log = job.folder / "sink.log"
    log.unlink(missing_ok=True)
    job.cluster.start(ProcessSpec(other, 6, ("python", "-I", "-S", "-c", SINK), log=log))
    until(lambda: log.exists() and "up" in log.read_text())
    job.run(one, SEND, job.addresses[other], str(size))
    until(lambda: len(log.read_text().split()) == 2)
    return float(log.read_text().split()[1])


def test_partition_isolates_a_node_both_ways_and_nobody_else(job: Job) -> None:
    fault, scene = FAULTS["partition"], job.injection("partition", "n2")
    begin = fault.inject(scene)
    assert [job.talk("n2", other) for other in NODES if other != "n2"] == [NOT_AT_ALL] * 3
    assert [job.talk(other, "n2") for other in NODES if other != "n2"] == [NOT_AT_ALL] * 3
    assert job.talk("n1", "n3") == BOTH_WAYS
    end = fault.heal(scene)
    assert works(fault, scene, begin, end) is True
    assert works(fault, scene, begin) is None
    assert all(count >= 1 for count in end["dropped"].values())
    assert job.talk("n1", "n2") == BOTH_WAYS
    assert fault.heal(scene) == end


def test_partition_of_a_minority_and_of_all(job: Job) -> None:
    scene = job.injection("partition", "n1,n2")
    FAULTS["partition"].inject(scene)
    assert (job.talk("n1", "n2"), job.talk("n1", "n3"), job.talk("n4", "n2")) == (BOTH_WAYS, NOT_AT_ALL, NOT_AT_ALL)
    FAULTS["partition"].heal(scene)
    scene = job.injection("partition", "all")
    FAULTS["partition"].inject(scene)
    assert (job.talk("n1", "n2"), job.talk("n4", "n2")) == (BOTH_WAYS, NOT_AT_ALL), "cut off from the coordinator"
    FAULTS["partition"].heal(scene)


def test_partition_pair_cuts_only_between_two_workers(job: Job) -> None:
    fault, scene = FAULTS["partition_pair"], job.injection("partition_pair", "n1,n2")
    begin = fault.inject(scene)
    assert begin["cut"] == ["n1>n2", "n2>n1"]
    assert (job.talk("n1", "n2"), job.talk("n2", "n1")) == (NOT_AT_ALL, NOT_AT_ALL)
    assert [job.talk(one, other) for one in ("n1", "n2") for other in ("n3", "n4")] == [BOTH_WAYS] * 4
    assert works(fault, scene, begin, fault.heal(scene)) is True
    assert job.talk("n1", "n2") == BOTH_WAYS


def test_partition_pair_draws_another_worker_never_the_coordinator(job: Job) -> None:
    scene = job.injection("partition_pair", "n2")
    begin = FAULTS["partition_pair"].inject(scene)
    FAULTS["partition_pair"].heal(scene)
    assert begin["cut"][0] in ("n2>n1", "n2>n3")
    scene.view = type(scene.view)(("n2",), "n2", "n4")
    with pytest.raises(ClusterError, match="n2 has no other worker node"):
        FAULTS["partition_pair"].inject(scene)


def test_partition_oneway_loses_what_a_node_sends(job: Job) -> None:
    fault, scene = FAULTS["partition_oneway"], job.injection("partition_oneway", "n2")
    begin = fault.inject(scene)
    assert (job.talk("n1", "n2"), job.talk("n2", "n1")) == (ONE_WAY, NOT_AT_ALL)
    assert works(fault, scene, begin, fault.heal(scene)) is True
    assert job.talk("n2", "n1") == BOTH_WAYS


def test_two_partitions_at_once_heal_one_after_the_other(job: Job) -> None:
    first, second = job.injection("partition_pair", "n1,n2"), job.injection("partition_pair", "n2,n3")
    for scene in (first, second):
        FAULTS["partition_pair"].inject(scene)
    FAULTS["partition_pair"].heal(first)
    assert (job.talk("n1", "n2"), job.talk("n2", "n3")) == (BOTH_WAYS, NOT_AT_ALL)
    FAULTS["partition_pair"].heal(second)
    assert job.talk("n2", "n3") == BOTH_WAYS


def test_link_rate_limits_one_node_and_gives_back_what_all_have(job: Job) -> None:
    fault, scene = FAULTS["link_rate"], job.injection("link_rate", "n2", mbps=4)
    job.cluster.shape(200, None)
    try:
        begin = fault.inject(scene)
        assert rate(job, "n2", "n1", 150_000) < 5
        assert rate(job, "n1", "n3", 1_000_000) > 20
        end = fault.heal(scene)
        assert works(fault, scene, begin, end) is True
        assert end["after"]["n2"]["mbps"] == [200, 200]
        assert rate(job, "n2", "n1", 1_000_000) > 20
        assert fault.heal(scene)["after"]["n2"]["mbps"] == [200, 200]
    finally:
        job.cluster.shape(None, None)


def test_a_limit_that_nothing_ran_into_did_not_work(job: Job) -> None:
    scene = job.injection("link_rate", "n2", mbps=4)
    begin = FAULTS["link_rate"].inject(scene)
    assert works(FAULTS["link_rate"], scene, begin, FAULTS["link_rate"].heal(scene)) is False


def test_loss_drops_about_the_share_asked_for(job: Job) -> None:
    fault, scene = FAULTS["loss"], job.injection("loss", "n2", percent=10)
    begin = fault.inject(scene)
    job.run("n2", BLAST, job.addresses["n1"], "2000")
    end = fault.heal(scene)
    lost = end["dropped"]["n2"] - begin["dropped_before"]["n2"]
    assert 120 <= lost <= 280, "10 % of 2000, six standard deviations of 13"
    assert works(fault, scene, begin, end) is True
    job.run("n2", BLAST, job.addresses["n1"], "500")
    assert job.cluster.drops()["n2"] == end["dropped"]["n2"], "and none any more"


@pytest.mark.parametrize("key", ["partition", "partition_pair", "partition_oneway", "loss", "link_rate"])
def test_without_effect_it_did_not_work(job: Job, key: str) -> None:
    scene = job.injection(key, "n2", cluster=Idle(job.cluster))
    begin = FAULTS[key].inject(scene)
    for other in ("n1", "n3"):
        assert job.talk("n2", other) == BOTH_WAYS
    assert works(FAULTS[key], scene, begin, FAULTS[key].heal(scene)) is False


def test_delay_where_the_kernel_can_is_measured_and_elsewhere_refused_in_words(job: Job) -> None:
    fault, scene = FAULTS["delay"], job.injection("delay", "n2", ms=40)
    if why := fault.why_not(job.cluster):
        assert why == "delay: this kernel has no netem"
        with pytest.raises(ClusterError, match="n2: its link"):
            job.cluster.delay("n2", 40)
        return
    begin = fault.inject(scene)
    before = time.monotonic()
    assert job.talk("n1", "n2") == BOTH_WAYS
    assert time.monotonic() - before > 0.08
    assert works(fault, scene, begin, fault.heal(scene)) is True
    assert job.cluster.link_state("n2")["delay_ms"] == [None, None]
