"""A real node: containerd and a kubelet in network, mount and process namespaces of their own, under one folder.

What they start — pods, shims, mounts, links, firewall rules — lives in these namespaces and goes with them: at the end
of the `with`, after an exception, and when we are killed, since the node ends with the pipe that we hold. Only its
cgroups stay then; the next node removes those of processes that are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.infra.apiserver.server import Server, kubeconfig
from tests.infra.gotools import UnavailableError, find
from tests.infra.testbed import images

READY_TIMEOUT_S = 120
END_TIMEOUT_S = 30
SCRIPT = Path(__file__).parent / "node.sh"
PACKAGES = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2", "iptables": "iptables",
    "unshare": "util-linux",
}  # fmt: skip
"""Program → the Debian package that has it."""
PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CGROUPS = Path("/sys/fs/cgroup")
OURS = "proving-ground-testbed"
SERVICE = "10.0.0.1"
"""The API server as pods know it."""


@dataclass(frozen=True)
class Link:
    """The node's place in a network of its own: both ends of its link, and the addresses of its pods."""

    name: str
    host: str
    node: str
    pods: str

    @classmethod
    def numbered(cls, number: int) -> Link:
        """One of 256 that do not overlap."""
        host, node = (f"10.213.{number}.{last}" for last in (1, 2))
        return cls(f"pgnode{number}", host, node, f"10.214.{number}.0/24")


@dataclass(frozen=True)
class Node:
    """A node that is there and has not joined yet."""

    folder: Path
    link: Link
    steer: IO[str]

    def join(self, server: Server) -> None:
        """Start its programs; wait until the API server calls it ready.

        Raises:
            RuntimeError: it does not come up.
        """
        (self.folder / "kubeconfig").write_text(json.dumps(kubeconfig(server)))
        port = server.url.rpartition(":")[2]
        self.steer.write(f"join {self.link.host} {self.link.node} {self.link.pods} {port} {SERVICE}\n")
        self.steer.flush()
        end = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end:
            if is_ready(server):
                return
            time.sleep(0.2)
        logs = [(self.folder / f"{name}.log") for name in ("containerd", "images", "kubelet", "node")]
        tails = [f"{log.name}: {log.read_text()[-1000:]}" for log in logs if log.exists()]
        raise RuntimeError("\n".join(["the node did not become ready", *tails]))


def is_ready(server: Server) -> bool:
    """Whether there is a node, and pods may be put on it."""
    nodes = server.request("GET", "/api/v1/nodes").body["items"]
    states = [it for node in nodes for it in node["status"].get("conditions", []) if it["type"] == "Ready"]
    tainted = any(node["spec"].get("taints") for node in nodes)
    return bool(states) and not tainted and all(it["status"] == "True" for it in states)


@contextlib.contextmanager
def present(folder: Path, names: Mapping[str, str]) -> Iterator[Node]:
    """A node with images, keys of `images.PARTS` → the name that pods know; nothing of it is left afterwards but logs.

    Raises:
        UnavailableError: something that it takes is not on this machine.
    """
    missing()
    sweep()
    folder.mkdir()
    images.make(folder / "images", names)
    (folder / "containerd.toml").write_text(containerd_config(folder))
    (folder / "kubelet.json").write_text(json.dumps(kubelet_config(), indent=1))
    programs = [str(it) for it in (SCRIPT, folder, shutil.which("containerd"), find("kubelet"))]
    spaces = ["unshare", "--net", "--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (folder / "node.log").open("wb") as log, subprocess.Popen(
        [*spaces, "sh", *programs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the node's namespaces were not made: {(folder / 'node.log').read_text()}")
            link = connect(process.pid)
            network(folder, link)
            yield Node(folder, link, process.stdin)
        finally:
            end(process)
            sweep(os.getpid())
            for place in ("run", "lib"):
                shutil.rmtree(folder / place, ignore_errors=True)


def missing() -> None:
    """Refuse where the node cannot be had."""
    if os.geteuid():
        raise UnavailableError("a node takes root")
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise UnavailableError(f"{program} (Debian: {package}) is not on PATH")
    plugins()


def plugins() -> Path:
    """Where the programs are that connect pods."""
    for folder in PLUGINS:
        if (folder / "bridge").exists():
            return folder
    raise UnavailableError("no network plugins (Debian: containernetworking-plugins)")


def connect(process: int) -> Link:
    """A link from here into a process's network; it goes with that network."""
    for number in range(256):
        link = Link.numbered(number)
        ends = [link.name, "type", "veth", "peer", "name", "eth0", "netns", str(process)]
        if subprocess.run(["ip", "link", "add", *ends], capture_output=True, check=False).returncode:
            continue  # another testbed has it
        ip("addr", "add", f"{link.host}/30", "dev", link.name)
        ip("link", "set", link.name, "up")
        ip("route", "add", link.pods, "via", link.node)
        return link
    raise UnavailableError("no link of 256 is free, or links cannot be made here")


def ip(*words: str) -> None:
    """One command to the kernel's network."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


def end(process: subprocess.Popen[str]) -> None:
    """End the first process of the namespaces, and with it all that runs there; `unshare` ends after the last."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def sweep(ours: int | None = None) -> None:
    """Remove the cgroups of a process's node, and those of processes that are gone."""
    for parent in [*CGROUPS.glob(f"*/{OURS}"), CGROUPS / OURS]:
        for group in parent.glob("*/"):
            if group.name == str(ours) or not Path("/proc", group.name).exists():
                remove(group)
        with contextlib.suppress(OSError):  # of another testbed, or not there
            parent.rmdir()


def remove(group: Path) -> None:
    """Remove a cgroup with all below it, once its processes are gone."""
    below = sorted((it for it in group.rglob("*/") if it.is_dir()), key=lambda it: -len(it.parts))
    for folder in [*below, group]:
        end_t = time.monotonic() + 5
        while folder.exists() and time.monotonic() < end_t:
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.05)


def network(folder: Path, link: Link) -> None:
    """How pods are connected: a bridge in the node's own network, addresses of the link's range."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": link.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    (folder / "cni").mkdir()
    chain = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
    (folder / "cni" / "10-pods.conflist").write_text(json.dumps(chain))


def containerd_config(folder: Path) -> str:
    """What differs from its defaults: nothing that the kernel may refuse, no registry."""
    overlay = any(line.split()[-1] == "overlay" for line in Path("/proc/filesystems").read_text().splitlines())
    return f"""
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{"overlayfs" if overlay else "native"}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins()}"
    conf_dir = "{folder / "cni"}"
"""


def kubelet_config() -> dict[str, object]:
    """A kubelet beside others on one machine: its pods in one cgroup, no pod evicted for the machine's own load."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # reached from this machine only
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{OURS}/{os.getpid()}", "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [], "localStorageCapacityIsolation": False, "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s",
    }  # fmt: skip
