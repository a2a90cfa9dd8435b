"""Hosts that are reached by ssh: a real OpenSSH daemon on each machine, and a client configuration for them all.

Called by tests of what runs over `ssh -F CONFIG m1 …`. Host keys are checked, and only a key of our own gets in. A host
keeps its key when its power comes back, as one does that has it on disk.
"""

from __future__ import annotations

import contextlib
import shlex
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines import machines
from tests.engines.folders import vanishing
from tests.engines.machines import Machine

PROGRAMS = machines.PROGRAMS | {
    "ssh": "openssh-client", "ssh-keygen": "openssh-client", "sshd": "openssh-server", "pkill": "procps",
}  # fmt: skip
"""Program → the Debian package that has it."""

DAEMON = """\
Port 22
HostKey /etc/ssh/host_key
PidFile /run/sshd.pid
AuthorizedKeysFile /root/.ssh/authorized_keys
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
MaxStartups 200
MaxSessions 200
Subsystem sftp internal-sftp
"""

CLIENT = """\
Host *
    User root
    IdentityFile {folder}/client_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    BatchMode yes
    LogLevel ERROR
"""

START = """
mkdir -p /run/sshd && rm -f /run/sshd.pid && /usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log || exit
until [ -s /run/sshd.pid ]; do sleep 0.02; done
"""
TELL = """
import socket, sys
switch = socket.socket(socket.AF_UNIX)
switch.connect(sys.argv[1])
switch.sendall(" ".join(sys.argv[2:]).encode() + b"\\n")
sys.exit(switch.recv(9) != b"done")
"""
STOP = "pid=$(cat /run/sshd.pid) && kill $pid && while kill -0 $pid 2>/dev/null; do sleep 0.02; done"


@dataclass(frozen=True)
class Hosts:
    """Machines with OpenSSH, by the names that `ssh -F config` knows."""

    folder: Path
    machines: dict[str, Machine]
    keys: dict[str, str] = field(default_factory=dict)

    def option(self, volume: Path, count: int) -> str:
        """What `--cluster` has to say for the first of them; they run this Python."""
        where = ",".join(self.hosts[:count])
        return f"ssh:{where},config={self.config},python={sys.executable},volume={volume}"

    """Of the hosts, private."""

    @property
    def config(self) -> Path:
        """For `ssh -F`."""
        return self.folder / "ssh_config"

    @property
    def hosts(self) -> list[str]:
        """All names."""
        return list(self.machines)

    def start_sshd(self, name: str) -> None:
        """Take connections; the port is open on return."""
        self.machines[name].run(["sh", "-c", START])

    def stop_sshd(self, name: str) -> None:
        """Take no more connections; those that there are stay."""
        self.machines[name].run(["sh", "-c", STOP])

    def cut(self, name: str) -> None:
        """Break the connections that there are; new ones can be made at once."""
        done = self.machines[name].run(["sh", "-c", "pkill -KILL -P $(cat /run/sshd.pid)"], check=False)
        if done.returncode not in {0, 1}:  # 1: there was none
            raise OSError(done.stderr)

    def partition(self, name: str, *, on: bool = True) -> None:
        """Drop all packets between the harness and a host, both ways; hosts still reach each other."""
        self.machines[name].partition(on=on)

    def power_off(self, name: str) -> None:
        """End all of a host at one stroke, in silence."""
        self.machines[name].kill()

    def power_on(self, name: str) -> None:
        """Boot it again, with nothing left but its name, address and key; it takes connections on return."""
        self.machines[name].boot()
        self.install(name)

    @contextlib.contextmanager
    def switched(self) -> Iterator[Path]:
        """A program for `power=`, as long as this lasts: it tells this process, which has the machines."""
        deeds = {"kill": self.power_off, "restore": self.power_on}

        class Told(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                deed, name = self.rfile.readline().decode().split()
                deeds[deed](name)
                self.wfile.write(b"done")

        where, program = self.folder / "switch", self.folder / "power"
        program.touch(0o700)
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", TELL, str(where)])} "$@"\n')
        with socketserver.ThreadingUnixStreamServer(str(where), Told) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield program
            finally:
                server.shutdown()
                thread.join()

    def install(self, name: str) -> None:
        """Give a machine that has just booted its files, and start the daemon."""
        machine = self.machines[name]
        machine.write("/etc/ssh/sshd_config", DAEMON)
        machine.write("/etc/ssh/host_key", self.keys[name])
        machine.write("/root/.ssh/authorized_keys", (self.folder / "client_key.pub").read_text())
        self.start_sshd(name)


@contextlib.contextmanager
def ssh_hosts(count: int, volume: Path | None = None) -> Iterator[Hosts]:
    """`count` hosts `m1`, `m2`, …, which `ssh -F bed.config m1 COMMAND` reaches without a question.

    Raises:
        OSError: they cannot be had here.
    """
    with (
        vanishing("pg-ssh-") as folder,
        machines.machines(count, volume) as made,
    ):
        bed = Hosts(folder, {machine.name: machine for machine in made})
        write_client(bed)
        for name in bed.hosts:
            bed.install(name)
        yield bed


def write_client(bed: Hosts) -> None:
    """Make all keys, and what the client has to know."""
    make_key(bed.folder / "client_key")
    config, known = [CLIENT.format(folder=bed.folder)], []
    for name, machine in bed.machines.items():
        bed.keys[name], public = make_key(bed.folder / f"{name}_key")
        (bed.folder / f"{name}_key").unlink()
        config.append(f"Host {name}\n    HostName {machine.address}\n")
        known.append(f"{machine.address} {public}")
    bed.config.write_text("".join(config))
    (bed.folder / "known_hosts").write_text("".join(known))


def make_key(path: Path) -> tuple[str, str]:
    """A new key as it stands in its files: private, public."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)
    return path.read_text(), Path(f"{path}.pub").read_text()
