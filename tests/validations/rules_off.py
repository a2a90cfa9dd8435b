"""Rules that are switched off, one at a time, and what must then be seen. Called by `tests.validations.simulation`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

from proving_ground.bench.keeper import Keeper
from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.exchange import patience
from proving_ground.training.recovery import launch, live, rendezvous
from proving_ground.training.recovery import members as live_members
from proving_ground.training.recovery.live import Live
from proving_ground.training.recovery.members import BrokenError, Members
from tests.validations import live_runs, members

tend = Keeper.tend
torch_looks = dynamic.DynamicRendezvousHandler.num_nodes_waiting
undo, commit = Live._undo, Live.commit


@dataclass(frozen=True)
class Mutant:
    """One rule switched off, and the invariant that must then be seen not to hold."""

    of: Any
    name: str
    instead: Any
    breaks: str
    among: tuple[str, ...] = ()  # sorts of runs in which that is soon seen

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """While it is switched off."""
        with patch.object(self.of, self.name, self.instead):
            yield


class NoChance:
    """Random numbers that are none."""

    @staticmethod
    def randbelow(_most: int) -> int:
        """Always the same."""
        return 0


class Tireless(launch.Retries):
    """Tries for ever."""

    def wait_s(self, *, progress: bool) -> float:
        """Never gives up."""
        del progress
        return launch.BACKOFF_S


def forgets(self: Live, error: BrokenError) -> None:
    """Who loses a member first, and then the coordinator, does not wait for anybody at the next one."""
    if error.why == "peer_lost":
        self._together = 0
    undo(self, error)


def asks_alone(self: Live, *, meet: bool) -> None:
    """Each by its own clock, whatever the others wish."""
    commit(self, meet=meet and self._members.rank == 0)


def believes(places: Sequence[tuple[str, int]]) -> list[str]:
    """Whoever the coordinator names is there."""
    return ["open" if it == "refused" else it for it in live_runs.knocks(places)]


RESTART = {
    "no fence around checkpoints": Mutant(checkpoint, "check_generation", lambda *_about: None, "fence"),
    "the dead are never struck off": Mutant(rendezvous, "EXPIRY_S", 1e9, "finite"),
    "the membership is looked at as torch does": Mutant(
        rendezvous.Handler, "num_nodes_waiting", torch_looks, "eviction"
    ),
    "tries for ever": Mutant(members, "Retries", Tireless, "finite"),
    "never started again": Mutant(Keeper, "_is_due", lambda *_about: False, "finite"),
    "dead after one late heartbeat": Mutant(rendezvous, "EXPIRY_S", 0.6, "eviction"),
    "slow is dead": Mutant(patience, "LEAST_S", 0.0, "eviction"),
    "a rebooted node has its old name": Mutant(rendezvous, "secrets", NoChance, "reboot"),
    "started without power": Mutant(Keeper, "tend", lambda keeper, ended, _down: tend(keeper, ended, ()), "power"),
}
"""What is switched off → how. The invariants are those of `tests.validations.members`."""

LIVE = {
    "who is late is struck off": Mutant(live_members, "PARDON_S", 0.0, "eviction", ("calm",)),
    "nobody waits at a new coordinator": Mutant(live, "LAST_CALL_S", 0.0, "eviction", ("coordinator",)),
    "a lost member hides that the coordinator is": Mutant(Live, "_undo", forgets, "eviction", ("coordinator",)),
    "each asks by its own clock": Mutant(Live, "commit", asks_alone, "pace", ("single",)),
    "a life that is over is a member": Mutant(live_members, "knocks", believes, "quiet", ("single",)),
    "nobody looks whom it reaches": Mutant(Members, "_look_for_gaps", lambda *_about: None, "pace", ("single",)),
    "of two that do not reach each other none goes": Mutant(Live, "_stay_away", lambda *_it: None, "pace", ("single",)),
    "who is away waits for the dead": Mutant(live, "AWAY_S", 1e9, "finite", ("lost",)),
    "the state of who is behind is kept": Mutant(Live, "_bring_up_to_date", lambda *_about: None, "same", ("faults",)),
    "no fence around checkpoints": Mutant(checkpoint, "check_generation", lambda *_about: None, "fence", ("faults",)),
    "tries for ever": Mutant(live, "GIVE_UP_S", math.inf, "finite", ("poisoned",)),
    "never started again": Mutant(Keeper, "_is_due", lambda *_about: False, "finite", ("single",)),
}
"""The same, with the invariants of `tests.validations.live_jobs`."""
