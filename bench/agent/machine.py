"""What this machine is and how it fares, from /proc where there is one; called by clusters, doctor and agents."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

PROC, DEVICES = Path("/proc"), Path("/dev")
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


def counters(proc: Path = PROC) -> dict[str, Any]:
    """`steal_s`, `cpu_s` (busy; all cores, seconds since boot), `load1`, `mhz` (mean); without what cannot be read."""
    found: dict[str, Any] = {}
    if hasattr(os, "getloadavg"):
        found["load1"] = round(os.getloadavg()[0], 2)
    try:
        ticks = [int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        second = os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _wait, interrupts, soft, steal = ticks
        found |= {"steal_s": steal / second, "cpu_s": (user + nice + system + interrupts + soft) / second}
    except (OSError, ValueError):
        pass
    return found | clock(proc)


def clock(proc: Path = PROC) -> dict[str, float]:
    """The cores' mean clock rate as `mhz`, where the kernel tells."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    rates = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return {"mhz": round(sum(rates) / len(rates), 1)} if rates else {}


def free_port(address: str) -> int:
    """A port of one of its addresses that nobody has now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int | None:
    """How many GPUs this process may use; None: unknown."""
    return None if (found := usable_gpus()) is None else len(found)


def usable_gpus() -> list[str] | None:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES calls them; None: unknown.

    Those that an engine left it, else all that the driver has.
    """
    if (left := os.environ.get(GPUS_VARIABLE)) is not None:
        return [name for it in left.split(",") if (name := it.strip()) not in ("", "-1", "NoDevFiles")]
    if any((DEVICES / name).exists() for name in ("dxg", "nvmap")):  # drivers that have no file for each
        return None
    found = [name for it in DEVICES.glob("nvidia*") if (name := it.name.removeprefix("nvidia")).isdecimal()]
    return [str(number) for number in range(len(found))]  # CUDA counts those that are there


def memory_mb() -> int:
    """The machine's memory in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
