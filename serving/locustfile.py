"""What locust runs, in a process of its own: users that post the same inputs again and again. `serving.load` starts it.

Every request leaves a line when it begins and one when it ends; nothing is tried again. Several addresses are taken in
turn. What it is told is a JSON file that the variable names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from locust import FastHttpUser, LoadTestShape, constant, events, task

from proving_ground.bench.redact import redacted

ORDERS: dict[str, Any] = json.loads(Path(os.environ["PROVING_GROUND_LOAD"]).read_text())
BODY = json.dumps(ORDERS["request"])
URLS, NUMBERS = itertools.cycle(ORDERS["urls"]), itertools.count()
LINES = Path(ORDERS["lines"]).open("w", buffering=1)  # noqa: SIM115 - open until the process ends
SPAWN = 1000.0  # users a second: all of a level at once
BODIES: set[str] = set()


def tell(**fields: object) -> None:
    """One line, with the moment on the machine's clock, as every event has it."""
    LINES.write(json.dumps({"t": time.monotonic(), **fields}, separators=(",", ":")) + "\n")


class User(FastHttpUser):
    """Asks, waits for the answer, asks again."""

    host = ""
    wait_time = constant(0)
    max_retries, max_redirects = 0, 0  # one attempt, and what it brings
    insecure = False  # a certificate is verified, as `serving.ask` does

    @task
    def ask(self) -> None:
        """One request; one that is cut off has no second line."""
        number = next(NUMBERS)
        tell(event="begin", number=number, wall_s=time.time())
        headers = {**ORDERS["headers"], "Content-Type": "application/json", ORDERS["number_header"]: str(number)}
        if Levels.reached == ORDERS["kill_level"]:  # of a later request of a connection HAProxy logs no failure
            headers["Connection"] = "close"
        self.client.post(next(URLS), data=BODY, headers=headers, name="score", context={"number": number})


@events.request.add_listener  # type: ignore[untyped-decorator]
def ended(
    response_time: float, response: Any, exception: Exception | None, context: dict[str, Any], **_: object  # noqa: ANN401
) -> None:  # fmt: skip
    """A request has ended."""
    why = redacted(f"{type(exception).__name__}: {exception}")[:200] if exception else ""
    tell(event="end", number=context["number"], seconds=response_time / 1000, status=response.status_code or 0,
         error=why, body="" if exception else body(response.content or b""))  # fmt: skip


def body(content: bytes) -> str:
    """The hash of an answer; the first of its kind is kept whole."""
    found = hashlib.sha256(content).hexdigest()
    if found not in BODIES:
        BODIES.add(found)
        tell(event="body", sha256=found, text=content.decode(errors="replace"))
    return found


class Levels(LoadTestShape):
    """So many users for so many seconds, level after level."""

    reached: ClassVar[int] = -1

    def tick(self) -> tuple[int, float] | None:
        """Users now; None at the end. The first second is for the users to come up."""
        level = int(self.get_run_time() // ORDERS["level_s"])  # type: ignore[no-untyped-call]
        if level != self.reached:
            Levels.reached = level
            before = self.get_current_user_count()  # type: ignore[no-untyped-call]
            tell(event="level", index=level, wall_s=time.time(), cpu_s=time.process_time(), users_before=before)
        return (ORDERS["levels"][level], SPAWN) if level < len(ORDERS["levels"]) else None
