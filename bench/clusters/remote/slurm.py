"""Nodes that Slurm gives: `--cluster slurm:partition=gpu,account=lab,volume=/shared`. One job for the whole run.

The job's only step runs an agent on each node; `srun --overlap` into it is the line to each. The job goes on when a
node is lost (`--no-kill`), and another process can cancel it by its name, `proving-ground-<run id>`.
"""

from __future__ import annotations

import base64
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from bench.clusters.remote.pool import BOOT, LEASE_S, Asked, Member, is_left, signature, work_folder
from bench.clusters.remote.ssh import Folder
from bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from bench.spec import SpecError, Trial
from training.typed import Rule

COMMAND_S = 30.0  # for one of Slurm's commands
LOOK_S = 0.5
JOBS = "proving-ground-"  # how the names of its jobs begin
MISTAKES = re.compile(
    r"[Ii]nvalid (partition|account|qos|generic resource|feature|constraint|wckey|reservation|job array|node count)"
    r"|not available|not permitted|more processors requested|violates|exceeds|Access/permission denied"
    r"|Unable to submit batch job: (?!.*(contact|connect))"
)
"""What Slurm says where the caller has to ask for something else; all else is a bad day of the cluster's."""

Word = Annotated[str, Rule(pattern=r"[\w.,:+*&|/@-]*", words="as Slurm takes it, without spaces")]
Minutes = Annotated[int, Rule(least=1, most=100_000)]


@dataclass(frozen=True)
class SlurmOptions:
    """What `--cluster slurm:…` says; the first option may stand without its name."""

    partition: Word = field(default="", metadata={"help": "as `sinfo` calls it; the default partition without"})
    account: Word = field(default="", metadata={"help": "whom the hours are charged to"})
    qos: Word = field(default="", metadata={"help": "quality of service"})
    constraint: Word = field(default="", metadata={"help": "features that the nodes must have"})
    gres: Word = field(default="", metadata={"help": "such as gpu:8, of each node"})
    reservation: Word = field(default="", metadata={"help": "a reservation to run in"})
    time_min: Minutes = field(default=120, metadata={"help": "the job's time limit, in minutes"})
    wait_min: Minutes = field(default=30, metadata={"help": "how long it may stand in the queue, in minutes"})
    python: str = field(default="python3", metadata={"help": "Python there, with torch for the trainer"})
    volume: Folder = field(default="", metadata={"help": "a folder that all nodes share, for checkpoints"})
    work: Folder = field(default="/tmp", metadata={"help": "where the agent keeps its files meanwhile"})  # noqa: S108
    emulated: bool = field(default=False, metadata={"help": "true where several nodes are one machine"})


class SlurmPool:
    """A `Pool` of the nodes of one job."""

    name = "slurm"

    def __init__(self, options: SlurmOptions) -> None:
        self.options = options
        self.lease_s, self.wait_s = LEASE_S, 60.0 * options.wait_min
        self.volume = options.volume
        self._job = ""

    @cached_property
    def capacity(self) -> int | None:
        """Nodes of the partition that are not down.

        Raises:
            SpecError: there is no such partition.
            ClusterError: Slurm does not answer.
        """
        named = (f"--partition={self.options.partition}",) if self.options.partition else ()
        states = "alloc,idle,mix,comp,resv,plnd,maint"
        lines = self._slurm("sinfo", "--noheader", "--Node", "--format=%N", f"--states={states}", *named)
        found = set(lines.split())
        if not found:
            where = f"partition {self.options.partition!r}" if self.options.partition else "no partition"
            known = sorted(set(self._slurm("sinfo", "--noheader", "--format=%R").split()))
            raise SpecError(f"cluster slurm: {where} has nodes that are up; there are partitions {', '.join(known)}")
        return len(found)

    def abilities(self) -> Sequence[Ability]:
        """None yet."""
        return ()

    def imitated(self) -> Sequence[str]:
        """As the options say: nodes can be asked only once they are had, and then it is seen to be so."""
        return ["nodes: several of Slurm's on one machine"] if self.options.emulated else []

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """The batch script that would be submitted."""
        del processes
        return self._script(f"{JOBS}RUN", trial.nodes, "(the agent, as base64)\n")

    def _script(self, name: str, nodes: int, agent: str) -> str:
        asked = {
            "job-name": name, "nodes": str(nodes), "ntasks-per-node": "1", "time": str(self.options.time_min),
            "partition": self.options.partition, "account": self.options.account, "qos": self.options.qos,
            "constraint": self.options.constraint, "gres": self.options.gres, "reservation": self.options.reservation,
            "chdir": "/", "output": "/dev/null", "comment": signature(),
        }  # fmt: skip
        head = "".join(f"#SBATCH --{key}={value}\n" for key, value in asked.items() if value)
        step = "srun --no-kill --kill-on-bad-exit=0 --chdir=/ --exclusive --exact"
        run = f"base64 -d <<'AGENT' | {step} {shlex.join([self.options.python, '-c', BOOT])}\n"
        return f"#!/bin/sh\n{head}#SBATCH --exclusive\n#SBATCH --no-kill\n#SBATCH --no-requeue\n{run}{agent}AGENT\n"

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """Submit the job and wait until it has its nodes."""
        work = work_folder(self.options.work, request)
        agent = base64.encodebytes(ask(Member("n{task}", "", "", (), work, "stay"))).decode()
        script = self._script(f"{JOBS}{request.run_id}", request.nodes, agent)
        self._job = self._slurm("sbatch", "--parsable", script=script).split(";")[0].strip()
        hosts = self._hosts(tell)
        into = ("srun", "--overlap", f"--jobid={self._job}", "--unbuffered", "--chdir=/", "-N1", "-n1")
        program = (self.options.python, "-c", BOOT)
        return [
            Member(f"n{number}", host, self._address(host), (*into, "-w", host, *program), work, "not")
            for number, host in enumerate(hosts, 1)
        ]

    def _hosts(self, tell: Callable[[str], None]) -> list[str]:
        """The job's nodes, as soon as it runs; why it does not is told whenever that changes."""
        told, deadline = "", time.monotonic() + 60 * self.options.wait_min
        while True:
            line = self._slurm("squeue", "--noheader", f"--jobs={self._job}", "--states=all", "--format=%T|%r|%N")
            state, _, rest = line.strip().partition("|")
            reason, _, nodes = rest.partition("|")
            if state == "RUNNING":
                return self._slurm("scontrol", "show", "hostnames", nodes).split()
            if state not in ("PENDING", "CONFIGURING", ""):
                raise ClusterError(f"slurm: job {self._job} is {state or 'gone'}: {reason}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"slurm: job {self._job} stood in the queue for {self.options.wait_min} min ({reason}); "
                    "wait_min= allows for more"
                )
            if reason not in (told, "None"):
                told = reason
                tell(f"job {self._job} is {state.lower()}: {reason}")
            time.sleep(LOOK_S)

    def _address(self, host: str) -> str:
        """Where the others reach a node: as Slurm does, since the harness may not know its name."""
        shown = self._slurm("scontrol", "--oneliner", "show", "node", host)
        match = re.search(r"\bNodeAddr=(\S+)", shown)
        try:
            return socket.gethostbyname(match[1] if match else host)
        except OSError:
            return match[1] if match else host

    def _slurm(self, *command: str, script: str | None = None) -> str:
        """What one of Slurm's commands says.

        Raises:
            SpecError: it refuses what was asked for.
            ClusterError: it cannot be had, or does not answer.
        """
        try:
            done = subprocess.run(
                command, input=script, capture_output=True, text=True, timeout=COMMAND_S, check=False,
                stdin=None if script is not None else subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise SpecError(f"cluster slurm: there is no {command[0]} on this machine") from None
        except subprocess.TimeoutExpired:
            raise ClusterError(f"slurm: {command[0]}: no answer within {COMMAND_S:g} s") from None
        if done.returncode == 0:
            return done.stdout
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1] if lines else "no word why"
        if MISTAKES.search(done.stderr):
            raise SpecError(f"cluster slurm: {why}")
        raise ClusterError(f"slurm: {why}")

    def mistaken(self, why: str) -> bool:
        """By srun's words."""
        return bool(MISTAKES.search(why))

    def closed(self, why: str) -> bool:
        """By srun's words: the controller could not be reached."""
        return "Unable to contact slurm controller" in why

    def events(self) -> Sequence[Mapping[str, Any]]:
        """None yet."""
        return ()

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """Cancel the jobs of runs that were started here and whose harness is gone."""
        lines = []
        for line in self._slurm("squeue", "--me", "--noheader", "--format=%i|%j|%k").splitlines():
            job, name, comment = line.strip().split("|")
            if not name.startswith(JOBS):
                continue
            left = is_left(comment)
            if left and not dry_run:
                self._slurm("scancel", "--quiet", job)
            lines.append(f"{'left' if left else f'in use by {comment}, let be'}: job {job}, {name}")
        return lines

    def release(self) -> None:
        """Cancel the job; safe twice."""
        if self._job:
            job, self._job = self._job, ""
            self._slurm("scancel", "--quiet", job)
