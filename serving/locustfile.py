"""What locust runs, in a process of its own: users that post the same inputs again and again. `serving.load` starts it.

Every request leaves a line, with when it began and how it ended; nothing is tried again. Several addresses are taken in
turn. What it is told is a JSON file that the variable names.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from locust import FastHttpUser, LoadTestShape, constant, events, task

from bench.redact import redacted

ORDERS: dict[str, Any] = json.loads(Path(os.environ["PROVING_GROUND_LOAD"]).read_text())
BODY = json.dumps(ORDERS["request"])
URLS = itertools.cycle(ORDERS["urls"])
LINES = Path(ORDERS["lines"]).open("w", buffering=1)  # noqa: SIM115 - open until the process ends
SPAWN = 1000.0  # users a second: all of a level at once


def tell(**fields: object) -> None:
    """One line."""
    LINES.write(json.dumps(fields, separators=(",", ":")) + "\n")


class User(FastHttpUser):
    """Asks, waits for the answer, asks again."""

    host = ""
    wait_time = constant(0)
    max_retries = 1  # of connections: one attempt

    @task
    def ask(self) -> None:
        """One request."""
        self.client.post(next(URLS), data=BODY, headers={"Content-Type": "application/json"}, name="score")


class Levels(LoadTestShape):
    """So many users for so many seconds, level after level."""

    reached = -1

    def tick(self) -> tuple[int, float] | None:
        """Users now; None at the end. The first second is for the users to come up."""
        level = int(self.get_run_time() // ORDERS["level_s"])  # type: ignore[no-untyped-call]
        if level != self.reached:
            self.reached = level
            tell(event="level", index=level, wall_s=time.time())
        return (ORDERS["levels"][level], SPAWN) if level < len(ORDERS["levels"]) else None


@events.request.add_listener  # type: ignore[untyped-decorator]
def answered(
    start_time: float, response_time: float, response: Any, exception: Exception | None, **_: object  # noqa: ANN401
) -> None:  # fmt: skip
    """A request has ended."""
    status = getattr(response, "status_code", 0) or 0
    why = redacted(f"{type(exception).__name__}: {exception}")[:200] if exception else ""
    tell(event="request", wall_s=start_time, seconds=response_time / 1000, status=status, error=why)
