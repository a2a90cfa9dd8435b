"""Machines of their own on this one, for tests of what reaches beyond it: they share nothing with the harness.

Called by `sshd.py`, `slurm.py` and `raylets.py`, and by tests that need bare machines. Each has namespaces for its
network, mounts, host name, IPC, processes and time. Its root holds the system's programs (`/usr`, read-only), a copy of
`/etc`, this Python (`sys.prefix`, read-only), the volume, and empty folders in memory. The checkout is not there, nor
is `/tmp`. Monotonic and boot-time clocks are days ahead, and begin anew with a reboot. The wall clock is the harness's:
the kernel has only one.

All of it ends with the `with`, and when the process that made it is killed: a machine ends with the pipe that we hold.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.switch import HARNESS, Switch, switch

SCRIPT = Path(__file__).parent / "machine.sh"
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
PROGRAMS = {
    "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "pivot_root": "util-linux",
    "ip": "iproute2", "nft": "nftables",
}  # fmt: skip
"""Program → the Debian package that has it."""

DAY_S = 86_400
FRESH_S = 60
"""What the clocks of machine 1 show when it has been booted again, twice as much those of machine 2, and so on."""

END_TIMEOUT_S = 30


@dataclass
class Machine:
    """One machine; `number` counts from 1. It is up, or its power is off."""

    number: int
    name: str
    network: Switch
    hosts: str
    volume: Path | None
    offset_s: int = 0
    """How far its monotonic and boot-time clocks are ahead of the harness's, since the last boot; may be negative."""
    boots: int = 0
    pid: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """Its address, the same after each boot."""
        return self.network.address(self.number)

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.process is not None

    def boot(self) -> None:
        """Switch it on: no process of the time before, empty folders; same name and address.

        At first it has been up for days. From the second time on its clocks begin anew, as a real machine's do.

        Raises:
            OSError: it does not come up.
        """
        if self.up:
            raise ValueError(f"{self.name} is up")
        self.offset_s = self.number * (FRESH_S if self.boots else DAY_S) - (int(time.monotonic()) if self.boots else 0)
        self.boots += 1
        with tempfile.TemporaryDirectory(prefix="pg-machine-") as root:  # until it is the machine's root
            self._start(root)

    def _start(self, root: str) -> None:
        self.process = subprocess.Popen(
            [*self._unshare(), "sh", str(SCRIPT), root, *self._arguments()], text=True, env=ENVIRONMENT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            self.pid = int(self._answer())
            self.network.plug(self.name, self.pid)
            self._tell("plugged")
            self._answer()
        except BaseException:
            self._end()
            raise

    def kill(self) -> None:
        """Cut its power: all of it is gone at one stroke; the other ends of its connections are not told."""
        with contextlib.suppress(OSError):  # gone already, with a machine whose first process has ended
            self.network.unplug(self.name)
        self._end()

    def close(self) -> None:
        """End it, if it is up."""
        if self.up:
            self.kill()

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command there, as `subprocess.run` does; by default it must succeed, and its output is kept as text."""
        given: dict[str, Any] = {"check": True, "capture_output": True, "text": True, "env": ENVIRONMENT} | options
        return subprocess.run(self.command(argv), **given)  # noqa: PLW1510 - `check` is in there

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command there, as `subprocess.Popen` does."""
        return subprocess.Popen(self.command(argv), **({"env": ENVIRONMENT} | options))

    def command(self, argv: Sequence[str]) -> list[str]:
        """What the harness has to call to have a command run there; a kill of what it calls is one of the command."""
        inside = ["nsenter", "--target", str(self.pid), *NAMESPACES, "--"]
        return [*inside, "setpriv", "--pdeathsig", "KILL", *argv]  # nsenter waits in between

    def write(self, path: str, text: str, mode: int = 0o600) -> None:
        """Make a file there, and the folders that it takes."""
        script = 'umask 077; mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], input=text)

    def partition(self, *, on: bool = True, peer: str = HARNESS) -> None:
        """Drop all packets between it and the harness (or another machine), or let them pass again."""
        self.network.block(self.name, peer, on=on)

    def _unshare(self) -> list[str]:
        clocks = [f"--{clock}={self.offset_s}" for clock in ("monotonic", "boottime")]
        return ["unshare", *NAMESPACES, *clocks, "--fork", "--kill-child"]

    def _arguments(self) -> list[str]:
        mac = f"02:00:0a:4f:{self.network.number:02x}:{self.number:02x}"
        volume = "" if self.volume is None else str(self.volume)
        return [self.name, self.address, mac, self.hosts, volume, *python_folders()]

    def _answer(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise OSError(f"{self.name} does not come up: {self.process.stderr.read().strip()}")
        return line.strip()

    def _tell(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _end(self) -> None:
        assert self.process is not None
        if self.pid:
            kill_and_wait(self.pid)
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=END_TIMEOUT_S)
        self.process, self.pid = None, 0


@contextlib.contextmanager
def machines(count: int, volume: Path | None = None) -> Iterator[list[Machine]]:
    """`count` machines `m1`, `m2`, …, all up; they reach each other and the harness by name and address.

    `volume` is the one folder that all of them and the harness have, under the same path.

    Raises:
        OSError: they cannot be had here.
    """
    with named({number: f"m{number}" for number in range(1, count + 1)}, volume) as made:
        yield made


@contextlib.contextmanager
def named(names: Mapping[int, str], volume: Path | None = None) -> Iterator[list[Machine]]:
    """The same with names of one's own, by the number (1 to 253) that addresses and clocks go by."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(switch())
        hosts = host_table(network, names)
        made = []
        for number, name in names.items():
            made.append(Machine(number, name, network, hosts, volume))
            stack.callback(made[-1].close)
            made[-1].boot()
        yield made


def host_table(network: Switch, names: Mapping[int, str]) -> str:
    """The machines' /etc/hosts."""
    harness = f"{HARNESS} {socket.gethostname()}"
    known = {network.address(number): name for number, name in names.items()} | {network.address(): harness}
    return "\n".join(f"{address} {name}" for address, name in {"127.0.0.1": "localhost", **known}.items())


def kill_and_wait(first: int) -> None:
    """End the first process of a process namespace, and wait until the kernel has ended all others there."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(first)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], END_TIMEOUT_S)
        finally:
            os.close(descriptor)


def python_folders() -> list[str]:
    """What this Python is made of, outside of /usr: its own folder, and that of the Python below it."""
    found = dict.fromkeys(
        str(Path(it)) for it in (sys.base_prefix, sys.prefix, Path(sys.executable).resolve().parent.parent)
    )
    return [it for it in found if not it.startswith("/usr/") and it != "/usr"]
