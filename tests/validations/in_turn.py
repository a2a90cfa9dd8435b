"""Ranks of one process that work in turn, so that what they write together can be recorded. Called by `writers`.

Each is a thread, and one runs at a time: from one exchange to the next, in an order that is drawn anew each time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

Gather = Callable[[object], list[Any]]


class Turns:
    """Threads that pass a baton on."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._dice = size, random.Random(seed)  # noqa: S311 - not for secrets
        self._lock = threading.Condition()
        self._values: dict[int, object] = {}
        self._gathered: dict[int, list[Any]] = {}
        self._round, self._order = 0, self._drawn()

    def run(self, work: Callable[[int, Gather], Any]) -> list[Any]:
        """What each rank's work returned; what one raised is raised once all have ended."""
        results: list[Any] = [None] * self._size
        problems: list[Exception] = []

        def be(rank: int) -> None:
            self._wait(rank, 0)
            try:
                results[rank] = work(rank, lambda value: self._gather(rank, value))
            except Exception as error:  # noqa: BLE001 - raised below
                problems.append(error)
            self._pass_on()

        threads = [threading.Thread(target=be, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return results

    def _drawn(self) -> list[int]:
        order = list(range(self._size))
        self._dice.shuffle(order)
        return order

    def _wait(self, rank: int, number: int) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._round == number and self._order[:1] == [rank])

    def _gather(self, rank: int, value: object) -> list[Any]:
        number = self._round
        self._values[rank] = value
        self._pass_on()
        self._wait(rank, number + 1)
        return self._gathered[number]

    def _pass_on(self) -> None:
        with self._lock:
            self._order.pop(0)
            if not self._order:  # all have come to the exchange
                self._gathered = {self._round: [self._values.get(rank) for rank in range(self._size)]}
                self._round, self._order = self._round + 1, self._drawn()
            self._lock.notify_all()
