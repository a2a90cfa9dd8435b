"""What this machine lets a cluster of emulated nodes do, found out by doing it.

Runs in a process of its own, whose namespaces and mounts end with it; `probe()` starts it and reads its answer. Called
by `local.cluster` and `bench.doctor`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from proving_ground.bench import child
from proving_ground.bench.agent import kernel, processes
from proving_ground.bench.agent.orders import CLOCK_VARIABLE
from proving_ground.bench.clusters.local import gpus, links, memory, shares, skew, throttle, volume
from proving_ground.bench.clusters.local.groups import Hierarchy, find_hierarchy
from proving_ground.bench.clusters.local.partition import Drops
from proving_ground.bench.protocols import Ability

PROBE_S = 30.0
WRONG_S = 100.0  # a clock that is tried


@functools.cache
def probe() -> tuple[Ability, ...]:
    """How each of `PROBES` came out, in their order."""
    command = [sys.executable, "-m", "proving_ground.bench.clusters.local.probe"]
    try:
        answer = subprocess.run(command, cwd=child.ROOT, capture_output=True, text=True, timeout=PROBE_S, check=True)
        return tuple(Ability(**ability) for ability in json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return tuple(Ability(name, yes=False, how=f"the probe failed: {error}") for name in PROBES)


def namespaces() -> str:
    """Own network, mounts, host name and processes."""
    # Its process namespace is opened by a child: who has one for future children may start no threads.
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.NEWPID)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise PermissionError("process namespaces")
    kernel.unshare(kernel.NEWNET | kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC)
    kernel.make_mounts_private()
    return "own network, mounts, host name and processes for each node, as " + who()


def who() -> str:
    """As whom: root, or root of a user namespace."""
    whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    return "root" if whole else "root of a user namespace"


def network() -> str:
    """A cable with a rate limit between two namespaces."""
    network = links.open_network(["n1"])
    links.wire(network)
    links.set_rate(network, 100)
    return "veth, bridge and token buckets (tbf), both directions"


def cpu_shares() -> str:
    """A control group with a quota."""
    place = shares.place()
    return f"quota in a cgroup v{place.version} under {place.parent}, period {shares.PERIOD_US / 1000:g} ms"


def disks() -> str:
    """A tmpfs of a given size."""
    kernel.mount("tmpfs", "/tmp", "tmpfs", options="size=1m")  # noqa: S108 - of this process' own mount namespace
    size = os.statvfs("/tmp")  # noqa: S108
    if size.f_blocks * size.f_frsize != 2**20:
        raise OSError("tmpfs did not take its size")
    return "tmpfs of limited size for each node; fsync costs nothing there"


def delay() -> str:
    """Netem, which some kernels lack."""
    from pyroute2 import IPRoute  # noqa: PLC0415

    with IPRoute() as ip:
        (index,) = ip.link_lookup(ifname="lo")
        try:
            ip.tc("add", "netem", index, handle="1:", delay=1000)
        except Exception as error:
            raise OSError("this kernel has no netem") from error
    return "netem"


def memory_limits() -> str:
    """A control group with a limit of memory."""
    place = memory.place()
    return f"limit in a cgroup v{place.version}, and the kernel's kill past it"


def slow_disk() -> str:
    """A limit of bytes a second on a disk."""
    with tempfile.TemporaryDirectory() as folder:
        disk = volume.make_disk(Path(folder), 4)

    def attempt(place: Hierarchy, trial: Path) -> None:
        throttle.write_rate(place.version, trial, disk.number, 2**20)

    place = find_hierarchy(throttle.CONTROLLER, attempt)
    return f"rate in a cgroup v{place.version} for the volume's loop device"


def wall_clocks() -> str:
    """A wall clock that is wrong for one process only, and nothing else that is."""
    with tempfile.TemporaryDirectory() as folder:
        library, clock = skew.build(Path(folder)), skew.make_clock(Path(folder) / "clock")
        skew.set_ahead(clock, WRONG_S)
        env = {**os.environ, skew.PRELOAD_VARIABLE: str(library), CLOCK_VARIABLE: str(clock)}
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import time; time.sleep(0.001); print(time.time(), time.monotonic())",
        ]
        said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PROBE_S, check=True).stdout
    wall, monotonic = map(float, said.split())
    if abs(wall - time.time() - WRONG_S) > 1 or abs(monotonic - time.monotonic()) > 1:
        raise OSError("a preloaded library does not change what processes are told")
    return "emulated: a preloaded library, built with cc, tells a node's processes another time of day"


def gpu_memory() -> str:
    """A GPU whose memory can be taken up."""
    found = gpus.states()
    if not found:
        raise OSError("the driver is there, but no GPU")
    return ", ".join(it["name"] for it in found) + ", of which all are taken up at once"


def partitions() -> str:
    """Packets between two nodes dropped in the switch, and counted."""
    drops = Drops(links.Namespaces(links.own_namespace(), {}))
    drops.cut([("n1", "n2")])
    return f"drop rules in the switch (nftables, bridge family), {len(drops.counts())} counter a direction"


def loss() -> str:
    """A share of packets dropped at random."""
    Drops(links.Namespaces(links.own_namespace(), {})).lose("n1", 1)
    return "drop rules in the switch with random numbers (nftables numgen)"


def signals() -> str:
    """Signals to exactly one process of a node, children of children included."""
    (own,) = (it for it in processes.processes(os.getppid(), isolated=False) if it.host_pid == os.getpid())
    processes.send(own, 0)
    return "every process of a node is seen in /proc and can be signalled"


def shared_volume() -> str:
    """A disk with a file system that all nodes share."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            disk = volume.make_disk(Path(folder), 4)
        except OSError as error:
            found = f"tmpfs of limited size, fsync costs nothing there; no ext4 on a loop device: {error}"
            mount = volume.mount_of(None, 4, Path(folder))
        else:
            found, mount = "ext4 on a loop device", volume.mount_of(disk, 4, Path(folder))
        kernel.mount(mount.source, mount.target, mount.kind, options=mount.options)
        volume.fill(Path(folder), 0)
        kernel.unmount(folder)
    return found


PROBES: dict[str, Callable[[], str]] = {
    "namespaces": namespaces,
    "links": network,
    "cpu_shares": cpu_shares,
    "signals": signals,
    "partitions": partitions,
    "loss": loss,
    "delay": delay,
    "volume": shared_volume,
    "throttle": slow_disk,
    "memory": memory_limits,
    "skew": wall_clocks,
    "gpu_memory": gpu_memory,
    "disks": disks,
}
"""In this order: the later ones play in the namespaces that the first has made."""

NEEDS_NAMESPACES = ("links", "disks", "partitions", "loss", "delay", "volume")


NAMESPACES_NEED = " (they need root, or user namespaces for everybody)"


def main() -> None:
    """Try all of them and print what came of it, as JSON."""
    found: dict[str, Ability] = {}
    for name, attempt in PROBES.items():
        if name in NEEDS_NAMESPACES and not found["namespaces"].yes:
            found[name] = Ability(name, yes=False, how="needs namespaces")
            continue
        found[name] = tried(name, attempt)
    print(json.dumps([asdict(ability) for ability in found.values()]))


def tried(name: str, attempt: Callable[[], str]) -> Ability:
    """How an attempt went, in words."""
    if sys.platform != "linux":
        return Ability(name, yes=False, how=f"needs Linux, this is {sys.platform}")
    try:
        return Ability(name, yes=True, how=attempt())
    except PermissionError as error:
        return Ability(
            name,
            yes=False,
            how=f"not permitted{NAMESPACES_NEED if name == 'namespaces' else ''}: {error.strerror or error}",
        )
    except ImportError as error:
        return Ability(name, yes=False, how=f"{error.name} is not installed")
    except Exception as error:  # noqa: BLE001 - whatever the kernel says, the answer is no
        return Ability(name, yes=False, how=f"{error}" or type(error).__name__)


if __name__ == "__main__":
    main()
