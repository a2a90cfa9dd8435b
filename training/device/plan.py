"""How much memory each rank of a training needs, before anything starts. Called by `pg training plan`.

The model is built from torch's fake tensors, which have shapes and no memory, so a model of any size can be planned
anywhere. Parameters, gradients and the optimizer's state follow from the shapes. Activations are what autograd
keeps of a forward there: of one and of two samples, from which any number follows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from proving_ground.training.config import ConfigError, parts_of
from proving_ground.training.data import order
from proving_ground.training.device.precision import DTYPES
from proving_ground.training.device.recompute import recompute
from proving_ground.training.exchange.sharded import blocks_to_cut
from proving_ground.training.models.task import Batch, Blocks, task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from proving_ground.training.config import Config
    from proving_ground.training.models.task import Task

MIB, GIB = 2**20, 2**30
WIDTH = 4
"""Bytes of a value in FP32, which weights, gradients and the optimizer's state are always in."""
FINGERPRINT = 8 + 8 + 1
"""Bytes of a value while a fingerprint is taken: each rank has the model as FP64, and signs as FP64 and as bytes."""
KEPT = 0.75
"""Of activations: memory in pieces that the next step's do not fit into. Measured with layers of width 256 and 2,048:
0.3 to 0.73."""

Shape = tuple[int, ...]


class TooLargeError(ConfigError):
    """A training that does not fit, in one line."""


@dataclass(frozen=True)
class Model:
    """What is known of a model that was never built."""

    shapes: tuple[Shape, ...]  # of its parameters
    block: int  # values of the largest block
    outside: int  # values outside of blocks
    kept: tuple[int, int]  # bytes of activations that one sample and two samples leave
    moments: int  # values that the optimizer keeps for each of the model's

    def values(self, ranks: int) -> int:
        """Values of the rank that holds most: of every parameter the first rows, as many as the others or more."""
        return sum(-(-shape[0] // ranks) * math.prod(shape[1:]) if shape else 1 for shape in self.shapes)

    def activations(self, samples: int) -> int:
        """Bytes that so many samples leave."""
        one, two = self.kept
        return one + (two - one) * (samples - 1)


@dataclass(frozen=True)
class Need:
    """Bytes of the rank that needs most."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    copy: int
    pinned: int  # a copy in host memory beside a GPU
    kept: int
    starting: int  # in host memory
    apart: int  # of gradients and activations, what is never there beside the rest of them
    fingerprint: int  # in host memory
    more: int = 0  # that a fingerprint takes where the host's memory is the device's, beyond what a step does

    @property
    def training(self) -> int:
        """The most at once."""
        state = self.parameters + self.gradients + self.optimizer
        return state + self.gathered + self.activations + self.copy + self.kept - self.apart + self.more


def look_at(config: Config) -> Model:
    """Build a model without memory and count.

    Raises:
        ConfigError: nothing can be planned for this model.
    """
    task = task_of(config.model)(config)
    if not task.learns:
        raise ConfigError(f"model = {config.model!r}: computes nothing, so there is no memory to plan")
    with torch.device("meta"):
        module = task.model()
    mode = FakeTensorMode()
    make_fake(module, mode, DTYPES.get(config.precision) if config.parallel == "fsdp" else None)
    if config.parallel == "fsdp":
        blocks_to_cut(task, module)
    blocks = [values_in(block.parameters()) for block in task.blocks(module)] if isinstance(task, Blocks) else []
    shapes = tuple(tuple(it.shape) for it in module.parameters())
    outside = values_in(module.parameters()) - sum(blocks)
    kept = [kept_bytes(task, module, config, mode, samples) for samples in (1, 2)]
    if config.activation_checkpointing:  # and backward computes one block's anew
        recompute(task, module)
        again = [kept_bytes(task, module, config, mode, samples) for samples in (1, 2)]
        kept = [less + (all_ - less) // len(blocks) for less, all_ in zip(again, kept, strict=True)]
    return Model(shapes, max(blocks, default=0), outside, (kept[0], kept[1]), moments_of(task.optimizer(module)))


def moments_of(optimizer: torch.optim.Optimizer) -> int:
    """Values that an optimizer keeps for each of a parameter: it makes a step with a small one, and is done with."""
    small = nn.Parameter(torch.zeros(2, 3))
    small.grad = torch.ones_like(small)
    optimizer.param_groups[:] = [{**optimizer.param_groups[0], "params": [small]}]
    optimizer.step()
    kept = optimizer.state.get(small, {}).values()
    return sum(isinstance(it, torch.Tensor) and it.shape == small.shape for it in kept)


def make_fake(module: nn.Module, mode: FakeTensorMode, kind: torch.dtype | None = None) -> None:
    """Put fake tensors in place of a model's: they can be computed with where meta tensors alone cannot.

    `kind`: what parameters are gathered as; autocast would keep a copy of each that is not.
    """
    fakes: dict[int, nn.Parameter] = {}  # layers may share a parameter

    def fake(tensor: Tensor, kind: torch.dtype | None = None) -> Tensor:
        with mode:
            return torch.empty(tensor.shape, dtype=kind if kind and tensor.is_floating_point() else tensor.dtype)

    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            fakes.setdefault(id(parameter), nn.Parameter(fake(parameter, kind)))
            setattr(part, name, fakes[id(parameter)])
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, fake(buffer))


def values_in(parameters: Iterable[Tensor]) -> int:
    """How many."""
    return sum(it.numel() for it in parameters)


def kept_bytes(task: Task, module: nn.Module, config: Config, mode: FakeTensorMode, samples: int) -> int:
    """Bytes that autograd keeps of a forward, parameters left out; each tensor once, views with what they show."""
    own = {id(it) for it in module.parameters()}
    storages: dict[int, int] = {}
    held: list[Tensor] = []  # so that no other gets their number

    def keep(tensor: Tensor) -> Tensor:
        base = tensor if tensor._base is None else tensor._base  # noqa: SLF001 - the only way to know it
        if id(base) not in own:
            held.append(base)
            storages[id(base)] = base.numel() * base.element_size()
        return tensor

    inputs, targets, rows = task.batch("train", np.arange(samples) % task.rows)
    batch = Batch(mode.from_tensor(inputs), mode.from_tensor(targets), rows)
    kind = DTYPES.get(config.precision)
    with (
        mode,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", kind, enabled=kind is not None),
    ):
        loss = task.loss(module, batch)
    del loss
    return sum(storages.values())


def need(model: Model, config: Config, ranks: int) -> Need:
    """What one of so many ranks needs.

    FSDP2 keeps what is outside of blocks whole through forward and backward, and its gradients; of the blocks it has
    two whole at a time (the next is gathered before the last is dropped) and the gradients of one, and it sums from a
    buffer that is as large as the larger of the two. Its gradients come as activations go, unless a micro-batch left
    some before. DDP's stay in their buckets; those of micro-batches add up outside of them. DDP copies the parameters
    once at its start. On a CPU the C library keeps that memory, and what activations leave, in pieces
    (`training.device.heap`).
    """
    cut = config.parallel == "fsdp"
    part = WIDTH * model.values(parts_of(config, ranks) if cut else 1)
    wide = DTYPES[config.precision].itemsize if cut and config.precision in DTYPES else WIDTH
    block, outside = model.block, model.outside
    gathered = wide * (2 * outside + 3 * block) + WIDTH * max(outside, block) if cut else 0
    samples = -(-config.global_batch // ranks)
    activations = model.activations(order.at_once(samples, config.accumulate, config.micro_batch))
    once, cuda = order.passes(samples, config.accumulate, config.micro_batch) == 1, config.device == "cuda"
    copy = (1 + model.moments) * part if config.checkpoint_dir else 0
    found = Need(
        part, part if cut or once else 2 * part, model.moments * part, gathered, activations,
        copy=0 if cuda else copy, pinned=copy if cuda else 0, kept=0 if cut or cuda else part + int(KEPT * activations),
        starting=WIDTH * (model.values(1) + (block if cut else 0)), apart=min(part, activations) if cut and once else 0,
        fingerprint=int(FINGERPRINT * model.values(1)) if config.fingerprint_every else 0,
    )  # fmt: skip
    meanwhile = found.parameters + found.optimizer + found.copy + found.kept + (0 if cut else found.gradients)
    return found if cuda else replace(found, more=max(0, meanwhile + found.fingerprint - found.training))


def fits(needed: Need, config: Config, memory: int) -> bool:
    """Whether that much memory suffices; a GPU's ranks start in the host's memory, which nobody has told of."""
    return max(needed.training, 0 if config.device == "cuda" else needed.starting) <= memory


def refuse(model: Model, config: Config, ranks: int, memory: int) -> None:
    """Refuse what does not fit.

    Raises:
        TooLargeError: in one line what it needs, and what would fit.
    """
    needed = need(model, config, ranks)
    if fits(needed, config, memory):
        return
    enough = enough_ranks(model, config, ranks, memory)
    most = max(needed.training, needed.starting if config.device != "cuda" else 0)
    way = f"{enough} ranks would do" if enough else advice(config)
    raise TooLargeError(f"does not fit: a rank needs {most / GIB:.3g} GiB of {memory / GIB:.3g} GiB; {way}")


def enough_ranks(model: Model, config: Config, ranks: int, memory: int) -> int | None:
    """The smallest number above `ranks` that does; None where none does.

    The largest that still changes anything needs least.
    """
    step = config.replicas
    most = step * max([config.global_batch, *(shape[0] for shape in model.shapes if shape)])
    if not fits(need(model, config, most), config, memory):
        return None
    later = range(ranks + step, most + step, step)
    return next((it for it in later if fits(need(model, config, it), config, memory)), None)


def advice(config: Config) -> str:
    """What to try where no number of ranks suffices."""
    if config.parallel == "ddp":
        return "no number of ranks does: parallel = 'fsdp' cuts the model over them"
    again = "" if config.activation_checkpointing else "activation_checkpointing = true, "
    return f"no number of ranks does: try {again}a smaller micro_batch or device = 'cuda'"


def table(model: Model, config: Config, ranks: int) -> list[str]:
    """The plan for people, a line each."""
    head = f"{config.model}: {model.values(1) / 1e6:.6g} million parameters, {ranks} ranks, each on a device of its own"
    return [
        head,
        *(f"  {name:<16}{size / MIB:>12.1f} MiB  {words}" for name, size, words in parts(model, config, ranks)),
    ]


def document(model: Model, config: Config, ranks: int, room: int) -> str:
    """The same for machines (docs/machines.md), of what fits into so many bytes; 0: nobody said into how many."""
    rows = [{"name": name, "bytes": size, "words": words} for name, size, words in parts(model, config, ranks)]
    return json.dumps({
        "schema": "proving-ground/training-plan/1", "model": config.model, "parameters": model.values(1),
        "ranks": ranks, "memory_bytes": room or None, "fits": True if room else None, "parts": rows,
    }, ensure_ascii=False)  # fmt: skip


def parts(model: Model, config: Config, ranks: int) -> list[tuple[str, int, str]]:
    """What a rank needs: of what, bytes, in words."""
    needed = need(model, config, ranks)
    cut = f"cut over {parts_of(config, ranks)} ranks" if config.parallel == "fsdp" else "whole on every rank"
    kept = "what blocks are given, and one block's" if config.activation_checkpointing else "all that autograd keeps"
    return [
        ("parameters", needed.parameters, f"4 bytes each, {cut}"),
        ("gradients", needed.gradients, "the same" + ", twice: micro-batches" * (needed.gradients > needed.parameters)),
        ("optimizer", needed.optimizer, f"{model.moments} × parameters"),
        ("gathered", needed.gathered, "FSDP2: what is outside of blocks, two blocks, their gradients, a buffer"),
        ("activations", needed.activations, f"of one micro-batch: {kept}, counted on fake tensors"),
        ("checkpoint copy", needed.copy, "parameters and optimizer, while they are written"),
        ("kept", needed.kept, "freed, and kept by the C library: DDP's copy at its start, pieces of activations"),
        ("training", needed.training, most_of(needed)),
        ("fingerprint", needed.fingerprint, "host memory: the whole model as FP64 and a row of signs, for a moment"),
        ("pinned copy", needed.pinned, "host memory beside a GPU: what is written of a checkpoint"),
        ("starting", needed.starting, "host memory: the whole model once, before it is cut"),
    ]


def most_of(needed: Need) -> str:
    """What the most at once is made of."""
    if needed.more:
        return "parameters, optimizer and copies, and a fingerprint beside them"
    return "all of these" + ", of gradients and activations the larger" * bool(needed.apart)


UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MiB": MIB, "GiB": GIB}


def memory_of(text: str) -> int:
    """Bytes that a text such as `16GiB` means.

    Raises:
        ConfigError: it means none.
    """
    number = text.rstrip("GMiB")
    try:
        size = float(number) * UNITS[text.removeprefix(number).strip()]
    except (ValueError, KeyError):
        size = 0.0
    if not 0 < size < math.inf:
        raise ConfigError(f"--memory {text}: must be a size above 0 such as 16GiB, 80GB or 512MiB")
    return int(size)


def plan(config: Config, ranks: int, memory: str, tell: Callable[[str], None], *, machine: bool = False) -> None:
    """Tell what every rank needs, a `machine` by one document; with a memory refuse what does not fit.

    Raises:
        ConfigError: it does not fit, or the words make no sense.
    """
    if ranks < 1:
        raise ConfigError(f"--ranks {ranks}: must be at least 1")
    room = memory_of(memory) if memory else 0
    model = look_at(config)
    if machine:
        if room:
            refuse(model, config, ranks, room)
        tell(document(model, config, ranks, room))
        return
    for line in table(model, config, ranks):
        tell(line)
    if room:
        refuse(model, config, ranks, room)
        tell(f"fits into {room / GIB:.3g} GiB")
