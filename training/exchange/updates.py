"""Ranks that make every update together: the strategy of a job without local updates. Called by `training.loop`.

`exchange.local.LocalUpdates` is the other one; both have the same methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from proving_ground.training.exchange.communication import World


class EveryStep:
    """Gradients are summed at every step: whoever has the sums has the step."""

    alone = False
    """Whether ranks learn alone between two averages: then a step counts for all only once they have averaged."""
    outer: torch.optim.Optimizer | None = None
    """The optimizer of the averages, where they have one."""

    def weight(self, mine: int, of_all: int) -> float:
        """What one sample counts for in a rank's loss, so that the sum over the ranks is a mean over all samples."""
        return 1 / of_all if mine else 0.0

    def at_rest(self, _step: int) -> bool:
        """Whether all ranks have the same parameters after a step: always."""
        return True

    def begin(self, step: int, *, keep: bool) -> None:
        """Before a step: nothing is to be kept."""

    def done(self, _step: int, _world: World, *, wish: bool, told: bool) -> bool:
        """After a step: whether some rank has a wish, as they told each other beside the gradients."""
        del wish
        return told

    def undo(self, step: int) -> int:
        """The step to go on after, where the one in hand is given up: nothing has changed."""
        return step
