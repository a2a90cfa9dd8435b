"""Gradients on their way: what a sum may write to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from proving_ground.training.exchange.communication import Exchange


class Sums:
    """Sums that write when they are told to."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def start(self, values: torch.Tensor) -> Any:
        self.values.append(values)
        return self

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout
        self.values[-1].fill_(9.0)
        return True


def test_a_sum_that_was_given_up_writes_into_nobody_s_gradients() -> None:
    sums = Sums()
    exchange, gradients = Exchange(sums.start, casting=False, apart=True), torch.ones(3)
    exchange.send(gradients)
    exchange.forget()
    sums.wait()
    assert gradients.tolist() == [1.0, 1.0, 1.0]
    exchange.send(gradients)
    assert exchange.collect()
    assert gradients.tolist() == [9.0, 9.0, 9.0]


@pytest.mark.parametrize("casting", [False, True])
def test_memory_of_sums_is_used_again_but_not_that_of_one_given_up(*, casting: bool) -> None:
    sums = Sums()
    exchange = Exchange(sums.start, casting, apart=True)

    def places(*sizes: int) -> list[int]:
        for size in sizes:
            exchange.send(torch.ones(size))
        return [values.data_ptr() for values in sums.values[-len(sizes) :]]

    first = places(3, 5)
    exchange.collect()
    assert places(3, 5) == first
    exchange.forget()
    assert not set(places(3, 5)) & set(first), "somebody may still write there"
    exchange.collect()
    places(7, 3)  # the buckets are others now
    assert [len(values) for values in sums.values[-2:]] == [7, 3]
    assert {values.dtype for values in sums.values} == {torch.half if casting else torch.float}


def test_else_it_writes_where_the_gradients_are() -> None:
    sums = Sums()
    exchange, gradients = Exchange(sums.start, casting=False), torch.ones(3)
    exchange.send(gradients)
    assert sums.values[0] is gradients
