"""The local cluster: what both kinds of nodes do alike, then what only plain processes or only isolated nodes do."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proving_ground.bench.clusters.local import groups
from proving_ground.bench.clusters.local.clean import exists, marked_processes
from proving_ground.bench.clusters.local.cluster import IMITATED, LOOSE, PLAIN, LocalCluster
from proving_ground.bench.protocols import Ability, CanKill, Cluster, ClusterError, ProcessSpec
from proving_ground.bench.spec import Trial
from tests.bench.clusters.conftest import Bench, until

TRIAL = Trial(
    id="t001", case="c", workload="command", scaling=("weak",), nodes=2, repeat=1, seed=1, batch_per_node=8,
    global_batch=16, steps=10, warmup_steps=2, link_mbps=100, cpus_per_node=0.5,
)  # fmt: skip
ALL = tuple(Ability(name, yes=True, how="test") for name in ("namespaces", "links", "cpu_shares", "disks"))
BOTH = ["plain", pytest.param("isolated", marks=pytest.mark.root)]
SLEEP = "import time; print('up'); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
PARENT = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); print('up'); time.sleep(60)"


@pytest.fixture(params=BOTH)
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.getfixturevalue(request.param)
    return made


def test_is_a_cluster_that_can_kill() -> None:
    cluster: Cluster = LocalCluster(())
    assert isinstance(cluster, CanKill)


def test_exit_status_and_output_of_a_process(bench: Bench) -> None:
    bench.up(2)
    pid = bench.python("n2", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    (ended,) = bench.wait_for_exits(1)
    assert (ended.node, ended.slot, ended.pid, ended.code) == ("n2", 0, pid, 3)
    assert ended.t is not None
    assert ended.t <= bench.cluster.now()
    assert sorted(bench.said("n2").split()) == ["err", "out"]
    assert bench.emitted == ["cluster_up"]
    assert bench.cluster.exits() == []


def test_environment_of_a_process(bench: Bench) -> None:
    bench.up(1)
    bench.python("n1", "import json, os; print(json.dumps(dict(os.environ)))", COLOUR="red")
    bench.wait_for_exits(1)
    env = json.loads(bench.said("n1"))
    assert env["COLOUR"] == "red"
    assert env["PROVING_GROUND_RUN"] == bench.run_id
    assert env["OMP_NUM_THREADS"] == "1"
    assert Path(env["PROVING_GROUND_DISK"]).is_dir()


def test_nodes_that_would_share_a_gpu_see_none_unless_they_say_that_they_share(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert [(it.gpus, it.shared_gpus) for it in bench.up(2)] == [(0, 1), (0, 1)]
    assert "warning" in bench.emitted
    code = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    bench.python("n1", code)
    bench.python("n2", code, PROVING_GROUND_GPUS="shared")
    bench.wait_for_exits(2)
    assert [bench.said(node).strip() for node in ("n1", "n2")] == ["''", "'3'"]


def test_a_program_that_is_not_there_is_told_in_the_log(bench: Bench) -> None:
    bench.up(1)
    bench.start("n1", "no-such-program")
    assert bench.wait_for_exits(1)[0].code == 127
    assert bench.said("n1") == "cannot start no-such-program: No such file or directory\n"


def test_the_project_s_trainer_runs_in_the_fork_server_s_copy(bench: Bench) -> None:
    bench.up(1)
    bench.start("n1", "python", "-m", "proving_ground.training", "--help")
    assert bench.wait_for_exits(1)[0].code == 0
    assert "usage" in bench.said("n1")


def test_kill_one_process(bench: Bench) -> None:
    bench.up(1)
    pids = [bench.python("n1", SLEEP, slot=slot) for slot in (0, 1)]
    assert bench.cluster.kill("n1", 1, signal.SIGKILL) == [pids[1]]
    (ended,) = bench.wait_for_exits(1)
    assert (ended.slot, ended.code) == (1, -signal.SIGKILL)
    assert bench.cluster.kill("n1", 1, signal.SIGKILL) == []


def test_kill_a_node_and_start_on_it_again(bench: Bench) -> None:
    bench.up(2)
    pids = [bench.python("n1", SLEEP, slot=slot) for slot in (0, 1)]
    bench.python("n2", SLEEP)
    assert sorted(bench.cluster.kill("n1", None, signal.SIGKILL)) == sorted(pids)
    assert {ended.code for ended in bench.wait_for_exits(2)} == {-signal.SIGKILL}
    bench.python("n1", "print('again')")
    assert bench.wait_for_exits(1)[0].code == 0


def test_stop_ends_the_stubborn_the_stopped_and_their_children(bench: Bench) -> None:
    bench.up(3)
    bench.python("n1", STUBBORN)
    bench.python("n2", SLEEP)
    bench.python("n3", PARENT)
    for node in ("n1", "n2", "n3"):
        bench.wait_until_said(node, "up")
    bench.cluster.kill("n2", 0, signal.SIGSTOP)
    begin = bench.cluster.now()
    bench.cluster.stop(3.0)
    assert bench.cluster.now() - begin < 20
    codes = {ended.node: ended.code for ended in bench.cluster.exits()}
    assert codes == {"n1": -signal.SIGKILL, "n2": -signal.SIGTERM, "n3": -signal.SIGTERM}


def test_an_agent_that_dies_is_noticed(bench: Bench) -> None:
    bench.up(2)
    pid = bench.python("n1", SLEEP)
    agent = bench.cluster._started().handles["n1"].pid
    assert agent
    os.kill(agent, signal.SIGKILL)
    (ended,) = bench.wait_for_exits(1)
    assert (ended.node, ended.pid, ended.code) == ("n1", pid, -signal.SIGKILL)
    until(lambda: not exists(pid))
    with pytest.raises(ClusterError, match="n1: its agent is gone"):
        bench.python("n1", SLEEP)
    bench.python("n2", "print()")
    bench.wait_for_exits(1)
    bench.cluster.stop(1)


def test_unknown_node(bench: Bench) -> None:
    bench.up(1)
    with pytest.raises(ClusterError, match="no node 'n9'; there are n1"):
        bench.python("n9", SLEEP)


def test_teardown_is_safe_at_any_time(bench: Bench) -> None:
    bench.cluster.teardown()
    bench.up(1)
    bench.python("n1", STUBBORN)
    bench.wait_until_said("n1", "up")
    bench.cluster.teardown()
    bench.cluster.teardown()
    with pytest.raises(ClusterError, match="not up"):
        bench.cluster.exits()


@pytest.mark.parametrize("broken", ["wait_until_up", "__init__"])
def test_setup_that_fails_leaves_nothing(bench: Bench, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"proving_ground.bench.clusters.local.handles.Agents.{broken}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.up(2)
    bench.cluster.teardown()
    assert [run for _, run, _ in (*marked_processes(), *groups.run_groups()) if run == bench.run_id] == []


def test_a_fork_server_that_cannot_start_says_why(make_bench: Callable[[LocalCluster], Bench]) -> None:
    bench = make_bench(LocalCluster((), preload="no_such_module"))
    with pytest.raises(ClusterError, match=r"n1: its agent is gone: .*no_such_module"):
        bench.up(1)


def test_plain_nodes_are_on_loopback_and_say_what_they_cannot(plain: Bench) -> None:
    assert {node.address for node in plain.up(3)} == {"127.0.0.1"}
    assert plain.cluster.imitated() == [PLAIN]
    plain.cluster.shape(None, None)
    with pytest.raises(ClusterError, match="cannot limit links here: off"):
        plain.cluster.shape(100, None)


def test_imitated_names_only_what_is_there() -> None:
    assert len(LocalCluster(ALL).imitated()) == 4
    some = LocalCluster([ability for ability in ALL if ability.name != "cpu_shares"]).imitated()
    assert [line.split(":")[0] for line in some] == ["nodes", "links", "disks"]


def test_without_links_nodes_are_plain_whatever_else_there_is() -> None:
    cluster = LocalCluster([ability for ability in ALL if ability.name != "links"])
    assert [ability.name for ability in cluster.abilities() if ability.yes] == ["cpu_shares", "checkpoints"]
    assert cluster.imitated() == [LOOSE, IMITATED["cpu_shares"]]


@pytest.mark.root
def test_the_death_of_the_fork_server_is_the_end_of_every_node(isolated: Bench) -> None:
    isolated.up(2)
    pids = {isolated.python(node, SLEEP) for node in ("n1", "n2")}
    isolated.cluster._started().server.kill()
    assert {(ended.pid, ended.code) for ended in isolated.wait_for_exits(2)} == {(pid, -9) for pid in pids}
    until(lambda: not any(exists(pid) for pid in pids))
    with pytest.raises(ClusterError, match="its agent is gone"):
        isolated.python("n1", SLEEP)
    isolated.cluster.stop(1)


GOLDEN = Path(__file__).parent / "plan.golden.txt"


def test_plan_says_exactly_what_would_be_started() -> None:
    specs = [
        ProcessSpec(f"n{rank + 1}", 0, ("python", "-m", "proving_ground.training", "run"),
                    {"RANK": str(rank), "NOTE": "a b"}, events=Path(f"/r/e{rank}"), log=Path(f"/r/l{rank}"))
        for rank in range(2)
    ]  # fmt: skip
    assert LocalCluster(ALL).plan(specs, TRIAL) == GOLDEN.read_text()
    assert "127.0.0.1  plain processes" in LocalCluster(()).plan(specs, TRIAL)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sample_has_the_machine_s_counters(plain: Bench) -> None:
    plain.up(1)
    sample = plain.cluster.sample()
    assert sample["cpu_s"] > 0
    assert sample["steal_s"] >= 0
    assert "throttled_s" not in sample
