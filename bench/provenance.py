"""Where a run's figures come from: code, host, packages, clocks. Called once by `bench.run`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from proving_ground.bench.agent.machine import usable_gpus
from proving_ground.bench.child import ROOT
from proving_ground.bench.redact import redacted
from proving_ground.bench.rundir import FORMAT


def version() -> str:
    """The installed version, or that there is none: a clone can be used as it is."""
    try:
        return importlib.metadata.version("proving-ground")
    except importlib.metadata.PackageNotFoundError:
        return "0+not-installed"


VERSION = version()


def provenance(argv: list[str], seed: int, t: float) -> dict[str, Any]:
    """What `provenance.json` holds; `t` is the run's clock at this moment, in seconds."""
    wall_s = time.time()  # first: what follows takes its time
    return {
        "format": FORMAT,
        "argv": [redacted(it) for it in argv],
        "seed": seed,
        "git": {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))},
        "host": host(),
        "python": platform.python_version(),
        "packages": packages(),
        "wall_s": wall_s,
        "utc_offset_s": time.localtime().tm_gmtoff,
        "t": t,
    }


def git(*words: str) -> str | None:
    """One line from git, or None where there is no git or no clone: what is around an installed copy is not ours."""
    command = ["git", "-C", str(ROOT), *words]
    if not (ROOT / ".git").exists():
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def host() -> dict[str, Any]:
    """The machine: processor, GPUs, cores, memory in MB, kernel."""
    return {
        "cpu": cpu_model(),
        "gpu": gpu_models(),
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6,
        "kernel": f"{platform.system()} {platform.release()}",
        "root": os.geteuid() == 0,
    }


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def gpu_models() -> str:
    """Names of the machine's GPUs as their driver gives them, equal ones counted; `none` where we may use none."""
    if usable_gpus() == []:
        return "none"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return "not known"
    counts = Counter(it.strip() for it in found.splitlines() if it.strip())
    return " + ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())


def packages() -> dict[str, str]:
    """Name → version of everything installed in this environment."""
    found = {it.metadata["Name"]: it.version for it in importlib.metadata.distributions()}
    return dict(sorted(found.items()))
