"""A volume that all nodes share: ext4 on a loop device, or memory. Called by `local.cluster`.

It is mounted by the fork server, in mounts of its own that every node inherits, so it goes with the last process: the
loop device lets go of its file by itself, and the file has no name. The harness reaches it through the fork server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from proving_ground.bench.agent import kernel
from proving_ground.bench.agent.orders import Mount
from proving_ground.bench.clusters.local import links

LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
AUTOCLEAR = 4  # let go of the file when nobody has the device open or mounted
MAKE_S = 60.0  # for mkfs
BUSY_S = 5.0  # for open files to be closed before the disk turns read-only
FILLER = ".full"
GRAIN = 4096  # block of the file system


@dataclass(frozen=True)
class Disk:
    """A loop device; it lives while `handle` is open or it is mounted. `number` is major:minor."""

    path: str
    number: str
    handle: IO[bytes]


def make_disk(folder: Path, size_mb: int) -> Disk:
    """A loop device with an empty ext4 of this size, over a file in `folder` that has no name any more.

    Raises:
        OSError: no mkfs.ext4, no free loop device, not permitted.
    """
    image = folder / f"volume-{os.getpid()}.img"
    with image.open("wb+") as backing:
        try:
            backing.truncate(size_mb * 2**20)
            _make_file_system(image)
        finally:
            image.unlink()
        return _attach(backing.fileno())


def _make_file_system(image: Path) -> None:
    # No blocks kept back for root, so that full is full for everybody; all of it written now, none in the background.
    command = [
        "mkfs.ext4",
        "-q",
        "-F",
        "-b",
        str(GRAIN),
        "-m",
        "0",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0",
        str(image),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAKE_S)
    except FileNotFoundError:
        raise OSError("mkfs.ext4 is not installed (package e2fsprogs)") from None
    except subprocess.SubprocessError as error:
        raise OSError(f"mkfs.ext4: {getattr(error, 'stderr', '') or error}") from None


def _attach(backing: int) -> Disk:
    with Path("/dev/loop-control").open("rb+", buffering=0) as control:
        for _ in range(16):  # somebody else may be given the same free one
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            path = f"/dev/loop{number}"
            device = Path(path).open("rb+", buffering=0)  # noqa: SIM115 - it is to stay open
            # struct loop_config: the file, block size, then loop_info64 with its flags at byte 52, and room to spare
            info = bytearray(232)
            struct.pack_into("I", info, 52, AUTOCLEAR)
            with contextlib.suppress(BlockingIOError, OSError):
                fcntl.ioctl(device, LOOP_CONFIGURE, struct.pack("II", backing, GRAIN) + bytes(info) + bytes(64))
                at = os.fstat(device.fileno()).st_rdev
                return Disk(path, f"{os.major(at)}:{os.minor(at)}", device)
            device.close()
    raise OSError("no loop device could be had")


def mount_of(disk: Disk | None, size_mb: int, target: Path) -> Mount:
    """How the fork server mounts it; without a disk it is memory of that size."""
    if disk is None:
        return Mount("tmpfs", str(target), "tmpfs", f"size={size_mb}m")
    return Mount(disk.path, str(target), "ext4", "errors=remount-ro")


def fill(folder: Path, leave_bytes: int | None) -> None:
    """Take up the free space of the file system but for `leave_bytes`; None gives it back.

    Raises:
        OSError: it cannot be written.
    """
    filler = folder / FILLER
    if leave_bytes is None:
        filler.unlink(missing_ok=True)
        return
    with filler.open("ab") as file:
        while (room := free_bytes(folder) - leave_bytes) >= GRAIN:
            _take(file.fileno(), room)


def _take(file: int, room: int) -> None:
    """Make the file longer by so much, or by half of that where the file system needs some for itself."""
    end = os.fstat(file).st_size
    while room >= GRAIN:
        try:
            os.posix_fallocate(file, end, room // GRAIN * GRAIN)
        except OSError:
            room //= 2
        else:
            return
    raise OSError("the free space cannot be taken")


def free_bytes(folder: Path) -> int:
    """What can still be written there, in bytes."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def remount(server: int, mount: Mount, *, readonly: bool) -> None:
    """Turn the whole file system read-only, or back, in every node at once; `server` is the fork server's pid.

    Raises:
        OSError: a file stays open for writing.
    """

    def inside() -> None:
        kernel.unshare(kernel.FS)  # else the thread would share its folder with the others, which the kernel refuses
        with Path(f"/proc/{server}/ns/mnt").open("rb") as mounts:
            kernel.setns(mounts.fileno(), kernel.NEWNS)
        kernel.mount(mount.source, mount.target, flags=kernel.MS_REMOUNT | (kernel.MS_RDONLY if readonly else 0))

    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return links.in_thread(inside)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.002)
