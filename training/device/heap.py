"""Freed memory stays with the process, so that a step's tensors cost no page faults. Called by `training.loop`.

glibc returns freed blocks to the kernel, each from a size on that follows from what was freed before. A training step
on a CPU allocates and frees the same activations every time. Measured with `digits` and 192 samples: 10,000 to 23,000
page faults a step, how many being a matter of chance for each process and then the same for all of its life. One rank
computed in 0.37 s what another did in 0.53 s, and the smallest size of a benchmark varied by 12 % from trial to trial.
PyTorch's performance tuning guide advises the same by way of another allocator.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
LARGE = 2**20  # bytes from which a block goes back to the system
NEVER = 2**31 - 1  # bytes that may lie free at the end of the heap
LARGEST = (2**30, 2**25)  # bytes of a block from the heap; the second is the most that an older glibc takes


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed; False where it is none that can (macOS, musl)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return any(mallopt(MMAP_THRESHOLD, size) for size in LARGEST) and bool(mallopt(TRIM_THRESHOLD, NEVER))


def give_back_freed_memory() -> bool:
    """Ask the C library to give large blocks back at once: blocks of a model that come and go would pile up else."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(MMAP_THRESHOLD, LARGE))
