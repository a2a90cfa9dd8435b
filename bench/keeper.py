"""What a kubelet would do: start a node's processes again when they have ended. Called by `bench.drive`.

The launchers get over the end of a worker by themselves; this is for the end of a launcher, of the coordinator, or of a
whole node, and for a job that gave up and is started again by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from proving_ground.bench.protocols import ProcessExit, ProcessSpec
from proving_ground.training.events import GAVE_UP, MISTAKE

AGAIN_S = 0.5  # from an end to the next start
BY_HAND_MAX = 5  # times that a job is started again by hand


def nobody(spec: ProcessSpec) -> None:
    """End no process: each is on its own."""
    del spec


@dataclass
class Keeper:
    """Knows which processes should run, and starts those again that do not.

    With `together` they are one: the end of one ends all, and they start when every one of their nodes has power.
    """

    specs: Sequence[ProcessSpec]
    start: Callable[[ProcessSpec, int], None]  # with how often it was started before
    now: Callable[[], float]
    together: bool = False
    end: Callable[[ProcessSpec], None] = nobody  # SIGKILL, where one may still run
    starts: dict[str, int] = field(default_factory=dict)
    by_hand: int = 0
    outdated: set[str] = field(default_factory=set)  # those that run by a command that is another one now
    _due: dict[str, float] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _gave_up: set[str] = field(default_factory=set)
    _mistaken: set[str] = field(default_factory=set)  # of those, the ones that were told what cannot be

    def tend(
        self, ended: Mapping[str, ProcessExit], down: Collection[str], anew: Sequence[ProcessSpec] | None = None
    ) -> None:
        """Take note of what ended, and of commands that are other ones now; start what is due on nodes with power."""
        for name, it in ended.items():
            self.outdated.discard(name)
            if it.code in (0, MISTAKE, GAVE_UP):
                (self._gave_up if it.code else self._done).add(name)
                self._mistaken |= {name} if it.code == MISTAKE else set()
            else:
                self._due[name] = self.now() + AGAIN_S
        if anew is not None:
            self._go_by(anew)
        for spec in self.specs:
            if spec.name in self.outdated and spec.node not in down:
                self.end(spec)
        ready = [spec for spec in self.specs if self._is_due(spec) and spec.node not in down]
        if self.together and self._due and len(ready) < len(self.specs) - len(self._done):
            self._end_the_others()
            return
        for spec in ready:
            del self._due[spec.name]
            self._start(spec)

    def _go_by(self, anew: Sequence[ProcessSpec]) -> None:
        """Start processes by other commands from now on; what runs by a command that has changed has to end."""
        before = {spec.name: spec for spec in self.specs}
        still = self._done | self._gave_up | self._due.keys()
        self.outdated |= {spec.name for spec in anew if spec != before[spec.name]} - still
        self.specs = anew

    def _is_due(self, spec: ProcessSpec) -> bool:
        return self._due.get(spec.name, float("inf")) <= self.now()

    def _end_the_others(self) -> None:
        for spec in self.specs:
            if spec.name not in self._due and spec.name not in self._done:
                self.end(spec)

    def _start(self, spec: ProcessSpec) -> None:
        self.starts[spec.name] = self.starts.get(spec.name, 0) + 1
        self.start(spec, self.starts[spec.name])

    @property
    def over(self) -> bool:
        """Whether the job is done: every process that does not just serve has ended well."""
        return self._done >= self._members

    @property
    def gave_up(self) -> Collection[str]:
        """The processes that stopped for good and wait for a person."""
        return frozenset(self._gave_up)

    @property
    def mistaken(self) -> Collection[str]:
        """The processes that were told what cannot be: no new start would mend that."""
        return frozenset(self._mistaken)

    @property
    def stands_still(self) -> bool:
        """Whether nothing of the job runs or will run, though it is not done: all that is left gave up."""
        return not self.over and self._done | self._gave_up >= self._members

    def start_by_hand(self) -> None:
        """What a person would do: start every launcher again that is not running."""
        self.by_hand += 1
        gave_up, self._gave_up = self._gave_up, set()
        for spec in self.specs:
            if spec.name in gave_up:
                self._start(spec)

    @cached_property
    def _members(self) -> set[str]:
        return {spec.name for spec in self.specs if not spec.serves}
