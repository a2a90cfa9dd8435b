"""A byte stream to one agent, made anew when it breaks; requests and their answers over it. Called by `remote.node`.

The stream is the standard input and output of a program that leads there (`ssh host …`, `srun …`), which begins as
`bench.agent.boot`. Nothing here waits: `remote.cluster` does, for all links at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from proving_ground.bench.agent.wire import Unpacker, WireError, packed

HEAD_MAX = 65_536  # bytes of what a login shell may print before the agent speaks
PIECE = 2**20


class Link:
    """One connection at a time: `down`, `booting` (the program runs), or `up` (frames pass)."""

    def __init__(self, argv: Sequence[str], greeting: Callable[[], bytes]) -> None:
        self._argv, self._greeting = list(argv), greeting
        self.state = "down"
        self.why = ""  # it is down
        self.before = ""  # the version of another harness' agent that gave way to this one's
        self._program: subprocess.Popen[bytes] | None = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the link
        self._unsent, self._head, self._unpacker = bytearray(), bytearray(), Unpacker()

    def open(self) -> None:
        """Start the program that leads there."""
        self._complaints.seek(0)
        self._complaints.truncate()
        try:
            self._program = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            self.why = f"{self._argv[0]}: {error.strerror}"
            return
        for stream in (self._program.stdin, self._program.stdout):
            assert stream is not None  # noqa: S101 - asked for
            os.set_blocking(stream.fileno(), False)
        self._unsent, self._head, self._unpacker = bytearray(self._greeting()), bytearray(), Unpacker()
        self.state = "booting"

    @property
    def reads(self) -> int | None:
        """The descriptor to wait for; None where the link is down."""
        return self._program.stdout.fileno() if self._program and self._program.stdout else None

    @property
    def writes(self) -> int | None:
        """The descriptor that something waits to be written to."""
        return self._program.stdin.fileno() if self._program and self._program.stdin and self._unsent else None

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Have a frame sent as soon as the stream takes it."""
        self._unsent += packed(message, blob)
        self.flush()

    def flush(self) -> None:
        """Send what the stream takes now."""
        try:
            while (descriptor := self.writes) is not None:
                del self._unsent[: os.write(descriptor, self._unsent[:PIECE])]
        except BlockingIOError:
            return
        except OSError:  # nobody reads there any more: what was said before is still to be heard, and then its end
            self._unsent.clear()
            self._hush()

    def _hush(self) -> None:
        """Write no more."""
        if self._program and self._program.stdin:
            self._program.stdin.close()
            self._program.stdin = None

    def received(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The frames that have come; the link may be down afterwards, `why` says it."""
        if (descriptor := self.reads) is None:
            return
        try:
            more = os.read(descriptor, PIECE)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self.close(self._last_complaint() or "the connection ended")
            return
        if self.state == "booting":
            more = self._booted(more)
        try:
            yield from self._unpacker.feed(more)
        except WireError as error:
            self.close(str(error))

    def _booted(self, more: bytes) -> bytes:
        """Look for the line with which the agent's bridge begins; what follows it."""
        self._head += more
        while b"\n" in self._head:
            line, _, rest = bytes(self._head).partition(b"\n")
            self._head = bytearray(rest)
            with contextlib.suppress(ValueError):
                words = json.loads(line)
                if isinstance(words, dict) and "error" in words:
                    self.close(str(words["error"]))
                    return b""
                if isinstance(words, dict) and "ok" in words:
                    self.state, self.before = "up", str(words.get("before", ""))
                    return rest
        if len(self._head) > HEAD_MAX:
            self.close("what answers there is no agent")
        return b""

    def _last_complaint(self) -> str:
        """The last line that the program complained with."""
        if self._program:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(0.5)  # it may still be saying why
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def end(self) -> None:
        """Close it for good."""
        self.close("the run is over")
        self._complaints.close()

    def close(self, why: str) -> None:
        """End the program that leads there."""
        self.state, self.why = "down", why
        program, self._program = self._program, None
        if program:
            for stream in (program.stdin, program.stdout):
                if stream:
                    stream.close()
            program.kill()
            program.wait()
        self._unsent.clear()
