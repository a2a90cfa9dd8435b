"""A Kubernetes of several real nodes, with a PodTemplate for trainers, as a team has one that stood its cluster up.

Called by `test_kubernetes.py` and `tests/infra/testbed/service.py`. The cluster is `tests/infra/testbed`: each node has
a network, processes and clocks of its own. The image is empty: this machine's `/usr` and Python are mounted into the
pods, read-only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from proving_ground.bench.clusters.remote.kubernetes import PODGROUPS
from proving_ground.infra.cluster.images import IMAGES
from tests.engines.machines import python_folders
from tests.infra.apiserver.server import Server
from tests.infra.gotools import find
from tests.infra.testbed import images
from tests.infra.testbed.cluster import Bed, cluster

BOUND_S = 180.0  # for what Kubernetes does by itself: after its API server was away, its controllers take a minute
IMAGE = "proving-ground/trainer:testbed"
SPACE, TEMPLATE, CLAIM, SHARED = "training", "trainer", "shared", "/shared"
PROGRAMS = {
    "etcd": "etcd-server", "containerd": "containerd", "runc": "runc", "iptables": "iptables", "go": "golang-go",
    "busybox": "busybox-static", "openssl": "openssl",
}  # fmt: skip
"""Program → the Debian package that has it."""
GANGS = ("workloads", "podgroups")  # what Kubernetes makes of a Job whose pods are scheduled together
OF_A_RUN = ("jobs", "pods", "services", "configmaps", *GANGS)
ROOTS = {"jobs": "/apis/batch/v1", **dict.fromkeys(GANGS, PODGROUPS)}
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Kubernetes:
    """A cluster that trainers may use."""

    bed: Bed
    folder: Path

    @property
    def env(self) -> Mapping[str, str]:
        """How a command finds it, and kubectl."""
        programs = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig"), "PATH": programs}

    def option(self, **changed: str) -> str:
        """What `--cluster` says to use it; with options of one's own."""
        return option(**changed)

    def names(self, kind: str) -> list[str]:
        """What there is of a kind in the trainers' namespace; pods also those that are going."""
        return [it["metadata"]["name"] for it in self.objects(kind)]

    def objects(self, kind: str) -> list[Manifest]:
        """The same, whole."""
        return objects(self.bed.server, SPACE, kind)

    def left_soon(self) -> list[str]:
        """What there still is of runs a while after them; empty as soon as there is nothing."""
        return left_soon(self.bed.server, SPACE)


def objects(server: Server, space: str, kind: str) -> list[Manifest]:
    """What there is of a kind in a namespace."""
    root = ROOTS.get(kind, "/api/v1")
    return list(server.request("GET", f"{root}/namespaces/{space}/{kind}").body["items"])


def left_soon(server: Server, space: str) -> list[str]:
    """What there still is of runs in a namespace a while after them; empty as soon as there is nothing."""
    deadline = time.monotonic() + BOUND_S
    while left := [
        name for kind in OF_A_RUN for it in objects(server, space, kind)
        if (name := it["metadata"]["name"]).startswith("pg-")
    ]:  # fmt: skip
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return left


def option(**changed: str) -> str:
    """The same, without a cluster."""
    usual = {"namespace": SPACE, "template": TEMPLATE, "python": sys.executable, "emulated": "true"}
    return "kubernetes:" + ",".join(f"{name}={value}" for name, value in {**usual, **changed}.items())


@contextlib.contextmanager
def kubernetes(
    folder: Path, count: int, shared: Path, archives: Sequence[Path] = (), *, stack: bool = False
) -> Iterator[Kubernetes]:
    """A cluster of `count` nodes under a folder, whose trainers share another; with archives of more images.

    With `stack` also with the images of stack `local`.

    Raises:
        UnavailableError: it cannot be had here.
    """
    with cluster(folder, count, partial(fill, archives=archives, stack=stack)) as bed:
        for manifest in manifests(shared):
            if why := bed.server.apply(manifest, dry_run=False).message:
                raise RuntimeError(f"{manifest['kind']}: {why}")
        await_bound(bed.server)
        (folder / "bin").mkdir()
        (folder / "bin" / "kubectl").symlink_to(find("kubectl"))
        yield Kubernetes(bed, folder)


def await_bound(server: Server) -> None:
    """Wait until pods may use the claim: a pod that comes earlier is looked at again only after a while.

    Raises:
        RuntimeError: it does not come to that.
    """
    path, deadline = f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims/{CLAIM}", time.monotonic() + BOUND_S
    while server.request("GET", path).body["status"].get("phase") != "Bound":
        if time.monotonic() > deadline:
            raise RuntimeError(f"the claim {CLAIM} has no volume after {BOUND_S:g} s")
        time.sleep(0.1)


def fill(folder: Path, archives: Sequence[Path] = (), *, stack: bool = False) -> None:
    """The images of its nodes; an archive of another's is as large as it is, and so stays where it is.

    With `stack` also those of stack `local`; its trainers' image, unless an archive has it, is Python and nothing else.
    """
    images.make(folder, {component: IMAGES[component] for component in images.PARTS} if stack else {}, images.had)
    if stack and not any(IMAGES["trainer"] in images.named(it) for it in archives):
        images.python(folder / "python.tar", IMAGES["trainer"])
    images.bare(folder / "trainer.tar", IMAGE)
    for number, archive in enumerate(archives, 1):
        (folder / f"{number}.tar").symlink_to(archive)


def manifests(shared: Path) -> list[Manifest]:
    """Namespace, volume and template of the trainers."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    source = {"hostPath": {"path": str(shared)}, "claimRef": {"namespace": SPACE, "name": CLAIM}}
    fixed = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": "", "volumeName": "shared"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared"},
            "spec": {"capacity": size, "accessModes": modes, **source},
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": SPACE}, "spec": fixed,
        },
        {
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": TEMPLATE, "namespace": SPACE},
            "template": {"spec": pod()},
        },
    ]  # fmt: skip


def pod() -> Manifest:
    """A trainer's pod: this machine's programs and Python, and the shared volume."""
    programs = {f"host-{number}": path for number, path in enumerate(["/usr", *python_folders()])}
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in programs.items()]
    memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    return {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": "trainer", "image": IMAGE, "imagePullPolicy": "Never",
                "resources": {"requests": {"cpu": "100m"}},
                "volumeMounts": [
                    *mounts, {"name": "shared", "mountPath": SHARED}, {"name": "memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            *({"name": name, "hostPath": {"path": path}} for name, path in programs.items()),
            {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}}, memory,
        ],
    }  # fmt: skip
