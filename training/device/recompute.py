"""Activation checkpointing: blocks compute their activations again in backward instead of keeping them.

Called by `training.loop`. Costs one more forward of each block, and leaves the memory of one block's activations.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint

from proving_ground.training.config import ConfigError
from proving_ground.training.models.task import Blocks

if TYPE_CHECKING:
    from torch import nn

    from proving_ground.training.models.task import Task


def recompute(task: Task, module: nn.Module) -> None:
    """Let every block of a model compute its activations again; parameters keep their names and their order.

    Raises:
        ConfigError: a task of the user's own that does not say which its blocks are.
    """
    if not isinstance(task, Blocks):
        raise ConfigError(f"activation_checkpointing = true needs a method `blocks` of {type(task).__name__}")
    for block in task.blocks(module):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
