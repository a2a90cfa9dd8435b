"""What the ranks of one job have to share: everything, but for what they learn alone between two averages."""

from __future__ import annotations

import pytest

from proving_ground.reports.agreement import agreement
from proving_ground.reports.history import Mark


def marks(parameters: tuple[str, str], optimizer: tuple[str, str]) -> list[Mark]:
    return [Mark(1.0, 10, rank, parameters[rank], optimizer[rank], None) for rank in (0, 1)]


@pytest.mark.parametrize("updates", ["local", "diloco"])
def test_the_state_of_an_optimizer_is_a_rank_s_own_where_it_learns_alone(updates: str) -> None:
    assert not agreement(marks(("p", "p"), ("o", "x")), {"updates": updates}).problems
    (found,) = agreement(marks(("p", "q"), ("o", "x")), {"updates": updates}).problems
    assert found.why == "parameters: ranks 0 and 1 of generation 0 differ after step 10"


@pytest.mark.parametrize("training", [{}, {"updates": "every_step"}])
def test_else_all_ranks_have_the_same(training: dict[str, str]) -> None:
    (found,) = agreement(marks(("p", "p"), ("o", "x")), training).problems
    assert found.why == "optimizer: ranks 0 and 1 of generation 0 differ after step 10"
