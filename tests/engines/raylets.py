"""A Ray cluster: a head, and nodes with a real raylet each; who has no token and no certificate is refused.

Called by tests of what runs on Ray. The head is a node, too, and the last one. The harness speaks with Ray's server for
clients (`ray://`), and needs `bed.env` and the token for that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.engines import machines
from tests.engines.folders import vanishing
from tests.engines.machines import ENVIRONMENT, Machine

PROGRAMS = machines.PROGRAMS | {"openssl": "openssl", "pkill": "procps"}
"""Program → the Debian package that has it."""

HEAD, HEAD_NUMBER = "head", 253
PORT, CLIENTS_PORT = 6379, 10001
CPUS = 4  # of a node, as Ray counts them
STORE = 80_000_000  # bytes of the object store, the least that Ray takes
RAY = (
    sys.executable,
    "-m",
    "ray.scripts.scripts",
    "start",
    "--disable-usage-stats",
    f"--object-store-memory={STORE}",
    f"--num-cpus={CPUS}",
)
KILL = ("pkill", "-KILL", "-x", "raylet")
ATTEMPTS = 3
"""A raylet ends itself when its agent has not come up within 15 s, as happens on a busy machine."""

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CERTIFICATE = ("key.pem", "cert.pem")
SIGN = """
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=proving-ground \
    -addext "subjectAltName=$1" 2>/dev/null
"""


@dataclass(frozen=True)
class Cluster:
    """Nodes `r1`, `r2`, … by their names, and the head's machine."""

    folder: Path
    nodes: dict[str, Machine]
    head: Machine

    @property
    def address(self) -> str:
        """What a client connects to."""
        return f"ray://{self.head.address}:{CLIENTS_PORT}"

    @property
    def tls(self) -> dict[str, str]:
        """Variables that name the certificate, which all have under the same path."""
        key, certificate = (str(self.folder / name) for name in CERTIFICATE)
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_KEY": key,
            "RAY_TLS_SERVER_CERT": certificate,
            "RAY_TLS_CA_CERT": certificate,
        }

    @property
    def env(self) -> dict[str, str]:
        """The harness's variables with those that a client needs, but for the token."""
        return os.environ | self.tls

    @property
    def token_file(self) -> Path:
        """The token, for `token_file=`."""
        return self.folder / "token"

    @property
    def power(self) -> Path:
        """A program for `power=`: it kills a node's raylet, and starts it again."""
        return self.folder / "power"

    def start_head(self) -> None:
        """Start GCS, raylet and the server for clients."""
        self._start(
            self.head, "--head", self._own(self.head), f"--port={PORT}", "--include-dashboard=false",
            f"--ray-client-server-port={CLIENTS_PORT}",
        )  # fmt: skip

    def start_raylet(self, name: str) -> None:
        """Start a node's raylet."""
        self._start(self.nodes[name], *self._joining(self.nodes[name]))

    def _joining(self, machine: Machine) -> tuple[str, ...]:
        where = f"--labels=ray.io/availability-zone=zone-{machine.name},rack=r1"
        return f"--address={self.head.address}:{PORT}", self._own(machine), where

    @staticmethod
    def _own(machine: Machine) -> str:
        return f"--node-ip-address={machine.address}"

    @property
    def _env(self) -> dict[str, str]:
        return ENVIRONMENT | SETTINGS | self.tls | {"RAY_AUTH_TOKEN_PATH": str(self.token_file)}

    def _start(self, machine: Machine, *words: str) -> None:
        for left in reversed(range(ATTEMPTS)):
            done = machine.run([*RAY, *words], env=self._env, check=False)
            if not done.returncode:
                return
            machine.run(["pkill", "-KILL", "-f", "/site-packages/ray/|^ray::"], check=False)
            if not left:
                raise OSError(f"{machine.name}: Ray does not start: {(done.stdout + done.stderr)[-2000:]}")

    def write_power(self) -> None:
        """Write the program."""
        env = ["env", "-i", *(f"{key}={value}" for key, value in self._env.items())]
        lines = ["#!/bin/sh", 'case "$1 $2" in']
        for name, machine in self.nodes.items():
            again = shlex.join([*env, *machine.command([*RAY, *self._joining(machine)])])
            lines.append(f'"kill {name}") {shlex.join([*env, *machine.command(KILL)])} ;;')
            lines.append(f'"restore {name}") {again} >/dev/null 2>&1 || {again} >/dev/null 2>&1 ;;')
        self.power.touch(0o700)
        self.power.write_text("\n".join([*lines, "*) exit 2 ;;", "esac", ""]))

    def kill_raylet(self, name: str) -> None:
        """Kill a node's raylet; its workers end with it."""
        self.nodes[name].run(KILL)

    def install(self, machine: Machine) -> None:
        """Give a machine that has just booted the certificate and the token."""
        for name in (*CERTIFICATE, self.token_file.name):
            machine.write(str(self.folder / name), (self.folder / name).read_text())


@contextlib.contextmanager
def raylets(count: int, volume: Path | None = None) -> Iterator[Cluster]:
    """A cluster of `count` nodes `r1`, `r2`, …, all alive.

    Raises:
        OSError: it cannot be had here.
    """
    names = {number: f"r{number}" for number in range(1, count + 1)} | {HEAD_NUMBER: HEAD}
    with vanishing("pg-raylets-") as folder, machines.named(names, volume) as made:
        *nodes, head = made
        bed = Cluster(folder, {machine.name: machine for machine in nodes}, head)
        bed.token_file.touch(0o600)
        bed.token_file.write_text(secrets.token_hex(32))
        addresses = ",".join(["IP:127.0.0.1", "DNS:localhost", *(f"IP:{it.address}" for it in made)])
        subprocess.run(["sh", "-c", SIGN, "sh", addresses], cwd=folder, check=True)
        for machine in made:
            bed.install(machine)
        bed.write_power()
        bed.start_head()
        for name in bed.nodes:  # one after the other: see ATTEMPTS
            bed.start_raylet(name)
        yield bed
