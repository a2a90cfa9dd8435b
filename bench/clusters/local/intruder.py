"""A process that uses a node's memory or disk as another tenant of it would: it only joins the node's control groups.

Started by `local.breakable` as a script of its own, with nothing imported but the standard library, so that it
is small and there at once. It ends when its standard input closes, so it never outlives the harness.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MEBI = 2**20
GRAIN = 2 * MEBI  # of GPU memory


def start(members_files: Iterable[Path], *words: str) -> subprocess.Popen[str]:
    """Start it in the groups with these files: `memory MIB`, `gpu MIB`, or `write FILE MIB`."""
    command = [sys.executable, "-I", "-S", __file__, os.pathsep.join(map(str, members_files)), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def ready(intruder: subprocess.Popen[str]) -> bool:
    """Wait until it has what it was to take; False when it has ended without."""
    return bool(intruder.stdout and intruder.stdout.readline())


def end(intruder: subprocess.Popen[str]) -> str:
    """End it; what it has said."""
    said, _ = intruder.communicate()
    return said.strip()


def hold_memory(mebi: int, group: Path) -> None:
    """Take so much memory, really in use, until standard input closes; no more once the kernel had to kill for it."""
    before = kills(group)
    held: list[bytes] = []
    while len(held) < mebi and kills(group) == before:
        held.append(b"\1" * MEBI)
    print(len(held), flush=True)
    sys.stdin.read()


def kills(group: Path) -> str:
    """How often the kernel has killed in a group for lack of memory, in its words."""
    file = next(group / name for name in ("memory.events", "memory.oom_control") if (group / name).exists())
    return next(line for line in file.read_text().splitlines() if line.startswith("oom_kill "))


def hold_gpu_memory(leave_mebi: int) -> None:
    """Take all free memory of every GPU but for so much, until standard input closes."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count, free, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    checked(cuda.cuInit(0))
    checked(cuda.cuDeviceGetCount(ctypes.byref(count)))
    for index in range(count.value):
        context, held = ctypes.c_void_p(), ctypes.c_uint64()
        checked(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, index))
        checked(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        size = (free.value - leave_mebi * MEBI) // GRAIN * GRAIN
        while size > 0 and cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(size)):
            size -= GRAIN  # the driver keeps some for itself
    print(count.value, flush=True)
    sys.stdin.read()


def checked(result: int) -> None:
    """Stop where the driver refuses."""
    if result:
        sys.exit(f"CUDA error {result}")


def write_durably(path: Path, mebi: int) -> None:
    """Write so much, wait until the disk has it, and say how many bytes a second that were."""
    begin = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(mebi * 16):
            file.write(bytes(MEBI // 16))
        os.fsync(file.fileno())
    path.unlink()
    print(round(mebi * MEBI / (time.monotonic() - begin)))


def main() -> None:
    """Join the groups, then do as told."""
    groups = [*filter(None, sys.argv[1].split(os.pathsep))]
    for name in groups:
        with open(name, "w") as members:  # noqa: PTH123 - no buffering surprises
            members.write("0")
    if sys.argv[2] == "memory":
        hold_memory(int(sys.argv[3]), Path(groups[0]).parent)
    elif sys.argv[2] == "gpu":
        hold_gpu_memory(int(sys.argv[3]))
    else:
        write_durably(Path(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
