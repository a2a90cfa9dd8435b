"""Machines that one can log in to: `--cluster ssh:n1.lab,n2.lab,volume=/shared`. Keys and names are as `ssh` has them.

Nothing is installed there: Python is enough for the agent, and Python with torch for the trainer.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from proving_ground.bench.clusters.remote import carried
from proving_ground.bench.clusters.remote.pool import (
    BOOT,
    LEASE_S,
    NOT_ASKED,
    Asked,
    Member,
    left_line,
    work_folder,
    work_root,
)
from proving_ground.bench.clusters.remote.programs import run_program
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.training.typed import Rule

SETTINGS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
LIFE = (
    "def read(p):\n"
    " try: return open(p).read().strip()\n"
    " except OSError: return ''\n"
    "boot=read('/proc/sys/kernel/random/boot_id');first=read('/proc/1/stat').rpartition(')')[2].split()[19:20]\n"
    "life=' '.join([boot,*first]) if boot else ''\n"
)
"""Which life of a machine this is: its kernel's, and that of its first process, if it is a container."""
LOOK = f"import json,sys\n{LIFE}print(json.dumps({{'python':sys.version.split()[0],'boot_id':boot,'life':life}}))"
ALIVE = f"import json\n{LIFE}print(json.dumps({{'life':life}}))"
LOOK_S = 30.0
ALIVE_S = 2  # for a machine to take a connection; one without power takes none
ATTEMPTS, AGAIN_S = 3, 1.0  # a connection may break at any time
MISTAKES = re.compile(
    "Permission denied|Host key verification failed|Could not resolve|Bad configuration|No such file|not found|Bad port"
    "|hostname contains invalid|UNPROTECTED PRIVATE KEY|REMOTE HOST IDENTIFICATION"
)
"""What ssh says where the caller has to change something; else the machine has a bad day."""

HOST, AS_SSH = r"[\w@.:\[][\w@.:\[\]%/-]*", "a host as ssh takes it, such as user@host or host:port"
Host = Annotated[str, Rule(pattern=HOST, words=AS_SSH)]
Folder = Annotated[str, Rule(pattern=r"(/[^\0\n]*)?", words="an absolute path")]


@dataclass(frozen=True)
class SshOptions:
    """What `--cluster ssh:…` says; the first option may stand without its name."""

    hosts: tuple[Host, ...] = field(default=(), metadata={"help": "the machines, in the order of n1, n2 …"})
    python: str = field(default="python3", metadata={"help": "Python there, with torch for the trainer"})
    volume: Folder = field(default="", metadata={"help": "a folder that all of them share, for checkpoints"})
    config: str = field(default="", metadata={"help": "a configuration file for ssh (its -F)"})
    work: Folder = field(default="/tmp", metadata={"help": "where the agent keeps its files meanwhile"})  # noqa: S108
    hostfile: str = field(default="", metadata={"help": "a file with a host on each line, in place of hosts"})
    power: str = field(
        default="", metadata={"help": "a program run as `POWER kill MACHINE` and `POWER restore MACHINE`"}
    )


WITHOUT = {it.name: it.default for it in fields(SshOptions)}


class SshPool:
    """A `Pool` of hosts that ssh reaches."""

    name = "ssh"

    def __init__(self, options: SshOptions) -> None:
        if options.hosts and options.hostfile:
            raise SpecError("cluster ssh: hosts and hostfile: one of them says which machines")
        if options.hostfile:
            options = replace(options, hosts=listed(Path(options.hostfile)))
        if not options.hosts:
            raise SpecError(
                "cluster ssh: which hosts? Such as --cluster ssh:host1,host2,volume=/shared, or hostfile=FILE"
            )
        if twice := sorted({it for it in options.hosts if options.hosts.count(it) > 1}):
            raise SpecError(f"cluster ssh: hosts: {', '.join(twice)} stands there twice")
        self.options = options
        self.volume = options.volume
        self.capacity: int | None = len(options.hosts)
        self.lease_s, self.wait_s = LEASE_S, 0.0
        self._alive: dict[str, str] = {}  # host → its life, when it was last asked and answered
        self._off = set[str]()  # hosts that we have switched off

    def abilities(self) -> Sequence[Ability]:
        """The loss of a machine, where a program of the user's switches it off."""
        how = "by power=" if self.options.power else "no power= that switches machines off"
        return [Ability("power", yes=bool(self.options.power), how=how)]

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

    @property
    def option(self) -> str:
        """What `--cluster` means, whatever becomes of the file with the hosts; empty where it names them itself."""
        if not self.options.hostfile:
            return ""
        said = {it.name: getattr(self.options, it.name) for it in fields(self.options) if it.name != "hostfile"}
        words = [f"{name}={value}" for name, value in said.items() if name != "hosts" and value != WITHOUT[name]]
        return f"{self.name}:{','.join((*self.options.hosts, *words))}"

    def machine(self, node: str) -> Mapping[str, Any]:
        """The host that is this node, and which of its lives answers; empty: none does."""
        where = self.options.hosts[int(node.removeprefix("n")) - 1]
        if where not in self._alive:
            self._alive[where] = self._asked(where, ALIVE)[-1]["life"]
        return {"id": self._life(where), "name": where, "where": where, "state": ""}

    def power(self, where: str, *, on: bool) -> None:
        """By the program that `power=` names; not of this machine, nor of one that is two of the nodes."""
        if not on:
            lives = {host: str(it.get("life", "")) for host, it in zip(self.options.hosts, self.seen, strict=True)}
            others = [host for host, life in lives.items() if host != where and life and life == lives[where]]
            if others or (lives[where] and lives[where] == own_life()):
                also = ", ".join(others) or "the machine of this harness"
                raise ClusterError(f"ssh: {where} is {also}, too: its power is not cut")
            self._off.add(where)
        run_program(self.name, "power", self.options.power, "restore" if on else "kill", where)
        if on:
            self._off.discard(where)

    def pulse(self, where: str) -> Mapping[str, Any]:
        """Which life of a host was the last to answer; one that answers although it was switched off is told apart."""
        life = self._life(where)
        if where in self._off:
            at = f"{life}, switched off, answers" if life else self._alive.get(where, "")
        else:
            at = self._alive[where] = life or self._alive.get(where, "")
        return {"where": where, "at": at, "every_s": float(ALIVE_S)}

    def _life(self, where: str) -> str:
        """Which life of a host answers; it has little time for it. Empty: none."""
        words = self._argv(where, ALIVE)
        with suppress(SpecError, ClusterError, LookupError, ValueError):
            quick = (words[0], "-o", f"ConnectTimeout={ALIVE_S}", *words[1:])
            return str(self._once(where, quick)[-1]["life"])
        return ""

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


def own_life() -> str:
    """The life of this machine, as `LIFE` has it."""
    done = subprocess.run([sys.executable, "-c", f"{LIFE}print(life)"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def listed(hostfile: Path) -> tuple[str, ...]:
    """The hosts of a file: the first word of each line; `#` begins a comment, and what follows a host is not used.

    Raises:
        SpecError: it cannot be read, or a line has no host.
    """
    try:
        lines = [line.partition("#")[0].split() for line in hostfile.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise SpecError(f"cluster ssh: hostfile {hostfile}: {getattr(error, 'strerror', None) or 'no text'}") from None
    for number, words in enumerate(lines, 1):
        if words and not re.fullmatch(HOST, words[0]):
            raise SpecError(f"cluster ssh: hostfile {hostfile}, line {number}: {words[0][:40]!r}: must be {AS_SSH}")
    hosts = tuple(words[0] for words in lines if words)
    if not hosts:
        raise SpecError(f"cluster ssh: hostfile {hostfile}: no host stands there")
    return hosts


def destination(host: str) -> str:
    """A host as ssh takes it: with a port behind a colon only as a URL."""
    return f"ssh://{host}" if re.fullmatch(r"[^:]+:\d+", host) else host
