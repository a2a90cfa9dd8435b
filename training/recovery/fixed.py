"""A job whose ranks stay the same: whoever is lost ends it, and a launcher starts all again. Called by `training.loop`.

`recovery.live.Live` is the other kind of membership; both have the same methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from proving_ground.training.exchange.communication import World

Learned = tuple[dict[str, Any], bool]
"""What is told about a step, and whether some rank was asked to stop."""


class Word(Protocol):
    """What the ranks tell each other beside gradients."""

    def wait(self) -> tuple[float, bool]:
        """The loss over all samples, and whether some rank has a wish; the same however often it is asked."""


class Fixed:
    """The ranks that met at the beginning."""

    may_undo = False
    """Whether a step may be given up and made again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        """Nobody has to be told."""

    def step(self, learn: Callable[..., Learned], *, wish: bool) -> Learned:
        """Make one step. All ranks stop after the same one."""
        return learn(wish=wish)

    def takes_part(self, ledger: Mapping[str, Any]) -> None:
        """The rank's share of a step is about to be summed: its own word afterwards is enough."""

    def summed(self, told: Word) -> None:
        """The gradients' sums have arrived; what the ranks told each other is waited for later, where it costs less."""

    def learned(self, *, wished: bool) -> None:
        """The step is made."""

    def judging(self, world: World) -> tuple[int, int]:
        """(part, parts) of the test split that this rank judges."""
        return world.rank, world.size
