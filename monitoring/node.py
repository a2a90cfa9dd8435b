"""The exporter's machine: CPU, memory, disk and network, from /proc. Called by `monitoring.exporter` at every scrape.

On a cluster node-exporter does this; `rules/cluster.yaml` gives its series these names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from proving_ground.monitoring.board import Board

PROC = Path("/proc")
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
SECTOR = 512  # bytes; what /proc/diskstats counts in, whatever the disk
NOT_DISKS = ("loop", "ram", "zram", "dm-", "sr", "fd")  # they pass on to disks, or are none

Reading = tuple[str, tuple[str, ...], float]


def put_node(board: Board, node: str, mount: Path, proc: Path = PROC) -> None:
    """Put what the machine tells now on the board; what cannot be read is left out. `mount` is where runs lie."""
    for read in (cpu, memory, load, kills, disks, network):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for name, labels, value in read(proc):
                board.set(name, (node, *labels), value)
    with contextlib.suppress(OSError):
        size, free = space(mount)
        board.set("node_disk_size_bytes", (node, str(mount)), size)
        board.set("node_disk_free_bytes", (node, str(mount)), free)


def space(path: Path | str) -> tuple[float, float]:
    """Size of the file system that a path is on, and what an ordinary user may still write, in bytes.

    Raises:
        OSError: there is no such path.
    """
    found = os.statvfs(path)
    return float(found.f_blocks * found.f_frsize), float(found.f_bavail * found.f_frsize)


def cpu(proc: Path) -> Iterator[Reading]:
    """Seconds of all cores by what they did, and how many there are."""
    lines = (proc / "stat").read_text().splitlines()
    second = os.sysconf("SC_CLK_TCK")
    for mode, ticks in zip(MODES, lines[0].split()[1:], strict=False):
        yield "pg_node_cpu_seconds_total", (mode,), int(ticks) / second
    yield "node_cores", (), float(sum(line.startswith("cpu") for line in lines) - 1)


def memory(proc: Path) -> Iterator[Reading]:
    """There is, and to be had."""
    names = {"MemTotal": "node_memory_total_bytes", "MemAvailable": "node_memory_available_bytes"}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            yield names[name], (), int(value.split()[0]) * 1024.0


def load(proc: Path) -> Iterator[Reading]:
    """Processes that want to run."""
    yield "node_load1", (), float((proc / "loadavg").read_text().split()[0])


def kills(proc: Path) -> Iterator[Reading]:
    """Processes that the kernel killed for want of memory, in groups with a limit too."""
    for line in (proc / "vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            yield "node_oom_kills_total", (), float(line.split()[1])


def disks(proc: Path) -> Iterator[Reading]:
    """Bytes read and written by disk; partitions are left out, they are counted in their disks."""
    names = [line.split() for line in (proc / "diskstats").read_text().splitlines()]
    for words in names:
        device = words[2]
        whole = not any(device != other[2] and device.startswith(other[2]) for other in names)
        if whole and not device.startswith(NOT_DISKS):
            yield "node_disk_read_bytes_total", (device,), int(words[5]) * float(SECTOR)
            yield "node_disk_written_bytes_total", (device,), int(words[9]) * float(SECTOR)


def network(proc: Path) -> Iterator[Reading]:
    """Bytes received and sent by interface, the loopback left out."""
    for line in (proc / "net" / "dev").read_text().splitlines()[2:]:
        device, _, rest = line.partition(":")
        words = rest.split()
        if device.strip() != "lo":
            yield "node_network_receive_bytes_total", (device.strip(),), float(words[0])
            yield "node_network_transmit_bytes_total", (device.strip(),), float(words[8])
