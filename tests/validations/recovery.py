"""How long live recovery takes, largest of at least 59 trials a fault: `python -m tests.validations recovery`.

Each sitting does as many rounds of the chaos suite `live-kill` as its minutes allow and keeps what every trial came to.
Training is exact there, so every trial is held to the same bits as its twin, whoever takes part.
"""

from __future__ import annotations

from tests.validations import restart
from tests.validations.restart import Goal, Kind

LIVE = Kind(
    "recovery", "live-kill", __doc__,
    {
        "worker": Goal(0.75, 8.0), "worker-allreduce": Goal(0.75, 8.0), "node-rank0": Goal(1.5, 9.0),
        # Asked is 2 s after its restart, which the node agent begins after 0.5 s.
        "coordinator": Goal(2.5, 8.0),
        "isolated": Goal(5.0, 16.0), "pair": Goal(5.0, 16.0), "hang": Goal(5.0, 16.0),
    },
)  # fmt: skip


def main(argv: list[str]) -> int:
    """One sitting; as `restart`."""
    return restart.main(argv, LIVE)
