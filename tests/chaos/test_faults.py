"""The registry of faults: complete, documented, strict about numbers, honest about what a cluster cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from proving_ground.bench import capabilities
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.clusters.local.cluster import BREAKING, ISOLATION, LocalCluster
from proving_ground.bench.clusters.local.links import _delay, _state
from proving_ground.bench.clusters.remote import kubernetes, slurm
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.protocols import Ability, CanKill, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import SpecError
from proving_ground.chaos.faults import FAULTS, Arg, Evidence, Fault, Injection
from proving_ground.chaos.targets import View, resolve
from proving_ground.reports.recovery.proof import TESTS
from tests.chaos.conftest import works

KEYS = {
    "worker_kill",
    "node_kill",
    "agent_kill",
    "coordinator_kill",
    "hang",
    "slow_node",
    "partition",
    "partition_pair",
    "partition_oneway",
    "link_rate",
    "loss",
    "delay",
    "disk_full",
    "disk_slow",
    "disk_readonly",
    "checkpoint_truncated",
    "checkpoint_bitflip",
    "checkpoint_missing",
    "checkpoint_pointer",
    "memory_limit",
    "gpu_memory",
    "clock_skew",
    "preemption",
    "all_nodes",
    "pod_delete",
    "pod_kill",
    "node_drain",
    "node_cordon",
    "node_taint",
    "node_lost",
    "container_kill",
    "api_server_away",
    "quota_used_up",
    "webhook_away",
    "slurm_node_down",
    "slurm_node_drain",
    "slurm_requeue",
    "slurm_preempt",
    "slurm_time_limit",
    "slurmd_kill",
    "slurmctld_kill",
}
README = Path(__file__).parents[2] / "chaos" / "README.md"


def test_every_kind_is_there_under_its_own_name() -> None:
    assert set(FAULTS) == KEYS
    assert all(key == fault.key for key, fault in FAULTS.items())


def test_every_kind_needs_what_a_cluster_can_tell_of() -> None:
    known = {*ISOLATION, *BREAKING, *kubernetes.ABILITIES, *slurm.ABILITIES}
    assert {need for fault in FAULTS.values() for need in fault.needs} <= known
    assert all(fault.needs for fault in FAULTS.values())


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_kind_makes_sense(fault: Fault) -> None:
    assert fault.meaning
    assert "\n" not in fault.meaning
    assert fault.ends in ("nobody", "workers", "launcher", "node")
    assert 0 <= fault.hold_s <= 60
    assert resolve(fault.target, View(("n1", "n2", "n3"), "n1", "n4"), 1)
    assert all(arg.low <= arg.default <= arg.high and arg.unit for arg in fault.args.values())
    assert fault.with_defaults({}, "here") == {name: arg.default for name, arg in fault.args.items()}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_kind_brings_its_proof_in_words_that_the_report_knows(fault: Fault) -> None:
    traits = fault.traits(fault.with_defaults({}, "here"))
    assert traits["proof"]
    assert all(it["must"] in TESTS and it["means"] for it in traits["proof"])
    assert {str(it["at"]).partition(".")[0] for it in traits["proof"]} <= {"begin", "end"}
    assert bool(traits["victims"]) is (fault.ends != "nobody" or fault.key == "hang")
    assert json.loads(json.dumps(traits)) == traits, "it goes into plan.json"


def test_a_checkpoint_that_is_damaged_alone_needs_no_kill_for_proof() -> None:
    fault = FAULTS["checkpoint_bitflip"]
    asked = {kill: len(fault.traits(fault.with_defaults({"kill": kill}, "here"))["proof"]) for kill in (0, 1)}
    assert asked == {0: 1, 1: 4}


def test_every_kind_is_documented_with_what_it_needs() -> None:
    rows = [line for line in README.read_text().splitlines() if line.startswith("| `")]
    for key, fault in FAULTS.items():
        (row,) = [row for row in rows if row.startswith(f"| `{key}` |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert all(f"`{need}`" in cells[2] for need in fault.needs), f"{key}: {cells[2]} does not name {fault.needs}"
        assert all(f"`{arg}`" in cells[1] for arg in fault.args), f"{key}: {cells[1]} does not name its numbers"
        assert len(cells) == 5
        assert all(cells)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"percentage": 1}, r"f01: args of loss: percentage = 1; allowed: percent \(0.01 to 100 %\)"),
        ({"percent": 0}, "percent = 0; allowed"),
        ({"percent": 101}, "percent = 101; allowed"),
        ({"percent": "all"}, "percent = 'all'; allowed"),
        ({"percent": True}, "percent = True; allowed"),
    ],
)
def test_numbers_that_make_no_sense(args: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        FAULTS["loss"].with_defaults(args, "f01")
    with pytest.raises(SpecError, match="allowed: none"):
        FAULTS["node_kill"].with_defaults({"x": 1}, "f01")


def test_what_a_cluster_cannot_do_is_told_with_the_reason() -> None:
    able = [Ability(name, yes=True, how="test") for name in ISOLATION + BREAKING if name not in ("delay", "volume")]
    cluster = LocalCluster([*able, Ability("delay", yes=False, how="this kernel has no netem")])
    assert FAULTS["delay"].why_not(cluster) == "delay: this kernel has no netem"
    assert FAULTS["disk_slow"].why_not(cluster) == "volume: off"
    assert FAULTS["partition"].why_not(cluster) is None
    assert FAULTS["disk_full"].why_not(FakeCluster()) == "fake has no volume"
    assert FAULTS["node_kill"].why_not(FakeCluster()) is None


ELSEWHERE = {
    "CanAdminister",
    "CanTakeAway",
    "CanWithhold",
    "CanCrash",
    "CanCutPower",
    "CanLoseControl",
    "CanLoseController",
}
"""What only a cluster of machines elsewhere can do."""


@pytest.mark.parametrize("name", [name for name in capabilities.__all__ if name.startswith("Can")])
def test_a_cluster_implements_every_capability(name: str) -> None:
    asked = capabilities.members(getattr(capabilities, name))
    assert asked
    assert asked <= set(dir(AgentCluster if name in ELSEWHERE else LocalCluster))


def used(deed: Callable[..., Any]) -> frozenset[str]:
    """The methods that a deed may call by its annotation, which mypy holds it to."""
    hints = get_type_hints(getattr(deed, "func", deed))
    (scene,) = [it for name, it in hints.items() if name != "return" and get_origin(it) is Injection]
    return capabilities.members(get_args(scene)[0])


def not_asked_for(fault: Fault) -> frozenset[str]:
    """What a fault makes use of although its `needs` do not say so."""
    needed = {name for it in fault.needs for name in capabilities.members(capabilities.CAPABILITIES[it])}
    return (used(fault.begin) | used(fault.heal)) - needed


@pytest.mark.parametrize("key", FAULTS)
def test_a_fault_makes_use_of_nothing_that_it_does_not_need(key: str) -> None:
    assert not not_asked_for(FAULTS[key])


def test_what_is_used_without_being_needed_is_found() -> None:
    assert not_asked_for(replace(FAULTS["loss"], needs=("links",))) == {"cut", "mend", "drops"}
    assert not_asked_for(replace(FAULTS["worker_kill"], needs=())) == {"kill", "signal", "processes"}


def test_the_fake_cluster_implements_what_it_says() -> None:
    fake = FakeCluster()
    assert isinstance(fake, CanKill)
    assert isinstance(fake, capabilities.CanSignal)
    assert isinstance(fake, capabilities.CanPartition)
    assert not isinstance(fake, capabilities.CanUseVolume)


def test_a_fault_that_fails_half_way_is_undone() -> None:
    done: list[str] = []

    def fail(_: Injection[object]) -> Evidence:
        done.append("half")
        raise ClusterError("no")

    def heal(_: Injection[object]) -> Evidence:
        done.append("healed")
        return {}

    fault = Fault("x", "x", (), 0, fail, heal, (), {"n": Arg(1, 0, 2, "s")})
    with pytest.raises(ClusterError, match="no"):
        fault.inject(scene_on(FakeCluster(), "hang"))
    assert done == ["half", "healed"]


def scene_on(cluster: FakeCluster, key: str, **more: object) -> Injection[Any]:
    workers = {node: {it.pid: f"{node}.0" for it in cluster.processes(node)} for node in ("n1", "n2")}
    scene: Injection[Any] = Injection(
        cluster, ("n2",), View(("n1", "n2"), "n1"), FAULTS[key].with_defaults({}, "test"), 3, workers, None,
        lambda *_, **__: None,
    )  # fmt: skip
    return replace(scene, **more)  # type: ignore[arg-type]


@pytest.fixture
def fake(tmp_path: Path) -> FakeCluster:
    """A simulated job of two ranks, under way."""
    cluster = FakeCluster()
    cluster.setup(ClusterRequest("r", 2, 1, tmp_path), lambda *_, **__: None)
    for rank in (0, 1):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "PROVING_GROUND_BATCH": "8", "PROVING_GROUND_STEPS": "1000"}
        cluster.start(ProcessSpec(f"n{rank + 1}", 0, ("train",), env, events=tmp_path / f"t1.n{rank + 1}.0.jsonl"))
    cluster.sleep(1)
    return cluster


def steps(folder: Path) -> int:
    return (folder / "t1.n1.0.jsonl").read_text().count('"step"')


def test_on_the_fake_cluster_a_stopped_rank_stops_the_job_until_it_is_healed(fake: FakeCluster, tmp_path: Path) -> None:
    for key in ("hang", "partition"):
        scene = scene_on(fake, key)
        before = steps(tmp_path)
        begin = FAULTS[key].inject(scene)
        fake.sleep(1)
        assert steps(tmp_path) == before
        assert works(FAULTS[key], scene, begin, FAULTS[key].heal(scene)) is True
        fake.sleep(1)
        assert steps(tmp_path) > before


def test_on_the_fake_cluster_a_kill_is_the_end_of_a_rank(fake: FakeCluster) -> None:
    scene = scene_on(fake, "worker_kill")
    begin = FAULTS["worker_kill"].inject(scene)
    assert works(FAULTS["worker_kill"], scene, begin)
    assert [(it.node, it.code) for it in fake.exits()] == [("n2", -9)]
    with pytest.raises(ClusterError, match="n2: no process 7"):
        fake.signal("n2", 7, 9)


class Recorder:
    """A netlink socket that notes what it is asked, on an interface with these queues."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.asked: list[tuple[object, ...]] = []

    def link_lookup(self, ifname: str) -> list[int]:
        return [len(ifname)]

    def get_qdiscs(self, index: int) -> list[object]:
        assert index == 2

        class Qdisc(dict[str, object]):
            def get_attr(self, name: str) -> object:
                return self.get(name)

        return [Qdisc(TCA_KIND=kind, TCA_OPTIONS={"delay": 40_000}) for kind in self.kinds]

    def tc(self, *words: object, **more: object) -> None:
        self.asked.append((*words, more))


def test_delay_goes_below_the_rate_limit_where_there_is_one() -> None:
    """What the kernel would be asked; the test above sees what it does, where it can."""
    alone, limited, delayed = Recorder(), Recorder("tbf"), Recorder("netem")
    for ip in (alone, limited):
        _delay(ip, "n2", 40)
    assert alone.asked == [("replace", "netem", 2, {"handle": "2:", "delay": 40_000, "limit": 10_000})]
    assert limited.asked == [
        ("replace", "netem", 2, {"handle": "2:", "delay": 40_000, "limit": 10_000, "parent": "1:1"})
    ]
    assert _state(delayed, "n2")["delay_ms"] == 40
    _delay(delayed, "n2", None)
    assert delayed.asked == [("del", {"index": 2, "root": True})]
    _delay(alone, "n2", None)
    assert len(alone.asked) == 1, "nothing to take away"
