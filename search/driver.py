"""A driver's first moments, `python -m proving_ground.search.driver DIR PID`: whose it is, and that it is the only one.

Started by `search.watch`, whose process id is PID. What `search.drive` imports takes seconds, in which the command may
be killed: so the kernel is told before that. Standard library only, until both are certain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from proving_ground.bench.agent import kernel
from proving_ground.bench.rundir import RunDir, RunDirError, held

LOCK = "driver.lock"
"""Of a search's directory: locked for as long as a driver writes there."""


def main(words: Sequence[str]) -> int:
    """One sitting of the search in this directory; the exit status."""
    folder, parent = words
    kernel.die_with_parent(int(parent))
    try:
        with held(RunDir(Path(folder)), LOCK):
            from proving_ground.search import drive  # noqa: PLC0415 - not before the kernel ends this process with the command

            return drive.main(folder)
    except RunDirError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
