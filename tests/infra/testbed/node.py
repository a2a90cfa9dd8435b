"""A real node: containerd and a kubelet in network, mount, process and time namespaces of their own, under one folder.

What they start — pods, shims, mounts, links, firewall rules — lives in these namespaces and goes with them: at the end
of the `with`, after an exception, and when we are killed, since the node ends with the pipe that we hold. Only its
cgroups stay then; the next node removes those of processes that are gone. Its monotonic clock is days ahead.
Its power can be cut and given back; its disk stays meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.switch import Switch
from tests.infra.apiserver.server import Server, kubeconfig
from tests.infra.gotools import UnavailableError, find
from tests.infra.testbed import images

READY_TIMEOUT_S = 120
UNPACKED_BYTES_S = 20e6  # of images, by all nodes of one disk together
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
FIRST_PODS, ALL_PODS = 213, "10.208.0.0/12"
DAY_S = 86_400
FRESH_S = 60
"""What the clocks of n1 show when it has been started again, twice as much those of n2, and so on."""
NAMESPACES = ("--net", "--mount", "--ipc", "--uts", "--pid", "--time")


@dataclass
class Node:
    """A machine of the cluster, with power or without: number 1 is `n1`."""

    number: int
    folder: Path
    network: Switch
    boots: int = 0
    process: subprocess.Popen[str] | None = None
    joins: str = ""
    """What it is told when it has power: where the API server is, and how pods of other nodes are reached."""

    @property
    def name(self) -> str:
        """As the API server knows it."""
        return f"n{self.number}"

    @property
    def pods(self) -> str:
        """The range that its pods have their addresses of."""
        return pods_of(self.network, self.number)

    @property
    def group(self) -> str:
        """The cgroup of its pods: named after the process that holds it, so that nobody else's is removed."""
        return f"{os.getpid()}-{self.name}"

    def boot(self) -> None:
        """Make its namespaces and lay its cable. It has been up for days at first; after a restart its clocks are new.

        Raises:
            RuntimeError: the namespaces cannot be had.
        """
        ahead_s = self.number * (FRESH_S if self.boots else DAY_S) - (int(time.monotonic()) if self.boots else 0)
        self.boots += 1
        clocks = [f"--{clock}={ahead_s}" for clock in ("monotonic", "boottime")]
        programs = [str(it) for it in (SCRIPT, self.folder, shutil.which("containerd"), find("kubelet"), self.name)]
        with (self.folder / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", *NAMESPACES, *clocks, "--fork", "--kill-child", "--mount-proc", "sh", *programs],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the node's namespaces were not made: {(self.folder / 'node.log').read_text()}")
        self.network.plug(self.name, self.process.pid)
        way = ["via", self.network.address(self.number)]
        subprocess.run(["ip", "route", "replace", self.pods, *way], check=True, capture_output=True)

    def join(self, server: Server, peers: Iterable[int]) -> None:
        """Start its programs; pods of the peers' (numbers of nodes) are reached through them."""
        (self.folder / "kubeconfig").write_text(json.dumps(kubeconfig(server)))
        port = server.url.rpartition(":")[2]
        ways = [f"{pods_of(self.network, it)}={self.network.address(it)}" for it in peers if it != self.number]
        own = (self.network.address(self.number), self.pods)
        self.joins = " ".join(["join", self.network.address(), port, SERVICE, *own, ALL_PODS, *ways])
        self._start()

    def _start(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self.joins}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Cut its power: cable, kubelet, containerd and pods at once; nobody is told, and its disk stays as it is."""
        if self.process is None:
            return
        with contextlib.suppress(OSError):  # gone already, with a node whose first process has ended
            self.network.unplug(self.name)
        process, self.process = self.process, None
        end(process)
        sweep(self.group)
        shutil.rmtree(self.folder / "run", ignore_errors=True)

    def restore(self) -> None:
        """Give it power again: same name, address and disk, and it joins as it did before."""
        self.boot()
        self._start()

    @property
    def image_bytes(self) -> int:
        """Of the archives that it imports at first."""
        return sum(it.stat().st_size for it in (self.folder / "images").glob("*.tar"))

    def why(self) -> str:
        """The last line of the newest of its logs that says something."""
        logs = [self.folder / f"{name}.log" for name in ("kubelet", "images", "containerd", "node")]
        said = [(log, lines[-1]) for log in logs if log.exists() and (lines := log.read_text().splitlines())]
        return next((f"{log}: {line[-200:]}" for log, line in said), f"{self.folder}: no log")


def pods_of(network: Switch, number: int) -> str:
    """The addresses of a node's pods: no other node's, and no other testbed's."""
    return f"10.{FIRST_PODS + number}.{network.number}.0/24"


def await_ready(server: Server, nodes: Sequence[Node]) -> None:
    """Wait until the API server calls all of them ready.

    Raises:
        RuntimeError: one does not come up.
    """
    limit_s = READY_TIMEOUT_S + sum(it.image_bytes for it in nodes) / UNPACKED_BYTES_S
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if not (late := {it.name for it in nodes} - ready(server)):
            return
        time.sleep(0.2)
    late_ones = f"not ready within {limit_s:.0f} s: {', '.join(sorted(late))}"
    raise RuntimeError("\n".join([late_ones, *(it.why() for it in nodes if it.name in late)]))


def ready(server: Server) -> set[str]:
    """The names of nodes that pods may be put on."""
    return {
        node["metadata"]["name"]
        for node in server.request("GET", "/api/v1/nodes").body["items"]
        if not node["spec"].get("taints")
        and any(it["type"] == "Ready" and it["status"] == "True" for it in node["status"].get("conditions", []))
    }


@contextlib.contextmanager
def present(number: int, folder: Path, network: Switch, fill: Callable[[Path], None]) -> Iterator[Node]:
    """A node with the images that `fill` puts into a folder; nothing of it is left afterwards but logs.

    Raises:
        UnavailableError: something that it takes is not on this machine.
    """
    missing()
    sweep()
    made = Node(number, folder, network)
    folder.mkdir()
    fill(folder / "images")
    (folder / "containerd.toml").write_text(containerd_config(folder))
    (folder / "kubelet.json").write_text(json.dumps(kubelet_config(made.group, network.address()), indent=1))
    connections(folder, made.pods)
    try:
        made.boot()
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder / "lib", ignore_errors=True)


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


def end(process: subprocess.Popen[str]) -> None:
    """End the first process of the namespaces, and with it all that runs there; `unshare` ends after the last."""
    with process, contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def sweep(ours: str = "") -> None:
    """Remove the cgroups of a node that is gone, and those of nodes whose test is gone."""
    for parent in [*CGROUPS.glob(f"*/{OURS}"), CGROUPS / OURS]:
        for group in parent.glob("*/"):
            if group.name == ours or not Path("/proc", group.name.partition("-")[0]).exists():
                remove(group)
        with contextlib.suppress(OSError):  # of another node, or not there
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


def connections(folder: Path, pods: str) -> None:
    """How pods are connected: a bridge in the node's own network, addresses of the node's range."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
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


def kubelet_config(group: str, dns: str) -> dict[str, object]:
    """A kubelet beside others on one machine: its pods in one cgroup, no pod evicted for the machine's own load."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # reached from this machine only
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{OURS}/{group}", "cgroupsPerQOS": False,
        "clusterDNS": [dns], "clusterDomain": "cluster.local",
        "enforceNodeAllocatable": [], "localStorageCapacityIsolation": False, "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s",
    }  # fmt: skip
