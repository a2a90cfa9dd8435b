"""The job that is made of a PodTemplate, started as processes: who is which rank, and where they meet."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.cluster.networking import manifests as policies
from proving_ground.infra.cluster.training import job, pod_template
from proving_ground.infra.config import Ports, load
from proving_ground.monitoring.follow import Follower
from proving_ground.training.recovery import elastic
from tests.training.ranks import free_port

REPORT = """import json, os, pathlib, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
found = {name: int(os.environ[name]) for name in names}
pathlib.Path(sys.argv[1], str(found["RANK"])).write_text(json.dumps(found))
"""
LONGEST_S = 200
FACTS = Facts(load("prod", environ={}), {"a100": "Standard_NC48ads_A100_v4"})  # two accelerators in a machine


def made(nodes: int) -> dict[str, Any]:
    """The job on the pool whose machines have two accelerators."""
    pool = next(pool for pool in FACTS.environment.pools if pool.name == "a100")
    return job(pod_template(pool, FACTS), "run-1", nodes)


def environment(container: dict[str, Any], index: int) -> dict[str, str]:
    """What the kubelet sets: each value with the earlier ones filled in."""
    values = {"NODE_RANK": str(index), "JOB_NAME": "run-1"}
    for item in container["env"]:
        if "value" in item:
            values[item["name"]] = filled_in(item["value"], values)
    return values


def filled_in(text: str, values: dict[str, str]) -> str:
    """Kubernetes' `$(NAME)`."""
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text


def started(index: int, nodes: int, port: int) -> list[str]:
    """The container's command as the kubelet would start it, on this machine instead of in pods."""
    container = made(nodes)["spec"]["template"]["spec"]["containers"][0]
    words = [filled_in(str(word), environment(container, index)) for word in container["command"]]
    assert "--master-addr=run-1-0.trainer" in words
    here = {"--master-addr=run-1-0.trainer": "--master-addr=127.0.0.1", "--master-port=29500": f"--master-port={port}"}
    return [sys.executable, *(here.get(word, word) for word in words[1:])]


def together(nodes: list[tuple[list[str], dict[str, str]]]) -> list[int]:
    """Their exit statuses; what does not end is ended, workers included."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, env={**os.environ, **extra})) for command, extra in nodes
        ]
        try:
            return [process.wait(LONGEST_S) for process in processes]
        finally:
            for process in processes:
                process.terminate()  # torchrun ends its workers


@pytest.mark.timeout(300)
def test_every_index_and_every_accelerator_is_a_rank(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    (tmp_path / "ranks").mkdir()
    tail = ["-m", "proving_ground.training", "run"]
    port = free_port()
    commands = [started(index, 2, port) for index in range(2)]
    assert all(command[-3:] == tail for command in commands)
    report = [str(tmp_path / "report.py"), str(tmp_path / "ranks")]
    assert together([([*command[:-3], *report], {}) for command in commands]) == [0, 0]
    found = sorted((json.loads(file.read_text()) for file in (tmp_path / "ranks").iterdir()), key=lambda it: it["RANK"])
    assert [it["RANK"] for it in found] == [0, 1, 2, 3]
    assert [it["GROUP_RANK"] for it in found] == [0, 0, 1, 1]
    assert [it["LOCAL_RANK"] for it in found] == [0, 1, 0, 1]
    assert {it["WORLD_SIZE"] for it in found} == {4}


@pytest.mark.timeout(300)
def test_events_of_every_rank_and_checkpoints_land_on_the_shared_volume(tmp_path: Path) -> None:
    """Where the exporter looks for them; the volume is new, so there is no folder yet."""
    port, nodes = free_port(), []
    container = made(2)["spec"]["template"]["spec"]["containers"][0]
    for index in range(2):
        told = {name: value.replace("/shared", str(tmp_path)) for name, value in environment(container, index).items()}
        short = {"PROVING_GROUND_STEPS": "2", "PROVING_GROUND_THREADS": "1"}
        nodes.append((started(index, 2, port), {**told, **short}))
    assert together(nodes) == [0, 0]
    run = RunDir(tmp_path / "jobs")
    files = sorted(run.events.iterdir())
    assert [file.name for file in files] == [f"run-1.n{node}.{slot}.jsonl" for node in (0, 1) for slot in (0, 1)]
    follower = Follower(run)
    found = list(follower.new())
    follower.close()
    assert {record["trial"] for record in found} == {"run-1"}
    starts = {record["source"]: record["rank"] for record in found if record["event"] == "start"}
    assert starts == {"n0.0": 0, "n0.1": 1, "n1.0": 2, "n1.1": 3}
    assert [record["step"] for record in found if record["event"] == "end"] == [2, 2, 2, 2]
    assert any((tmp_path / "jobs" / "checkpoints" / "run-1").iterdir())


def test_the_exporter_reads_where_trainers_write() -> None:
    named = dataclasses.replace(load("local", environ={}).kubernetes, images={"exporter": "mine/exporter:1"})
    facts = Facts(dataclasses.replace(load("local", environ={}), kubernetes=named))
    (exporter,) = (item for item in manifests(facts) if item["metadata"]["name"] == "exporter")
    words = exporter["spec"]["template"]["spec"]["containers"][0]["args"]
    container = pod_template(facts.environment.pools[0], facts)["template"]["spec"]["containers"][0]
    events = environment(container, 0)["PROVING_GROUND_EVENTS"]
    assert events.startswith(f"{words[words.index('export') + 1]}/events/")


def test_a_job_is_one_pod_an_index() -> None:
    spec = made(3)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    template = pod_template(FACTS.environment.pools[0], FACTS)
    job(template, "one", 5)
    assert {"name": "NODES", "value": "1"} in template["template"]["spec"]["containers"][0]["env"]


def test_launcher_live_and_jobs_meet_at_the_port_that_the_policy_opens() -> None:
    policy = next(item for item in policies(FACTS) if item["metadata"]["name"] == "train-together")
    opened = [port["port"] for port in policy["spec"]["ingress"][0]["ports"] if "endPort" not in port]
    assert opened == [elastic.PORT] == [Ports().rendezvous]
