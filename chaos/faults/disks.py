"""The disk under the checkpoints: full, read-only. In `chaos.faults.FAULTS`.

It is the volume that all nodes share, so these are aimed at all of them.
"""

from __future__ import annotations

import os

from proving_ground.bench.capabilities import CanThrottle, CanUseVolume
from proving_ground.chaos.faults.fault import Arg, Evidence, Fault, Injection
from proving_ground.chaos.faults.proof import Condition

MEBI = 2**20
TRIAL_S, MOST_MEBI = 0.75, 32  # of the limit's worth are written to see how fast the disk is; no more than so much
BURST = 1.5  # the kernel lets a first slice of time's worth through at once
SLACK_BYTES = MEBI  # a disk has space that no file can take


def fill(scene: Injection[CanUseVolume]) -> Evidence:
    """Take up the free space of the volume but for `leave_mb`."""
    leave = round(scene.args["leave_mb"] * MEBI)
    t = scene.cluster.now()
    scene.can.fill(leave)
    return {"t": t, "leave_bytes": leave, **_space(scene)}


def give_back(scene: Injection[CanUseVolume]) -> Evidence:
    """Free it again."""
    scene.can.fill(None)
    return _space(scene)


def _space(scene: Injection[CanUseVolume]) -> Evidence:
    found = os.statvfs(scene.can.volume)
    return {"free_bytes": found.f_bavail * found.f_frsize, "size_bytes": found.f_blocks * found.f_frsize}


def slow_disk(scene: Injection[CanThrottle]) -> Evidence:
    """Limit what each node may read and write of the volume a second."""
    asked = round(scene.args["mb_per_s"] * 1e6)
    t = scene.cluster.now()
    scene.can.throttle(asked)
    scene.state["slowed"] = True
    return {"t": t, "asked_bytes_per_s": asked, "limit_bytes_per_s": scene.can.throttle_state()}


def fast_disk(scene: Injection[CanThrottle]) -> Evidence:
    """See how fast a node could write meanwhile, then lift the limit."""
    if not scene.state.pop("slowed", False):
        scene.can.throttle(None)
        return {}
    worth = round(TRIAL_S * scene.args["mb_per_s"] * 1e6 / MEBI)
    measured = scene.can.write_rate(scene.nodes[0], min(max(1, worth), MOST_MEBI))
    scene.can.throttle(None)
    return {"measured_bytes_per_s": round(measured), "limit_bytes_per_s": scene.can.throttle_state()}


def turn_readonly(scene: Injection[CanUseVolume]) -> Evidence:
    """Have the volume refuse writes, as a file system does after an error of its disk."""
    t = scene.cluster.now()
    scene.can.readonly(on=True)
    return {"t": t, "readonly": _is_readonly(scene), "refused": _refusal(scene)}


def turn_writable(scene: Injection[CanUseVolume]) -> Evidence:
    """Take writes again."""
    scene.can.readonly(on=False)
    return {"readonly": _is_readonly(scene), "refused": _refusal(scene)}


def _is_readonly(scene: Injection[CanUseVolume]) -> bool:
    return bool(os.statvfs(scene.can.volume).f_flag & os.ST_RDONLY)


def _refusal(scene: Injection[CanUseVolume]) -> str | None:
    """What a write gets for an answer; None when it is taken."""
    trial = scene.can.volume / ".trial"
    try:
        trial.write_bytes(b"")
        trial.unlink()
    except OSError as error:
        return error.strerror
    return None


WAS_FULL = (
    Condition(
        "begin.free_bytes", "at_most", "args.leave_mb", times=MEBI, plus=SLACK_BYTES,
        means="by statvfs no more was free than asked",
    ),
    Condition("begin.free_bytes", "below", "end.free_bytes", means="by statvfs more was free after healing"),
)  # fmt: skip
WAS_SLOW = (
    Condition("begin.limit_bytes_per_s", "near", "args.mb_per_s", times=1e6, means="the kernel held the limit"),
    Condition(
        "end.measured_bytes_per_s", "at_most", "args.mb_per_s", times=1e6 * BURST,
        means="a node that wrote just before healing got no more than a bit above the limit",
    ),
)  # fmt: skip
WAS_READONLY = (
    Condition("begin.readonly", "equal", value=True, means="by its mount flags it was read-only"),
    Condition("begin.refused", "some", means="a write was refused"),
)

FAULTS = [
    Fault(
        "disk_full", "the checkpoints' disk has no space left", ("volume",), 5.0,
        fill, give_back, WAS_FULL, {"leave_mb": Arg(0, 0, 1_000_000, "MiB")}, target="all",
    ),
    Fault(
        "disk_slow", "the checkpoints' disk is slow", ("volume", "throttle"), 5.0,
        slow_disk, fast_disk, WAS_SLOW, {"mb_per_s": Arg(4, 0.1, 100_000, "MB/s a node")}, target="all",
    ),
    Fault(
        "disk_readonly", "the checkpoints' disk refuses writes", ("volume",), 5.0,
        turn_readonly, turn_writable, WAS_READONLY, target="all",
    ),
]  # fmt: skip
