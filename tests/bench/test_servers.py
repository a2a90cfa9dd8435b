"""Ports that are chosen before they are bound."""

from __future__ import annotations

import random

from proving_ground.bench import servers


def test_whoever_seeds_random_numbers_seeds_no_ports() -> None:
    """Trainings seed them: two processes that train would choose the same port at the same moment."""
    chosen = set()
    for _ in range(8):
        random.seed(0)
        chosen.add(servers.free_port(0))
    assert len(chosen) > 1
    assert all(port in servers.BELOW for port in chosen)
