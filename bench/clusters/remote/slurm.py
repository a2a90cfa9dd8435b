"""Nodes that Slurm gives: `--cluster slurm:partition=gpu,account=lab,volume=/shared`. One job for the whole run.

The job's only step runs an agent on each node; `srun --overlap` into it is the line to each. The job goes on when a
node is lost (`--no-kill`), and another process can cancel it by its name, `proving-ground-<run id>`. With
`requeue=true` Slurm may start it again: on the same machines that brings every node back.
"""

from __future__ import annotations

import base64
import contextlib
import math
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from proving_ground.bench.clusters.remote.pool import BOOT, LEASE_S, Asked, Member, is_left, signature, work_folder
from proving_ground.bench.clusters.remote.programs import run_program
from proving_ground.bench.clusters.remote.slurm_accounts import Accounts
from proving_ground.bench.clusters.remote.slurm_fate import ENDS, FORGOTTEN, WAITS, ended, minutes
from proving_ground.bench.clusters.remote.slurm_notice import ELEMENT, JOB, LEAST_S, noticed
from proving_ground.bench.clusters.remote.slurm_story import Said, SlurmStory
from proving_ground.bench.clusters.remote.ssh import Folder
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.training.typed import Rule

COMMAND_S = 30.0  # for one of Slurm's commands
LOOK_S = 0.5
JOBS = "proving-ground-"  # how the names of its jobs begin
MISTAKES = re.compile(
    r"[Ii]nvalid (partition|account|qos|generic resource|feature|constraint|wckey|reservation|job array|node count)"
    r"|not available|not permitted|more processors requested|violates|exceeds|Access/permission denied"
    r"|Unable to submit batch job: (?!.*(contact|connect))"
)
"""What Slurm says where the caller has to ask for something else; all else is a bad day of the cluster's."""
NEVER = re.compile(r"(Assoc|QOS)(?!\w*Run)\w*Minutes\w*|Invalid(Account|QOS)")
"""Reasons to wait that no time mends, as squeue has them: the hours of an account or of a QOS are spent."""
MUNGE = re.compile(r"\bmunge\b.*(failed|error)", re.IGNORECASE)
"""What a command says before its last line, where munged does not answer on this machine."""
NOBODY = "proving-ground-asks-only"  # no machine is called so: whoever may change machines is told that
CLOSED = ("down", "drain")  # how sinfo's words begin for a machine that takes no job
PREFERRED_MIN = 15
"""Minutes of the job that preempts ours, at most: should the harness be killed, it holds the machines so long."""
TIMEOUTS = ("SlurmdTimeout", "SlurmctldTimeout", "MessageTimeout", "KillWait", "UnkillableStepTimeout")
CONNECT_S = 2.0
ABILITIES = {
    "operator": "the right to change the states of machines (as root, SlurmUser or an operator)",
    "requeue": "requeue=true, and then Slurm starts the job again",
    "preempt": "by a job in the partition that preempt= names",
    "time_limit": "notice_s= seconds before it, and then, with requeue=true, the job is begun again",
    "slurmd": "by slurmd=",
    "slurmctld": "by slurmctld=",
    "power": "by power=",
}
"""What can be broken there → what it takes."""
WITHOUT = {
    "operator": "no right to change the states of machines: that takes root, SlurmUser or an operator",
    "requeue": "without requeue=true the job is not started again",
    "time_limit": "without notice_s= and requeue=true a job ends with its time limit; of an array each has its own",
    "preempt": "no preempt= that names a partition whose jobs preempt this one",
    "slurmd": "no slurmd= that kills a machine's slurmd",
    "slurmctld": "no slurmctld= that takes the controller away",
    "power": "no power= that switches machines off",
}
"""The same → what is said where it lacks."""

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
    notice_s: Annotated[int, Rule(least=0, most=65_000)] = field(
        default=0, metadata={"help": "seconds before that limit at which all are told; 0: they are not"}
    )
    wait_min: Minutes = field(default=30, metadata={"help": "how long it may stand in the queue, in minutes"})
    python: str = field(default="python3", metadata={"help": "Python there, with torch for the trainer"})
    volume: Folder = field(default="", metadata={"help": "a folder that all nodes share, for checkpoints"})
    work: Folder = field(default="/tmp", metadata={"help": "where the agent keeps its files meanwhile"})  # noqa: S108
    emulated: bool = field(default=False, metadata={"help": "true where several nodes are one machine"})
    requeue: bool = field(
        default=False, metadata={"help": "true: Slurm may start the job again, and all agents with it"}
    )
    array: bool = field(
        default=False, metadata={"help": "true: each node is a job of its own, begun again elsewhere if it is lost"}
    )
    preempt: Word = field(default="", metadata={"help": "a partition whose jobs preempt this one"})
    slurmd: str = field(default="", metadata={"help": "a program run as `SLURMD kill MACHINE`, `SLURMD start MACHINE`"})
    slurmctld: str = field(default="", metadata={"help": "a program run as `SLURMCTLD stop` and `SLURMCTLD start`"})
    power: str = field(
        default="", metadata={"help": "a program run as `POWER kill MACHINE` and `POWER restore MACHINE`"}
    )


class SlurmPool:
    """A `Pool` of the nodes of one job."""

    name = "slurm"
    _me = "n{task}"  # what an agent is that Slurm starts

    def __init__(self, options: SlurmOptions) -> None:
        """Of these options.

        Raises:
            SpecError: the job would have its notice as it begins.
        """
        if options.notice_s and options.notice_s + LEAST_S >= 60 * options.time_min:
            raise SpecError(
                f"cluster slurm: notice_s = {options.notice_s}: Slurm may give notice up to {LEAST_S} s earlier, and a "
                f"job of time_min = {options.time_min} would have it as it begins"
            )
        self.options = options
        self.lease_s, self.wait_s = LEASE_S, 60.0 * options.wait_min
        self.volume = options.volume
        self._job = self._name = self._work = ""
        self._prefers = False  # whether there may be a job that preempts this one
        self._first_s = 0.0  # how long an agent waits for us at first, where that is longer than its lease
        self._where: dict[str, str] = {}  # node → its machine
        self._about: dict[str, str] = {}  # what Slurm speaks of, such as Node/e2 → the node that it is
        self._known: tuple[str, str, Collection[str]] = ("", "", ())  # squeue's last word: state, reason, machines
        self._over = ""  # how it has ended
        self._names: dict[str, Sequence[str]] = {}  # machines as Slurm writes them → one by one
        self._story: SlurmStory | None = None
        self._accounts = Accounts()
        self.queued_s: float | None = None

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
        """A matter of rights, of programs, and of what the job was asked for with."""
        return self._abilities

    @cached_property
    def _abilities(self) -> Sequence[Ability]:
        has = {name: bool(getattr(self.options, name, False)) for name in ABILITIES} | {"operator": self._may_mark()}
        has["time_limit"] = bool(self.options.requeue and self.options.notice_s) and not self.options.array
        return [Ability(name, yes=yes, how=(ABILITIES if yes else WITHOUT)[name]) for name, yes in has.items()]

    def _may_mark(self) -> bool:
        """Whether the controller lets us change machines: who may is told that there is none of that name."""
        try:
            self._slurm("scontrol", "update", f"nodename={NOBODY}", "state=resume")
        except ClusterError as why:
            return "Invalid node name" in str(why)
        except SpecError:  # Access/permission denied
            return False
        return True

    def imitated(self) -> Sequence[str]:
        """As the options say: nodes can be asked only once they are had, and then it is seen to be so."""
        return ["nodes: several of Slurm's on one machine"] if self.options.emulated else []

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """The batch script that would be submitted."""
        del processes
        return self._script(f"{JOBS}RUN", trial.nodes, "(the agent, as base64)\n")

    def _script(self, name: str, nodes: int, agent: str) -> str:
        array = self.options.array
        asked = {
            "job-name": name, "array": f"1-{nodes}" if array else "", "nodes": "1" if array else str(nodes),
            "ntasks-per-node": "1", "time": str(self.options.time_min),
            "partition": self.options.partition, "account": self.options.account, "qos": self.options.qos,
            "constraint": self.options.constraint, "gres": self.options.gres, "reservation": self.options.reservation,
            "chdir": "/", "output": "/dev/null", "comment": signature(),
        }  # fmt: skip
        head = "".join(f"#SBATCH --{key}={value}\n" for key, value in asked.items() if value)
        step = "srun --no-kill --kill-on-bad-exit=0 --chdir=/ --exclusive --exact"
        again, notice_s = "requeue" if self.options.requeue else "no-requeue", self.options.notice_s
        flags = ("exclusive", *(() if array else ("no-kill",)), again)
        head += "".join(f"#SBATCH --{flag}\n" for flag in flags)
        run = f"base64 -d <<'AGENT' | {step} {shlex.join([self.options.python, '-c', BOOT])}{' &' * bool(notice_s)}\n"
        body = f"{run}{agent}AGENT\n"
        if notice_s:
            head += f"#SBATCH --signal=B:USR1@{notice_s}\n"
            body = noticed(body, notice_s, ELEMENT if array else JOB, requeue=self.options.requeue)
        return f"#!/bin/sh\n{head}{body}"

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """Submit the job and wait until it has its nodes."""
        self._work = work_folder(self.options.work, request)
        me = Member(self._me, "", "", (), self._work, "stay", first_s=self._first_s)
        agent = base64.encodebytes(ask(me)).decode()
        self._name = f"{JOBS}{request.run_id}"
        script = self._script(self._name, request.nodes, agent)
        self._job = self._slurm("sbatch", "--parsable", script=script).split(";")[0].strip()
        self._accounts.jobs.append(self._job)
        begin = time.monotonic()
        self._where = {f"n{number}": host for number, host in enumerate(self._hosts(request.nodes, tell), 1)}
        self.queued_s = time.monotonic() - begin
        self._about |= {f"Node/{host}": node for node, host in self._where.items()}
        self._story = SlurmStory(self._said, self._about)
        self._story.begin()
        return [self._member(node, host) for node, host in self._where.items()]

    def _into(self, node: str) -> tuple[str, ...]:
        """The program that leads to a node: a step beside the agent's, on the machine that the job has as it."""
        return (*self._step(self._job), "-w", self._where[node], self.options.python, "-c", BOOT)

    @staticmethod
    def _step(job: str) -> tuple[str, ...]:
        return ("srun", "--overlap", f"--jobid={job}", "--unbuffered", "--chdir=/", "-N1", "-n1")

    def _hosts(self, count: int, tell: Callable[[str], None]) -> list[str]:
        """The job's nodes, as soon as it runs; why it does not is told whenever that changes."""
        told, deadline = "", time.monotonic() + 60 * self.options.wait_min
        del count  # Slurm gives all or none
        while True:
            state, reason, _, hosts = self._squeue(self._job)
            if state == "RUNNING":
                return list(self._hostnames(hosts))
            if state in ENDS or not state:
                raise ClusterError(f"slurm: {self._ended(state, reason)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"slurm: job {self._job} stood in the queue for {self.options.wait_min} min ({reason}); "
                    "wait_min= allows for more"
                )
            self._refuse_for_good(reason)
            if reason not in (told, "None"):
                told = reason
                tell(f"job {self._job} is {state.lower()}: {reason}")
            time.sleep(LOOK_S)

    def _refuse_for_good(self, reason: str) -> None:
        """Wait for nothing that does not come.

        Raises:
            SpecError: the account has no hours, say.
        """
        if NEVER.fullmatch(reason):
            raise SpecError(
                f"cluster slurm: job {self._job} would never run: {reason}; another account= or qos=, or a shorter "
                "time_min=, may"
            )

    def _member(self, name: str, host: str) -> Member:
        """A node on a machine, with what Slurm knows of that; what fails together is what is at one switch."""
        known = self._shown(host)
        features = {it: "yes" for it in known.get("ActiveFeatures", "").split(",") if it}
        slots = int(known["CPUTot"]) if known.get("CPUTot", "").isdecimal() else None
        at = address(known.get("NodeAddr") or host)
        return Member(
            name, host, at, self._into(name), self._work, "not", slots=slots, zone=self._switch(host), labels=features
        )  # fmt: skip

    def _switch(self, host: str) -> str:
        """The switch that a node is at; empty where the cluster knows of none."""
        with contextlib.suppress(SpecError, ClusterError):
            found = re.search(r"SwitchName=(\S+) Level=0", self._slurm("scontrol", "show", "topology", host))
            return found[1] if found else ""
        return ""

    def _shown(self, host: str) -> dict[str, str]:
        """What the controller knows of a machine."""
        return shown(self._slurm("scontrol", "--oneliner", "show", "node", host))

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
        why = next(filter(MUNGE.search, lines), lines[-1] if lines else "no word why")
        if MISTAKES.search(done.stderr):
            raise SpecError(f"cluster slurm: {why}")
        raise ClusterError(f"slurm: {why}")

    def mistaken(self, why: str) -> bool:
        """By srun's words."""
        return bool(MISTAKES.search(why))

    def closed(self, why: str) -> bool:
        """By srun's words: the controller could not be reached."""
        return "Unable to contact slurm controller" in why

    # --- what Slurm says

    def timeouts(self) -> Mapping[str, float]:
        """Slurm's own, in seconds, as the site has set them."""
        found = {name: re.match(r"(\d+) sec", self._config.get(name, "")) for name in TIMEOUTS}
        return {name: float(it[1]) for name, it in found.items() if it}

    @cached_property
    def _config(self) -> Mapping[str, str]:
        """As `scontrol show config` has it."""
        shown = self._slurm("scontrol", "show", "config")
        return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", shown, re.MULTILINE))

    def _said(self) -> Said:
        """The state of the job and of its machines, each with the reason for it.

        Raises:
            OSError: Slurm does not answer.
        """
        job = self._job
        try:
            self._slurm("scontrol", "ping")  # which says so at once; the others try for seconds
            state, reason, _, hosts = self._squeue(job)
            self._note(state, reason, hosts)
            machines = self._sinfo(list(self._where.values()))
        except (ClusterError, SpecError) as why:
            raise OSError(str(why)) from None
        return {f"Job/{job}": (state, reason), **{f"Node/{host}": said for host, said in machines.items()}}

    def _sinfo(self, hosts: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
        """Machine, all without names → its state, such as `allocated`, `down*`, and the reason for it or `none`."""
        named = [f"--nodes={','.join(hosts)}"] if hosts else []
        lines = self._slurm("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T|%E", *named).splitlines()
        rows = [line.strip().split("|", 2) for line in lines]
        return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}

    def state_of(self, where: str) -> Mapping[str, Any]:
        """What Slurm says of a machine, whoever has it."""
        state, reason = self._state(where)
        return {"where": where, "state": state, "reason": reason}

    def _state(self, where: str) -> tuple[str, str]:
        """The same of one machine.

        Raises:
            ClusterError: Slurm does not say.
        """
        if where not in (found := self._sinfo([where])):
            raise ClusterError(f"slurm: sinfo does not know {where}")
        return found[where]

    def _squeue(self, job: str) -> list[str]:
        """State, reason, begin and machines of a job; empty words once Slurm has forgotten it."""
        try:
            line = self._slurm("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r|%S|%N").strip()
        except ClusterError as why:
            if FORGOTTEN not in str(why):
                raise
            line = ""
        return line.split("|") if line else [""] * 4

    # --- what becomes of the job

    def _note(self, state: str, reason: str, hosts: str) -> None:
        """Keep what was said last; how the job has ended is found out once."""
        self._known = (state, reason, self._hostnames(hosts))
        if not self._over and (state in ENDS or not state):
            self._over = self._ended(state, reason)

    def _ended(self, state: str, reason: str) -> str:
        """How the job has ended, as Slurm tells it, or as squeue did where it has forgotten the rest."""
        found = {"JobState": state, "Reason": reason}
        with contextlib.suppress(ClusterError, SpecError):
            found |= self._job_shown()
        return ended(self._job, found, self.options.time_min, self._who() if state == "CANCELLED" else "")

    def _job_shown(self) -> dict[str, str]:
        """What the controller knows of the job."""
        return shown(self._slurm("scontrol", "--oneliner", "show", "job", self._job))

    def _who(self) -> str:
        """`CANCELLED by 1000`, where the site keeps accounts; else nobody knows."""
        with contextlib.suppress(ClusterError, SpecError):
            if "slurmdbd" in self._config.get("AccountingStorageType", ""):
                words = ("--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={self._job}")
                return self._slurm("sacct", *words).strip().rpartition("\n")[2]
        return ""

    def waits(self) -> Mapping[str, str]:
        """All nodes, while the job does not run."""
        state, reason, _ = self._known
        return dict.fromkeys(self._where, f"job {self._job} is {state.lower()}: {reason}") if state in WAITS else {}

    def lost(self) -> Collection[str]:
        """Those whose machine the job has no more, though it runs: it gets no other."""
        state, _, hosts = self._known
        return {node for node, where in self._where.items() if state == "RUNNING" and where not in hosts}

    def over(self) -> str:
        """How the job has ended, for good."""
        return self._over

    def _hostnames(self, hosts: str) -> Sequence[str]:
        """Machines that are written as `e[1-2]`, one by one."""
        if hosts not in self._names:
            self._names[hosts] = self._slurm("scontrol", "show", "hostnames", hosts).split() if hosts else []
        return self._names[hosts]

    def events(self) -> Iterable[Mapping[str, Any]]:
        """Each change of the job's state and of its machines'."""
        return self._story.more() if self._story else ()

    def machine(self, node: str) -> Mapping[str, Any]:
        """The job's machine that is this node; `id`: which begin of the job has it, empty where it has it no more."""
        where = self._where[node]
        job, why, begun, hosts = self._squeue(self._job)
        has = job == "RUNNING" and where in self._hostnames(hosts)
        begin = f"{self._job} since {begun}" if has else ""
        return {"id": begin, "name": where, **self.state_of(where), "job": job, "job_reason": why}

    def pulse(self, where: str) -> Mapping[str, Any]:
        """When the machine's slurmd was started, as it has told the controller."""
        return {
            "where": where,
            "at": self._shown(where).get("SlurmdStartTime", ""),
            "every_s": self.timeouts()["SlurmdTimeout"],
        }

    def answers(self, where: str) -> bool:
        """Whether a machine's slurmd takes a connection, as srun makes one.

        Raises:
            ClusterError: that cannot be told.
        """
        try:
            known = self._shown(where)
            at, port = address(known.get("NodeAddr") or where), known.get("Port") or self._config["SlurmdPort"]
            socket.create_connection((at, int(port)), CONNECT_S).close()
        except ConnectionRefusedError:
            return False
        except OSError as why:
            raise ClusterError(f"slurm: {where}: whether its slurmd answers cannot be told: {why}") from None
        return True

    # --- what can be broken

    def mark(self, where: str, state: str) -> None:
        """Have Slurm take a machine for `down`, or `drain` it; or `resume` it, if it still is closed by this run.

        Raises:
            ClusterError: Slurm refuses, or somebody else has closed the machine.
        """
        now, reason = self._state(where)
        closed = now.startswith(CLOSED)
        if state == "resume":
            if closed and reason == self._name:  # by ReturnToService it may be back, and another's stays closed
                self._open(where)
        elif closed:
            raise ClusterError(f"slurm: {where} is {now} already, and not by this fault: {reason}")
        else:
            self._slurm("scontrol", "update", f"nodename={where}", f"state={state}", f"reason={self._name}")

    def _open(self, where: str) -> None:
        self._slurm("scontrol", "update", f"nodename={where}", "state=resume")

    def requeue(self, nodes: Sequence[str]) -> None:
        """Have Slurm end the job, with its notice, and put it into the queue again.

        Raises:
            ClusterError: it has other nodes, too.
        """
        if others := self._where.keys() - set(nodes):
            raise ClusterError(f"slurm: the job that would be requeued also has {', '.join(sorted(others))}")
        self._slurm("scontrol", "requeue", self._job)

    def limit(self, *, on: bool) -> Mapping[str, Any]:
        """Lower the job's time limit, in whole minutes, to the first that leaves time for the notice; or set it."""
        before = self._job_shown()
        near = math.ceil(minutes(before["RunTime"]) + self.options.notice_s / 60)
        if on and near >= minutes(before["TimeLimit"]):
            raise ClusterError(f"slurm: job {self._job} is near its time limit as it is: {before['TimeLimit']}")
        self._slurm("scontrol", "update", f"jobid={self._job}", f"timelimit={near if on else self.options.time_min}")
        now = self._job_shown()
        limit_min, ran_min = minutes(now["TimeLimit"]), minutes(now["RunTime"])
        found = {"before_min": minutes(before["TimeLimit"]), "limit_min": limit_min}
        return {**found, "left_s": round(60 * (limit_min - ran_min), 1)}

    def preempt(self, *, on: bool) -> None:
        """Have a job of ours that is preferred take all machines; or cancel that job."""
        name = f"{self._name}-preferred"
        if on:
            hosts, minutes = ",".join(self._where.values()), min(PREFERRED_MIN, self.options.time_min)
            self._prefers = True  # before Slurm has answered: Ctrl-C may come while it has the job, and we no number
            job = self._slurm(
                "sbatch", "--parsable", f"--job-name={name}", f"--partition={self.options.preempt}",
                f"--nodes={len(self._where)}", f"--nodelist={hosts}", "--exclusive", "--no-requeue", "--chdir=/",
                "--output=/dev/null", f"--time={minutes}", f"--comment={signature()}",
                f"--wrap=sleep {60 * minutes}",
            )  # fmt: skip
            self._accounts.jobs.append(job.split(";")[0].strip())
        elif self._prefers:
            self._slurm("scancel", "--quiet", "--me", f"--name={name}")
            self._prefers = False

    def daemon(self, where: str, *, on: bool) -> None:
        """By the program that `slurmd=` names."""
        run_program("slurm", "slurmd", self.options.slurmd, "start" if on else "kill", where)

    def control(self, *, on: bool) -> None:
        """By the program that `slurmctld=` names."""
        run_program("slurm", "slurmctld", self.options.slurmctld, "start" if on else "stop")

    def controlled(self) -> bool:
        """Whether the controller answers `scontrol ping`."""
        try:
            self._slurm("scontrol", "ping")
        except ClusterError:
            return False
        return True

    def power(self, where: str, *, on: bool) -> None:
        """By the program that `power=` names."""
        run_program("slurm", "power", self.options.power, "restore" if on else "kill", where)

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """Cancel the jobs of runs that were started here and whose harness is gone, and open what they had closed."""
        lines, over = [], set[str]()
        known = self._slurm("squeue", "--me", "--noheader", "--format=%F|%j|%k").splitlines()
        for line in dict.fromkeys(known):  # elements of an array have its number, and a line each
            job, name, comment = line.strip().split("|", 2)
            if not name.startswith(JOBS):
                continue
            left = is_left(comment)
            if left and not dry_run:
                self._slurm("scancel", "--quiet", job)
            lines.append(f"{'left' if left else f'in use by {comment}, let be'}: job {job}, {name}")
            over |= {name} if left else set()
        return [*lines, *self._clean_machines(over, dry_run=dry_run)]

    def _clean_machines(self, over: Collection[str], *, dry_run: bool) -> Iterator[str]:
        """Open those that a run had closed that is over, where we may; a run that goes on may be another user's."""
        if not self._may_mark():
            return
        live = set(self._slurm("squeue", "--all", "--noheader", "--format=%j").split()) - set(over)
        for where, (state, reason) in self._sinfo().items():
            if state.startswith(CLOSED) and reason.startswith(JOBS) and reason not in live:
                if not dry_run:
                    self._open(where)
                yield f"left: machine {where}, {state} by {reason}"

    def release(self) -> None:
        """Cancel the job, whatever else fails; safe twice."""
        try:
            if self._story:
                self._story.end()
            self.preempt(on=False)
        finally:
            if self._job:
                self._slurm("scancel", "--quiet", self._job)
                self._job = ""

    def accounts(self) -> Mapping[str, Any]:
        """What sacct says of the run's jobs, each of their begins apart."""
        return self._accounts.told(self._name)


def address(name: str) -> str:
    """Where the others reach a node: by the name that Slurm does, since the harness may not know it."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def shown(line: str) -> dict[str, str]:
    """What `scontrol --oneliner show node` says: key → value, without those that are `(null)`."""
    return {key: value for key, value in re.findall(r"(?:^|\s)(\w+)=(\S+)", line) if value != "(null)"}
