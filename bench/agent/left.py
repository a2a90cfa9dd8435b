"""What runs left on a machine elsewhere: told, and removed where `end` is asked for. It is run by `python3 -c`.

An agent that has heard of its harness a moment ago is in use, and is let be. It imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

IN_USE_S = 15.0  # a harness speaks to its agents every two seconds
END_S = 10.0


def folders(root: Path) -> Iterator[Path]:
    """The folders of agents: of each run and node."""
    yield from sorted(path for path in root.glob("*/*") if path.is_dir())


def in_use(folder: Path) -> bool:
    """Whether its agent lives and has heard of its harness a moment ago."""
    with contextlib.suppress(OSError):
        return alive(folder) and time.time() - (folder / "heard").stat().st_mtime < IN_USE_S
    return False


def alive(folder: Path) -> bool:
    """Whether its agent lives: the process that it says, with its folder in the command line."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "pid").read_text())
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def end(folder: Path) -> None:
    """End its agent, which ends what it started; then whatever carries its marks, and the folder."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "pid").read_text())
        deadline = time.monotonic() + END_S
        while alive(folder):
            os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.05)
    end_marked(folder.parent.name, folder.name)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # others may be there
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


def end_marked(run: str, node: str) -> None:
    """End all other processes that carry the marks of a run and node (`bench.agent.orders`)."""
    marks = {f"PROVING_GROUND_RUN={run}".encode(), f"PROVING_GROUND_NODE={node}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and marks <= set((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)


def main() -> None:
    """Print a line of JSON for each agent's folder under the folder that is named."""
    root = Path(sys.argv[1].replace("{uid}", str(os.getuid())))
    if root.exists() and root.lstat().st_uid != os.getuid():
        sys.exit(f"{root} is somebody else's")
    for folder in folders(root):
        used = in_use(folder)
        if not used and "end" in sys.argv[2:]:
            end(folder)
        print(json.dumps({"run": folder.parent.name, "node": folder.name, "in_use": used}))


if __name__ == "__main__":
    main()
