"""How long live recovery takes, fault by fault: `python -m tests.validations recovery`.

As `tests.validations.restart`, with the chaos suite `live-kill`. Training is exact there, so every trial is held to the
same bits as its twin, whoever takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.validations import restart
from tests.validations.restart import Goal, Kind
from tests.validations.sitting import State

LIVE = Kind(
    "recovery", "live-kill", __doc__,
    {
        "worker": Goal("a worker, SIGKILL", 0.75, 60.0),
        "worker-allreduce": Goal("a worker inside the all-reduce", 0.75, 60.0, like="worker_kill"),
        "node-rank0": Goal("the node of rank 0", 1.5, 65.0, like="node_kill rank0"),
        # The target is 2 s after its restart, which the node agent begins after 0.5 s.
        "coordinator": Goal("the coordinator, started again after 0.5 s", 2.5, 60.0, like="coordinator_kill"),
        "isolated": Goal("a node's packets are dropped, all of them", 5.0, 100.0),
        "pair": Goal("packets between two workers are dropped", 5.0, 100.0),
        "hang": Goal("a worker hangs, SIGSTOP", 5.0, 100.0, like="hang n3"),
    },
)  # fmt: skip


FILE = LIVE.file


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    return restart.state(document, LIVE)


def main(argv: list[str]) -> int:
    """One sitting; as `restart`."""
    return restart.main(argv, LIVE)
