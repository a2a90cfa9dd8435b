"""Machines that one can log in to: `--cluster ssh:n1.lab,n2.lab,volume=/shared`. Keys and names are as `ssh` has them.

Nothing is installed there: Python is enough for the agent, and Python with torch for the trainer.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from bench.clusters.remote import carried
from bench.clusters.remote.pool import BOOT, LEASE_S, NOT_ASKED, Asked, Member, left_line, work_folder, work_root
from bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from bench.spec import SpecError, Trial
from training.typed import Rule

SETTINGS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
LOOK = (
    "import json,sys,os;p='/proc/sys/kernel/random/boot_id';"
    "print(json.dumps({'python':sys.version.split()[0],'boot_id':open(p).read().strip() if os.path.exists(p) else ''}))"
)
LOOK_S = 30.0
ATTEMPTS, AGAIN_S = 3, 1.0  # a connection may break at any time
MISTAKES = re.compile(
    "Permission denied|Host key verification failed|Could not resolve|Bad configuration|No such file|not found|Bad port"
    "|hostname contains invalid|UNPROTECTED PRIVATE KEY|REMOTE HOST IDENTIFICATION"
)
"""What ssh says where the caller has to change something; else the machine has a bad day."""

Host = Annotated[str, Rule(pattern=r"[\w@.:\[\]%/-]+", words="a host as ssh takes it, such as user@host or host:port")]
Folder = Annotated[str, Rule(pattern=r"(/[^\0\n]*)?", words="an absolute path")]


@dataclass(frozen=True)
class SshOptions:
    """What `--cluster ssh:…` says; the first option may stand without its name."""

    hosts: tuple[Host, ...] = field(default=(), metadata={"help": "the machines, in the order of n1, n2 …"})
    python: str = field(default="python3", metadata={"help": "Python there, with torch for the trainer"})
    volume: Folder = field(default="", metadata={"help": "a folder that all of them share, for checkpoints"})
    config: str = field(default="", metadata={"help": "a configuration file for ssh (its -F)"})
    work: Folder = field(default="/tmp", metadata={"help": "where the agent keeps its files meanwhile"})  # noqa: S108


class SshPool:
    """A `Pool` of hosts that ssh reaches."""

    name = "ssh"

    def __init__(self, options: SshOptions) -> None:
        if not options.hosts:
            raise SpecError("cluster ssh: which hosts? Such as --cluster ssh:host1,host2,volume=/shared")
        if twice := sorted({it for it in options.hosts if options.hosts.count(it) > 1}):
            raise SpecError(f"cluster ssh: hosts: {', '.join(twice)} stands there twice")
        self.options = options
        self.volume = options.volume
        self.capacity: int | None = len(options.hosts)
        self.lease_s, self.wait_s = LEASE_S, 0.0

    def abilities(self) -> Sequence[Ability]:
        """None."""
        return ()

    def imitated(self) -> Sequence[str]:
        """Nothing, unless several hosts turn out to be one machine."""
        kernels = [it["boot_id"] for it in self.seen if it["boot_id"]]
        if len(set(kernels)) == len(kernels):
            return []
        return [f"nodes: {len(kernels)} hosts on {len(set(kernels))} machine(s): they were booted as one"]

    @cached_property
    def seen(self) -> list[dict[str, Any]]:
        """What each host says of itself.

        Raises:
            SpecError: one refuses, or has no Python: the caller can mend that.
            ClusterError: one cannot be reached.
        """
        with ThreadPoolExecutor(8) as several:  # sshd lets no more than ten begin at once
            return list(several.map(self._look, self.options.hosts))

    def _look(self, host: str) -> dict[str, Any]:
        lines = self._asked(host, LOOK)
        if not lines:
            raise ClusterError(f"ssh: {host}: its Python says nothing")
        return lines[-1]

    def _asked(self, host: str, program: str, *words: str) -> list[dict[str, Any]]:
        """What a program says there, as lines of JSON.

        Raises:
            SpecError: the host refuses, or has no Python.
            ClusterError: it cannot be reached.
        """
        command = self._argv(host, program, *words)
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._once(host, command)
            except ClusterError:
                if not left:
                    raise
                time.sleep(AGAIN_S)
        raise AssertionError("it returns or raises")

    @staticmethod
    def _once(host: str, command: Sequence[str]) -> list[dict[str, Any]]:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=False)
        except FileNotFoundError:
            raise SpecError("cluster ssh: there is no ssh on this machine") from None
        except subprocess.TimeoutExpired:
            raise ClusterError(f"ssh: {host}: no answer within {LOOK_S:g} s") from None
        if done.returncode == 0:
            return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        why = next((it.strip() for it in reversed(done.stderr.splitlines()) if it.strip()), "no word why")
        if done.returncode == 127 or MISTAKES.search(done.stderr):
            raise SpecError(f"cluster ssh: {host}: {why}")
        raise ClusterError(f"ssh: {host}: {why}")

    def _argv(self, host: str, program: str, *words: str) -> tuple[str, ...]:
        return (*self._ssh(), destination(host), shlex.join([self.options.python, "-c", program, *words]))

    def _ssh(self) -> tuple[str, ...]:
        return (
            "ssh",
            *(("-F", self.options.config) if self.options.config else ()),
            "-T",
            *(word for it in SETTINGS for word in ("-o", it)),
        )

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """Which host is which node, and how it is reached."""
        del processes
        hosts = list(enumerate(self.options.hosts, 1))[: trial.nodes]
        ssh = shlex.join(self._ssh())
        return "\n".join(f"n{number}  {ssh} {host} {self.options.python} …" for number, host in hosts)

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """The first of the hosts; they need not be waited for."""
        del ask, tell
        return [
            Member(
                f"n{number}", host, self._address(host), self._argv(host, BOOT),
                work_folder(self.options.work, request),
            )
            for number, host in enumerate(self.options.hosts[: request.nodes], 1)
        ]  # fmt: skip

    def _address(self, host: str) -> str:
        """Where the others reach a host: the address of the name that ssh connects to."""
        told = subprocess.run(
            [*self._ssh(), "-G", destination(host)], capture_output=True, text=True, timeout=LOOK_S, check=False
        )
        names = [line.partition(" ")[2] for line in told.stdout.splitlines() if line.startswith("hostname ")]
        try:
            return socket.gethostbyname(names[0] if names else host)
        except OSError as error:
            raise SpecError(f"cluster ssh: {host}: {error.strerror or error}") from None

    def mistaken(self, why: str) -> bool:
        """By ssh's words."""
        return bool(MISTAKES.search(why))

    def closed(self, why: str) -> bool:
        """Never: each machine has a way of its own."""
        del why
        return False

    def events(self) -> Sequence[Mapping[str, Any]]:
        """None: nobody watches these machines."""
        return ()

    def release(self) -> None:
        """They were there before, and stay."""

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """End agents whose harness is gone, and remove their folders, on each host that can be asked."""
        words = (carried.LEFT.read_text(), work_root(self.options.work), *(() if dry_run else ("end",)))

        def of(host: str) -> list[str]:
            try:
                return [left_line(host, it) for it in self._asked(host, *words)]
            except ClusterError as error:
                return [f"{NOT_ASKED}: {host}: {error}"]

        with ThreadPoolExecutor(8) as several:
            return [line for lines in several.map(of, self.options.hosts) for line in lines]


def destination(host: str) -> str:
    """A host as ssh takes it: with a port behind a colon only as a URL."""
    return f"ssh://{host}" if re.fullmatch(r"[^:]+:\d+", host) else host
