"""What a user types, as a list for `subprocess`. Called by tests that start a program of ours."""

from __future__ import annotations

import sys


def program(name: str, *words: str) -> list[str]:
    """The command of a program such as `bench`, by this Python."""
    return [sys.executable, "-m", f"proving_ground.{name}", *words]


def smoke(where: str, *words: str) -> list[str]:
    """The shortest benchmark on a cluster."""
    return program("bench", "run", "--suite", "smoke", "--cluster", where, *words)
