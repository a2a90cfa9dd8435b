"""How long a rank waits for the others: a time-out that follows the step. Called by `training.loop`.

Slow is not dead: a collective may take max(2 s, 3 × the median step), where `timeout_s = 0` leaves it to us.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import _set_pg_timeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

START_S = 10.0
"""Before the time of a step is known: ranks start one by one."""
LEAST_S = 2.0
STEPS = 3.0
EVERY = 10  # steps between two looks; also how many steps the first look waits for
WINDOW = 50


class Patience:
    """Follows the time of steps and sets the time-out of the collectives to come, those in `groups` too."""

    def __init__(self, timeout_s: float, every: int = 1, groups: Sequence[ProcessGroup] = ()) -> None:
        self._follows, self._every = timeout_s == 0, every  # steps between two collectives
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._last: float | None = None
        self._count = 0
        self._groups = (None, *groups)  # None: of all ranks

    def step_done(self) -> None:
        """Count one step."""
        now = time.monotonic()
        if self._last is not None:
            self._steps.append(now - self._last)
        self._last, self._count = now, self._count + 1
        if self._follows and self._count % EVERY == 0:
            for group in self._groups:
                _set_pg_timeout(timedelta(seconds=self.seconds()), group)

    def seconds(self) -> float:
        """The time-out that the steps so far ask for."""
        return max(LEAST_S, STEPS * self._every * statistics.median(self._steps)) if self._steps else START_S
