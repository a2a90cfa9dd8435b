"""Buckets of integers on their way: when they leave, what they hold, and what happens to gradients that do not come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proving_ground.training.config import from_dict
from proving_ground.training.exchange.exact import ExactExchange

CPU = torch.device("cpu")


class Arrived:
    """A sum over one rank: done at once."""

    def wait(self) -> None:
        """Nothing to wait for."""


class Net(nn.Module):
    """Three layers; the middle one may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, values: Tensor, skip: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - a test's own
        """Through all layers, or past the middle one."""
        for number, layer in enumerate(self.layers):
            values = values if skip and number == 1 else layer(values)
        return values.sum()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def exchange_of(net: Net, log: list[str]) -> ExactExchange:
    """One parameter a bucket; the log gets a line for each that leaves."""
    config = from_dict({"reduction": "exact", "shards": 2, "global_batch": 4, "bucket_mb": 1e-6})
    exchange = ExactExchange(net, config, CPU)

    def send(sums: Tensor) -> Any:
        log.append(f"sent {len(sums) - 1}")
        return Arrived()

    exchange.start_sum = send
    return exchange


def passes(net: Net, exchange: ExactExchange, inputs: list[Tensor], *, skip: bool = False) -> list[Tensor]:
    """Forward and backward of each shard; the gradients afterwards. `skip`: the middle layer is in the first only."""
    for shard, values in enumerate(inputs):
        with exchange.computing(net, 3, shard, last=shard == len(inputs) - 1):
            net(values, skip=skip and shard > 0).backward()
    exchange.collect()
    gradients = [parameter.grad for parameter in net.parameters()]
    assert all(gradient is not None for gradient in gradients)
    found = [gradient.clone() for gradient in gradients if gradient is not None]
    net.zero_grad()
    return found


def expected(net: Net, inputs: list[Tensor], *, skip: bool = False) -> list[Tensor]:
    """The same by autograd alone, in double precision."""
    alone = Net().double()
    alone.load_state_dict(net.state_dict())
    for shard, values in enumerate(inputs):
        alone(values.double(), skip=skip and shard > 0).backward()
    return [parameter.grad.float() for parameter in alone.parameters() if parameter.grad is not None]


INPUTS = [torch.tensor([[0.5, -1.0]]), torch.tensor([[2.0, 0.25]])]


def test_buckets_leave_while_backward_of_the_last_shard_goes_on(net: Net) -> None:
    log: list[str] = []
    exchange = exchange_of(net, log)
    net.get_parameter("layers.0.weight").register_hook(  # type: ignore[no-untyped-call]
        lambda _: log.append("backward has come to the first layer")
    )
    found = passes(net, exchange, INPUTS)
    first = log.index("backward has come to the first layer", 1)  # the second time is the last shard's
    assert log[0] == "backward has come to the first layer", "nothing leaves in the first shard"
    assert log.count("sent 4") == log.count("sent 2") == 3
    assert sum(line.startswith("sent") for line in log[:first]) >= 3
    torch.testing.assert_close(found, expected(net, INPUTS), rtol=1e-6, atol=1e-11)


def test_a_layer_without_a_gradient_in_some_shard_counts_as_zero_there(net: Net) -> None:
    log: list[str] = []
    found = passes(net, exchange_of(net, log), INPUTS, skip=True)
    torch.testing.assert_close(found, expected(net, INPUTS, skip=True), rtol=1e-6, atol=1e-11)
    assert log == ["sent 2", "sent 4"] * 3, "in the same order on every rank"


def test_every_step_begins_at_zero(net: Net) -> None:
    exchange = exchange_of(net, [])
    assert all(map(torch.equal, passes(net, exchange, INPUTS), passes(net, exchange, INPUTS)))


def test_a_step_that_was_given_up_leaves_nothing_behind(net: Net) -> None:
    exchange = exchange_of(net, [])
    undisturbed = passes(net, exchange, INPUTS)
    with exchange.computing(net, 4, 0, last=False):
        net(INPUTS[1] * 7).backward()
    with exchange.computing(net, 4, 1, last=True):
        net(INPUTS[0] * 7).backward()
    exchange.forget()
    assert all(map(torch.equal, passes(net, exchange, INPUTS), undisturbed))


def test_bad_gradients_stop_the_step(net: Net) -> None:
    with pytest.raises(RuntimeError, match="a gradient of step 4 is not finite, or above"):
        passes(net, exchange_of(net, []), [INPUTS[0], INPUTS[1] * float("inf")])
