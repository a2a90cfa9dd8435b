"""What this machine has beside the cluster's own abilities: the rest of `pg bench doctor`.

Called by `bench.commands`. Each line is found out by looking or trying; a `no` says what is off because of it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence

from proving_ground.bench.agent import machine
from proving_ground.bench.protocols import Ability

ASK_S = 5.0  # for a program to tell its version

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def survey() -> list[Ability]:
    """Machine, torch and GPU, and programs; takes well under two seconds."""
    return [check() for check in CHECKS]


def _machine() -> Ability:
    system = f"{platform.system()} {platform.release()}"
    return Ability("machine", yes=True, how=f"{machine.cores()} cores, {machine.memory_mb()} MiB of memory, {system}")


def _torch() -> Ability:
    try:
        return Ability("torch", yes=True, how=importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return Ability("torch", yes=False, how="not installed; only trainers that bring their own run")


def _gpu() -> Ability:
    try:
        import pynvml  # noqa: PLC0415 - it may be missing

        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 - no driver, no library: the answer is no
        return Ability("gpu", yes=False, how=f"no NVIDIA GPU: {error}; compute is real on the CPU or paced")
    return Ability("gpu", yes=bool(names), how=", ".join(names) or "the driver is there, but no GPU")


def _git() -> Ability:
    return _program("git", ["git"], "the commit is not recorded with a run")


def _browser() -> Ability:
    return _program("browser", BROWSERS, "the test that opens the report in a browser is off")


def _pulumi() -> Ability:
    return _program("pulumi", ["pulumi"], "clusters in a cloud cannot be stood up from here")


def _uv() -> Ability:
    return _program("uv", ["uv"], "nox installs with pip, which is slower")


def _nox() -> Ability:
    try:
        return Ability("nox", yes=True, how=importlib.metadata.version("nox"))
    except importlib.metadata.PackageNotFoundError:
        return _program("nox", ["nox"], "start with pg bench instead")


CHECKS: Sequence[Callable[[], Ability]] = (_machine, _torch, _gpu, _git, _nox, _uv, _browser, _pulumi)


def _program(name: str, candidates: Sequence[str], without: str) -> Ability:
    """Whether one of the programs is on PATH, with what it says of its version."""
    path = next(filter(None, map(shutil.which, candidates)), None)
    if path is None:
        return Ability(name, yes=False, how=f"{' or '.join(candidates[:2])} not found: {without}")
    if name == "browser":  # a browser may take seconds only to say its version
        return Ability(name, yes=True, how=path)
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ASK_S, check=False).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Ability(name, yes=False, how=f"{path}: {error}")
    version = re.search(r"\d+(\.\d+)+", said)
    return Ability(name, yes=True, how=version.group() if version else path)
