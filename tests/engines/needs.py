"""Whether an engine can be had here, asked by the fixtures of tests that are marked `engines`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest

from tests.engines.machines import NAMESPACES


def require(programs: Mapping[str, str]) -> None:
    """Skip the test where something is missing; fail it where `CI=true` and root, since CI installs all of it.

    `programs` is a module's `PROGRAMS`: name → Debian package.
    """
    reason = missing(programs)
    if reason and os.environ.get("CI") == "true" and os.geteuid() == 0:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def missing(programs: Mapping[str, str]) -> str:
    """What is not here, in words; empty where all is."""
    if os.name != "posix" or os.geteuid():
        return "machines in namespaces take root"
    packages = sorted({package for program, package in programs.items() if shutil.which(program) is None})
    if packages:
        return f"not installed: {' '.join(packages)}"
    probe = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces: {probe.stderr.strip()}" if probe.returncode else ""
