"""Programs of the user's that do what an engine cannot, such as to switch a machine off. Called by pools."""

from __future__ import annotations

import shlex
import subprocess

from proving_ground.bench.protocols import ClusterError

PROGRAM_S = 180.0
LINE = 200  # characters of what it says


def run_program(engine: str, option: str, words: str, *more: str) -> None:
    """Run a program that an option names.

    Raises:
        ClusterError: it cannot be run, fails, or takes too long; the last line that it complained with.
    """
    try:
        done = subprocess.run(
            [*shlex.split(words), *more], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            timeout=PROGRAM_S,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{engine}: {option}={words} {' '.join(more)}: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word why").splitlines()[-1]
        raise ClusterError(f"{engine}: {option}={words} {' '.join(more)}: {said[:LINE]}")
