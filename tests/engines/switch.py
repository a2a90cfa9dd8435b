"""The network between machines of a test and the harness: cables to a switch, which can drop what passes between two.

Called by `machines.py`. The switch is a bridge in a network namespace of its own, which a process holds that ends with
our pipe: all cables go with it, the harness's too.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

HARNESS = "harness"
"""The harness's end of its cable, as the switch and the machines call it."""

NETWORKS = 256
HARNESS_NUMBER = 254


@dataclass
class Switch:
    """A network 10.79.N.0/24; the harness is in it as number 254, machine k as number k."""

    process: int
    number: int
    blocked: set[tuple[str, str]] = field(default_factory=set)

    def address(self, host: int = HARNESS_NUMBER) -> str:
        """The address of a machine, or of the harness."""
        return f"10.79.{self.number}.{host}"

    def plug(self, name: str, process: int) -> None:
        """Lay a cable from the switch to the network of a process, who sees it as `eth0`."""
        self._ip(f"link add {name} type veth peer name eth0 netns {process}", f"link set {name} master switch up")

    def unplug(self, name: str) -> None:
        """Take a machine's cable away."""
        self._ip(f"link del {name}")

    def block(self, one: str, other: str, *, on: bool) -> None:
        """Drop all that passes between two, or let it pass again; neither of them is told."""
        change = self.blocked.add if on else self.blocked.discard
        change((one, other))
        change((other, one))
        rules = "\n".join(f'iifname "{source}" oifname "{target}" drop' for source, target in sorted(self.blocked))
        chain = f"chain passing {{ type filter hook forward priority 0; policy accept;\n{rules}\n}}"
        self._run(
            "nft", "-f", "-", text=f"table bridge cuts\ndelete table bridge cuts\ntable bridge cuts {{ {chain}\n}}\n"
        )

    def open(self) -> None:
        """Make the bridge, and plug in the harness's cable, which is there by now."""
        self._ip("link add switch type bridge", "link set switch up", f"link set {HARNESS} master switch up")

    def _ip(self, *commands: str) -> None:
        self._run("ip", "-batch", "-", text="".join(f"{command}\n" for command in commands))

    def _run(self, *command: str, text: str) -> None:
        inside = ["nsenter", "--target", str(self.process), "--net", *command]
        done = subprocess.run(inside, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()} in: {text.strip()}")


@contextlib.contextmanager
def switch() -> Iterator[Switch]:
    """A switch that only the harness is plugged into; it goes at the end with all cables.

    Raises:
        OSError: a network cannot be had here.
    """
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "ready\n":
                raise OSError(f"no network namespace: {holder.stderr.read()}")
            with _connected(holder.pid) as number:
                made = Switch(holder.pid, number)
                made.open()
                yield made
        finally:
            holder.kill()


@contextlib.contextmanager
def _connected(process: int) -> Iterator[int]:
    """Plug the harness into the switch's namespace with a network that no other test has, and yield its number."""
    number = next((it for it in range(NETWORKS) if _lay(it, process)), None)
    if number is None:
        raise OSError(f"no network of {NETWORKS} is free, or cables cannot be laid here")
    name = f"pgswitch{number}"
    try:
        _ip("addr", "add", f"10.79.{number}.{HARNESS_NUMBER}/24", "dev", name)
        _ip("link", "set", name, "up")
        yield number
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # the kernel was faster
            _ip("link", "del", name)


def _lay(number: int, process: int) -> bool:
    """Lay the harness's cable; False where another test has one of that number."""
    ends = ["type", "veth", "peer", "name", HARNESS, "netns", str(process)]
    made = subprocess.run(["ip", "link", "add", f"pgswitch{number}", *ends], capture_output=True, check=False)
    return made.returncode == 0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
