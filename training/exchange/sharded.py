"""Models that are larger than a rank: every rank holds a part of each parameter (FSDP2). Called by `training.loop`.

torch's `fully_shard` cuts parameters, gradients and the optimizer's state along their first dimension, block by block.
A block's parameters are gathered right before it computes and dropped afterwards; its gradients are summed, and every
rank gets its part of the sums. With `replicas` the ranks are a table: each row of neighbours holds a whole model, cut
over the row, and sums go on down the columns (hybrid sharding). As with DDP the loss is divided by the samples of the
*global* batch and gradients are summed, so the update is the exact mean over samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from proving_ground.training.config import ConfigError, parts_of
from proving_ground.training.data import order
from proving_ground.training.device.precision import DTYPES
from proving_ground.training.exchange.communication import Bare, Exchange
from proving_ground.training.exchange.patience import START_S
from proving_ground.training.models.task import Blocks
from proving_ground.training.timing import Spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows
    from proving_ground.training.exchange.communication import Piece, World
    from proving_ground.training.models.task import Task


@dataclass
class ShardedExchange(Exchange):
    """In place of DDP's: blocks exchange parameters and gradients by themselves while forward and backward run."""

    spans: Spans = field(default_factory=lambda: Spans(torch.device("cpu")))  # of those exchanges

    def cut(self, batch: Rows, rank: int, size: int) -> list[Piece]:
        """A rank's part of the global batch in as many micro-batches as every other rank has: each gathers for all.

        The last is empty where a part is smaller by just the one sample.
        """
        mine, most = order.share(batch, rank, size), -(-len(batch) // size)
        count = order.passes(most, self.micro_batches, self.micro_batch)
        return list(enumerate(np.array_split(mine, count)))

    def computing(self, model: nn.Module, step: int, piece: int, *, last: bool) -> AbstractContextManager[None]:
        """Gradients are summed over ranks in each micro-batch: who waited for the last would hold them whole."""
        del model, step, piece, last
        return contextlib.nullcontext()

    def sending(self, gradients: torch.Tensor) -> None:
        """A block's gradients begin to be summed."""
        if not self._sizes:
            self.before_send()
        self._sizes.append(gradients.nbytes)

    def spent(self) -> dict[str, float]:
        """For the step's event: what the exchanges within forward and backward took."""
        return {"shard_s": round(self.spans.take(), 6)}


@dataclass(frozen=True)
class Timed:
    """A collective of FSDP2's, timed: torch asks such an object for memory, then calls it."""

    collective: Callable[..., dist.Work | None]
    spans: Spans
    before: Callable[[torch.Tensor], None]

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of the ordinary kind."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, **how: object
    ) -> dist.Work | None:
        """Exchange."""
        self.before(input_tensor)
        with self.spans.span():
            return self.collective(output_tensor, input_tensor, group=group, **how)


def exchanging(task: Task, module: nn.Module, config: Config, world: World) -> tuple[Bare, ShardedExchange]:
    """The model with its blocks' parameters cut over the ranks.

    Raises:
        ConfigError: a task of the user's own whose model cannot be cut; ranks that are no table.
    """
    blocks = blocks_to_cut(task, module)
    exchange = ShardedExchange(
        world.start_sum,
        casting=False,
        micro_batches=config.accumulate,
        micro_batch=config.micro_batch,
        spans=Spans(world.device),
    )
    mesh = mesh_of(world, config)
    exchange.groups = tuple(mesh.get_all_groups()) if config.replicas > 1 else ()
    policy = policy_of(config)
    for part in (*blocks, module):
        prepare(fully_shard(part, mesh=mesh, mp_policy=policy), exchange)
    return Bare(module), exchange


def blocks_to_cut(task: Task, module: nn.Module) -> Sequence[nn.Module]:
    """The blocks by which a model is cut, once it is known that torch can.

    Raises:
        ConfigError: there are none, two share a parameter, or one has no rows.
    """
    name = type(task).__name__
    if not isinstance(task, Blocks) or not (blocks := task.blocks(module)):
        raise ConfigError(f"parallel = 'fsdp' needs a method `blocks` of {name}")
    names = {id(it): path for path, it in module.named_parameters()}
    if scalars := [names[id(it)] for it in module.parameters() if it.ndim == 0]:
        raise ConfigError(f"parallel = 'fsdp': parameter {scalars[0]} of {name} is a scalar; give it the shape (1,)")
    cut: set[nn.Module] = set()
    taken: set[int] = set()
    for part in (*blocks, module):
        own = {id(it) for layer in beyond(part, cut) for it in layer.parameters(recurse=False)}
        if shared := sorted(names[it] for it in own & taken):
            raise ConfigError(f"parallel = 'fsdp': parameter {shared[0]} of {name} belongs to more than one block")
        taken |= own
        cut.add(part)
    return blocks


def beyond(part: nn.Module, cut: set[nn.Module]) -> Iterator[nn.Module]:
    """A module and those within it, without what was cut already."""
    yield part
    for child in part.children():
        if child not in cut:
            yield from beyond(child, cut)


def prepare(part: FSDPModule, exchange: ShardedExchange) -> None:
    """Let a block sum gradients (as they are: torch would take the mean), and let its exchanges be timed."""
    part.set_gradient_divide_factor(1.0)
    part.set_force_sum_reduction_for_comms(True)
    gather = Timed(dist.all_gather_single, exchange.spans, lambda _: None)
    scatter = Timed(dist.reduce_scatter_single, exchange.spans, exchange.sending)
    part.set_custom_all_gather(gather)  # type: ignore[arg-type]  # all that it asks of one
    part.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]  # same


def mesh_of(world: World, config: Config) -> DeviceMesh:
    """All ranks that train together: in one row, or a row for each replica."""
    kind, parts = world.device.type, parts_of(config, world.size)
    if config.replicas == 1:
        return DeviceMesh.from_group(world.group, kind) if world.group else init_device_mesh(kind, (world.size,))
    table = torch.arange(world.size).view(config.replicas, parts)
    timeout = timedelta(seconds=config.timeout_s or START_S)
    groups = [
        dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
            lines.tolist(), timeout=timeout, backend=world.backend
        )[0]
        for lines in (table.T, table)
    ]
    return DeviceMesh.from_group(groups, kind, mesh=table, mesh_dim_names=("replicas", "parts"))


def policy_of(config: Config) -> MixedPrecisionPolicy:
    """What parameters are gathered as; gradients are summed in FP32. Autocast chooses operations, as elsewhere."""
    kind = DTYPES.get(config.precision)
    if kind is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, cast_forward_inputs=False)
