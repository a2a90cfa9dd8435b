"""Local updates: every rank learns alone, and all average every `sync_every` steps. Called by `training.loop`.

LocalSGD averages the parameters (Stich, 2019); DiLoCo averages how far they have come since the last time, and an outer
optimizer takes a step of that (Douillard et al., 2023). Both algorithms are torchft's (`torchft.local_sgd`); what
stands here for its manager sums over whoever takes part, by whatever mechanism. Between two averages nothing is
exchanged, and the ranks' states differ: only a step that ends with one can be saved, judged, or gone back to.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from proving_ground.training.config import ConfigError
from proving_ground.training.exchange.communication import Bare, Exchange

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torchft.local_sgd import DiLoCo, LocalSGD

    from proving_ground.training.config import Config
    from proving_ground.training.exchange.communication import World
    from proving_ground.training.timing import NoWatch, Watch


@dataclass
class LocalExchange(Exchange):
    """In place of DDP's: gradients stay where they are."""

    def computing(self, model: nn.Module, step: int, piece: int, *, last: bool) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        del model, step, piece, last
        return contextlib.nullcontext()

    def told(self, device: torch.device, *, wish: bool) -> OwnTold:  # type: ignore[override]  # same methods
        """Nothing is told between two averages, nor is a rank's wish."""
        del wish
        return OwnTold(device)


class OwnTold:
    """As `communication.Told`, of this rank alone."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, loss: Tensor) -> None:
        """Add one micro-batch's part of the loss."""
        self._loss += loss.detach()

    def start(self) -> None:
        """Nobody is told."""

    def wait(self) -> tuple[float, bool]:
        """The loss over this rank's samples; the ranks stop together, after an average."""
        return float(self._loss), False


class Mean:
    """Stands where torchft expects its manager: who takes part is known before the round, and what fails raises."""

    _use_async_quorum = False

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._waiting = exchange, list[torch.Tensor]()
        self.size = 1

    def start_quorum(self) -> None:
        """The members were agreed on before the round."""

    def should_commit(self) -> bool:
        """Every sum has arrived, or waiting for it had raised."""
        return True

    def current_step(self) -> int:
        """Which fragment is due: there is one."""
        return 0

    def disallow_state_dict_read(self) -> None:
        """State is read by the rank itself, between two steps."""

    def allow_state_dict_read(self) -> None:
        """The same."""

    def register_state_dict_fn(self, *_: object) -> None:
        """State is saved by `training.checkpoints.saving`."""

    def allreduce(self, values: Tensor, *, should_quantize: bool = False) -> Mean:
        """Put a tensor in line; what is returned has a `wait`, after which all in line are means over the ranks."""
        del should_quantize
        self._waiting.append(values)
        return self

    def wait(self) -> None:
        """Exchange all that is in line at once: a ring has its latency only once then."""
        if not self._waiting:
            return
        flat = torch.cat([values.reshape(-1) for values in self._waiting])
        self._exchange.before_send()
        assert self._exchange.start_sum is not None  # noqa: S101 - `exchanging` has set it
        self._exchange.start_sum(flat).wait()
        flat /= self.size
        for values, mean in zip(self._waiting, torch.split(flat, [it.numel() for it in self._waiting]), strict=True):
            values.copy_(mean.view_as(values))
        self._waiting.clear()


class Steps(torch.optim.Optimizer):
    """Counts steps for torchft, which hooks itself behind an optimizer's: behind the real one's its time would hide."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401 - torch's signature
        """One step was done."""


class LocalUpdates:
    """One rank's rounds. A round begins after an average, in a state that all ranks have but for their optimizers.

    The methods are those of `exchange.updates.EveryStep`.
    """

    alone = True

    def __init__(
        self,
        config: Config,
        module: nn.Module,
        inner: torch.optim.Optimizer,
        exchange: Exchange,
        watch: Watch | NoWatch,
    ) -> None:
        self.every, self._module, self._inner, self._exchange = config.sync_every, module, inner, exchange
        self._watch = watch
        self.outer: torch.optim.Optimizer | None = None
        if config.updates == "diloco":
            self.outer = torch.optim.SGD(
                module.parameters(), lr=config.outer_lr, momentum=config.outer_momentum, nesterov=True
            )
        self._round = contextlib.ExitStack()
        self._kept: tuple[int, list[Any]] | None = None  # the step that this round began after, and the state there

    def weight(self, mine: int, _of_all: int) -> float:
        """What one sample counts for in this rank's own loss."""
        return 1 / mine if mine else 0.0

    def at_rest(self, step: int) -> bool:
        """Whether all ranks have averaged after this step."""
        return step % self.every == 0

    def begin(self, step: int, *, keep: bool) -> None:
        """Before a rank's step after `step` others: if a round begins, from the parameters as they are now.

        With `keep`, `undo` can go back to here.
        """
        if not self.at_rest(step):
            return
        self._round.close()
        self._steps, self._mean = Steps(), Mean(self._exchange)
        self._round.enter_context(self._algorithm())
        self._kept = (step, copy.deepcopy([it.state_dict() for it in self._parts()])) if keep else None

    def done(self, step: int, world: World, *, wish: bool, told: bool) -> bool:
        """After a rank's own step, number `step`: average if the round is over; whether some rank has a wish.

        Raises:
            RuntimeError, BrokenError: a sum failed; parameters are still the rank's own.
        """
        del told
        with self._watch.part("comm"):
            if not self.at_rest(step):
                self._steps.step()
                return False
            wishes = torch.tensor([float(wish)], device=world.device)
            self._mean.size = world.size
            self._mean.allreduce(wishes)
            self._steps.step()
            self._kept = None
            return bool(wishes > 0)

    def undo(self, step: int) -> int:
        """Forget the round in hand, if there is one; the step to go on after."""
        if self._kept is None:
            return step
        step, states = self._kept
        for part, state in zip(self._parts(), copy.deepcopy(states), strict=True):
            part.load_state_dict(state)
        return step

    def _parts(self) -> list[Any]:
        return [self._module, self._inner, *([self.outer] if self.outer else [])]

    def _algorithm(self) -> LocalSGD | DiLoCo:
        from torchft.local_sgd import DiLoCo, LocalSGD  # noqa: PLC0415 - not on every platform

        if self.outer:
            return DiLoCo(self._mean, [self._module], self._steps, self.outer, self.every)
        return LocalSGD(self._mean, self._module, self._steps, self.every)


def exchanging(module: nn.Module, config: Config, world: World) -> tuple[Bare, LocalExchange]:
    """What the loop uses in place of DDP and its hook.

    Raises:
        ConfigError: there is no torchft.
    """
    try:
        import torchft.local_sgd  # noqa: F401, PLC0415 - not on every platform
    except ImportError:
        raise ConfigError(
            f"updates = {config.updates!r} needs torchft: pip install '.[live]' (Linux, x86-64)"
        ) from None
    return Bare(module), LocalExchange(
        world.start_sum, casting=False, micro_batches=config.accumulate, micro_batch=config.micro_batch
    )
