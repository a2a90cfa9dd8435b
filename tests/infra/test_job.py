"""The job that is made of a PodTemplate, started as processes: who is which rank, and where they meet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.cluster.facts import Facts
from infra.cluster.networking import manifests as policies
from infra.cluster.training import job, pod_template
from infra.config import Ports, load
from tests.training.ranks import free_port
from training import elastic

REPORT = """import json, os, pathlib, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
found = {name: int(os.environ[name]) for name in names}
pathlib.Path(sys.argv[1], str(found["RANK"])).write_text(json.dumps(found))
"""
FACTS = Facts(load("prod", environ={}), {"a100": "Standard_NC48ads_A100_v4"})  # two accelerators in a machine


def made(nodes: int) -> dict[str, Any]:
    """The job on the pool whose machines have two accelerators."""
    pool = next(pool for pool in FACTS.environment.pools if pool.name == "a100")
    return job(pod_template(pool, FACTS), "run-1", nodes)


def started(index: int, nodes: int, port: int) -> list[str]:
    """The container's command as the kubelet would start it, on this machine instead of in pods."""
    container = made(nodes)["spec"]["template"]["spec"]["containers"][0]
    values = {"NODE_RANK": str(index), "JOB_NAME": "run-1"}
    values |= {item["name"]: item["value"] for item in container["env"] if "value" in item}
    words = [str(word) for word in container["command"]]
    for name, value in values.items():
        words = [word.replace(f"$({name})", value) for word in words]
    assert "--master-addr=run-1-0.trainer" in words
    here = {"--master-addr=run-1-0.trainer": "--master-addr=127.0.0.1", "--master-port=29500": f"--master-port={port}"}
    return [sys.executable, *(here.get(word, word) for word in words[1:])]


@pytest.mark.timeout(300)
def test_every_index_and_every_accelerator_is_a_rank(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    (tmp_path / "ranks").mkdir()
    tail = ["-m", "training", "run"]
    port = free_port()
    commands = [started(index, 2, port) for index in range(2)]
    assert all(command[-3:] == tail for command in commands)
    nodes = [
        subprocess.Popen([*command[:-3], str(tmp_path / "report.py"), str(tmp_path / "ranks")]) for command in commands
    ]
    assert [node.wait() for node in nodes] == [0, 0]
    found = sorted((json.loads(file.read_text()) for file in (tmp_path / "ranks").iterdir()), key=lambda it: it["RANK"])
    assert [it["RANK"] for it in found] == [0, 1, 2, 3]
    assert [it["GROUP_RANK"] for it in found] == [0, 0, 1, 1]
    assert [it["LOCAL_RANK"] for it in found] == [0, 1, 0, 1]
    assert {it["WORLD_SIZE"] for it in found} == {4}


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
