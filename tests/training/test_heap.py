"""Freed memory stays with the process: the tensors of a step cost no page faults from the second on."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from proving_ground.training.device import heap

FAULTS = """
import resource, sys
import torch
from proving_ground.training.device import heap
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert heap.keep_freed_memory()
def step():
    grown = torch.ones(2**20)
    return float((grown * 2).sum())
for _ in range(20):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_a_step_costs_no_page_faults() -> None:
    assert faults("keep") < 50  # of 20 blocks of 4 MiB, 1,024 pages each


def test_a_library_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __init__(self, _: None) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Other)
    assert not heap.keep_freed_memory()
