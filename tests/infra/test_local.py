"""The stack `local` on the smallest cluster that it is for: one node with two cores, as kind and k3d make it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.cluster.manifest import USER
from proving_ground.infra.config import load
from tests.infra.cluster_policies import WORKLOADS, pod, requests

BUDGET = 1000
"""Millicores for `local` and two trainers. A control plane of kubeadm, which kind is, requests 950 m of the 2000:
API server 250, controllers 200, scheduler 100, etcd 100, DNS 2 x 100, network 100."""
TRAINERS = 2
RUN = {kind.rpartition(":")[2] for kind in WORKLOADS} - {"PodTemplate"}


def facts(**images: str) -> Facts:
    """Of `local`, with these images named."""
    environment = load("local", environ={})
    return Facts(
        dataclasses.replace(environment, kubernetes=dataclasses.replace(environment.kubernetes, images=images))
    )


def workloads(given: Facts) -> Iterator[dict[str, Any]]:
    """What makes pods by itself, once for each pod on one node."""
    for item in manifests(given):
        if item["kind"] in RUN:
            yield from [item] * item["spec"].get("replicas", 1)


def test_it_leaves_room_for_two_trainers_on_two_cores() -> None:
    given = facts(exporter="mine/exporter:1")
    (template,) = (item for item in manifests(given) if item["kind"] == "PodTemplate")
    used = [requests(item).millicores for item in workloads(given)]
    assert len(used) == 8
    assert sum(used) + TRAINERS * requests(template).millicores <= BUDGET


def test_what_prepares_a_node_needs_no_more_than_what_follows_it() -> None:
    """The scheduler counts the larger of the two."""
    for item in workloads(facts()):
        for first in pod(item).get("initContainers", []):
            assert int(first["resources"]["requests"]["cpu"].removesuffix("m")) <= requests(item).millicores


def test_the_exporter_is_there_once_its_image_is_named() -> None:
    """It is the project's own: until it is built and named, `up` would wait for it in vain."""
    assert [item for item in workloads(facts()) if item["metadata"]["name"] == "exporter"] == []
    assert not [item for item in workloads(facts()) if IMAGES["exporter"] in str(item)]
    named = facts(exporter="mine/exporter:1")
    (exporter,) = (item for item in workloads(named) if item["metadata"]["name"] == "exporter")
    assert pod(exporter)["containers"][0]["image"] == "mine/exporter:1"


def preparing(given: Facts) -> list[dict[str, Any]]:
    """The containers that prepare a node."""
    return [first for item in workloads(given) for first in pod(item).get("initContainers", [])]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_trainers_can_write_to_the_host_path_that_the_kubelet_made(tmp_path: Path) -> None:
    """The container's own command, as root with its one capability, on a folder as the kubelet makes it."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    for above in (tmp_path, *tmp_path.parents[:3]):
        above.chmod(above.stat().st_mode | 0o011)  # others may pass
    write = ["touch", str(folder / "mine")]
    assert subprocess.run(write, user=USER, group=USER, capture_output=True, check=False).returncode != 0
    (first,) = preparing(facts())
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    (mount,) = first["volumeMounts"]
    command = [word.replace(mount["mountPath"], str(folder)) for word in first["command"]]
    subprocess.run(["setpriv", "--bounding-set", "-all,+chown", *command], check=True)
    subprocess.run(write, user=USER, group=USER, check=True)


def test_only_a_host_path_is_prepared_and_it_is_the_trainers_volume() -> None:
    given = facts()
    (volume,) = (item for item in manifests(given) if item["kind"] == "PersistentVolume")
    (daemon,) = (item for item in workloads(given) if pod(item).get("initContainers"))
    assert {"name": "shared", "hostPath": volume["spec"]["hostPath"]} in pod(daemon)["volumes"]
    for stack in ("dev", "prod"):
        pools = load(stack, environ={})
        assert preparing(Facts(pools, {pool.name: pool.skus[0] for pool in pools.pools}, file_account="a")) == []
