"""Nodes of a Ray cluster: `--cluster ray:ray://head:10001,token_file=ray.token,volume=/shared`. One actor a node.

The actor is pinned to its node and starts the agent there; calls of it carry the bytes of the line to the agent. Ray
starts an actor anew whose raylet was lost, as soon as another registers from the node's address. `remote.ray_driver` is
the only one that knows Ray.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from proving_ground.bench.child import ROOT
from proving_ground.bench.clusters.local.handles import interrupts_later
from proving_ground.bench.clusters.remote import carried
from proving_ground.bench.clusters.remote.pool import (
    BOOT,
    LEASE_S,
    NOT_ASKED,
    Asked,
    Member,
    is_left,
    left_line,
    signature,
    work_folder,
    work_root,
)
from proving_ground.bench.clusters.remote.programs import run_program
from proving_ground.bench.clusters.remote.ray_driver import AWAY
from proving_ground.bench.clusters.remote.ssh import Folder
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.training.typed import Rule

DRIVER = Path(__file__).with_name("ray_driver.py")
ANSWER_S = 150.0  # the driver may have to connect first: Ray takes its time, and is asked again where it has failed
TELL_S = 10.0  # after which it is told that an actor is waited for
HEALTH_S = 3.0  # how often Ray looks after a node
GONE = "the Ray driver is gone"
LINE = (
    "import sys;sys.path.insert(0,sys.argv[1]);from proving_ground.bench.agent.boot import bridge,connected;"
    f"line=connected(sys.argv[2]) or sys.exit({GONE!r});line.sendall(sys.argv[3].encode()+b'\\n');bridge(line)"
)
"""Program of the link: a connection to the driver's socket, and the name of the actor that it is to lead to."""
MISTAKES = re.compile(
    r"UNAUTHENTICATED|PERMISSION_DENIED|AuthenticationError|[Vv]ersion mismatch|versions? (is|are) incompatible"
    r"|does not answer at|No module named 'ray|FileNotFoundError|PermissionError|is not a folder of this user"
    r"|the agent needs 3\.9"
)
"""What Ray and the nodes say where the caller has to change something; else it is a bad day of the cluster's."""

ZONE = "ray.io/availability-zone"
"""Label of a node that says where it is."""

Count = Annotated[int, Rule(least=0, most=10_000)]


@dataclass(frozen=True)
class RayOptions:
    """What `--cluster ray:…` says; the first option may stand without its name."""

    address: str = field(
        default="", metadata={"help": "ray://HOST:10001; or HOST:6379, on a machine of the cluster; else RAY_ADDRESS"}
    )
    token_file: str = field(default="", metadata={"help": "a file with the token of a cluster that asks for one"})
    cpus: Count = field(default=0, metadata={"help": "CPUs of each node that Ray is to keep for the run"})
    gpus: Count = field(default=0, metadata={"help": "GPUs of each node, likewise; a run sees no others"})
    python: str = field(default="", metadata={"help": "Python there, with torch for the trainer; Ray's own without"})
    volume: Folder = field(default="", metadata={"help": "a folder that all nodes share, for checkpoints"})
    work: Folder = field(default="/tmp", metadata={"help": "where the agent keeps its files meanwhile"})  # noqa: S108
    wait_min: Annotated[int, Rule(least=1, most=10_000)] = field(
        default=5, metadata={"help": "how long an actor may wait for CPUs and GPUs, in minutes"}
    )
    emulated: bool = field(default=False, metadata={"help": "true where several nodes are one machine"})
    power: str = field(
        default="", metadata={"help": "a program run as `POWER kill MACHINE` and `POWER restore MACHINE`"}
    )


class RayPool:
    """A `Pool` of nodes that a Ray cluster has."""

    name = "ray"

    def __init__(self, options: RayOptions) -> None:
        """Nothing is started before something is asked.

        Raises:
            SpecError: no cluster is named, or there is no such token.
        """
        if not (options.address or os.environ.get("RAY_ADDRESS")):
            raise SpecError("cluster ray: which one? Such as --cluster ray:ray://head:10001,volume=/shared")
        if options.token_file and not os.access(options.token_file, os.R_OK):
            raise SpecError(f"cluster ray: token_file = {options.token_file!r}: no such file, or it cannot be read")
        self.options = replace(options, address=options.address or os.environ.get("RAY_ADDRESS", ""))
        self.lease_s, self.wait_s = LEASE_S, 60.0 * options.wait_min
        self.volume = options.volume
        self._actors: list[str] = []
        self._hosts: dict[str, str] = {}  # node → its machine, by the name that Ray has for it

    @cached_property
    def driver(self) -> Driver:
        """The connection to Ray.

        Raises:
            SpecError: Ray is not installed here, refuses us, or is another version there.
            ClusterError: it does not answer.
        """
        return Driver(self.options)

    @cached_property
    def capacity(self) -> int | None:
        """Nodes with as many CPUs and GPUs as are asked for."""
        return len(self._nodes())

    def _nodes(self) -> list[dict[str, Any]]:
        cpus, gpus = self.options.cpus, self.options.gpus
        return [it for it in self.driver.ask("nodes") if it["cpus"] >= cpus and it["gpus"] >= gpus]

    def abilities(self) -> Sequence[Ability]:
        """The loss of a machine, where a program of the user's switches it off."""
        how = "by power=" if self.options.power else "no power= that switches machines off"
        return [Ability("power", yes=bool(self.options.power), how=how)]

    def imitated(self) -> Sequence[str]:
        """As the options say: nodes can be asked only once they are had, and then it is seen to be so."""
        return ["nodes: several of Ray's on one machine"] if self.options.emulated else []

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """The actors that would be asked for."""
        del processes
        asked = f"num_cpus={self.options.cpus}, num_gpus={self.options.gpus}, max_restarts=-1, lifetime='detached'"
        head = f"ray.init({self.options.address!r}, namespace='proving-ground')\n"
        lines = [
            f"n{number}  ray.remote(Shell).options(resources={{'node:ADDRESS': 0.001}}, {asked})\n"
            for number in range(1, trial.nodes + 1)
        ]
        return head + "".join(lines)

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """Have an actor on each node, and wait until all of them run."""
        nodes = self._nodes()[: request.nodes]
        if len(nodes) < request.nodes:
            raise SpecError(f"cluster ray: the run takes {request.nodes} nodes, {len(nodes)} are up")
        work = work_folder(self.options.work, request)
        shared = Counter(it["address"] for it in nodes)
        members, agents = [], []
        for number, it in enumerate(nodes, 1):
            name = f"{request.run_id} n{number} {signature()}"
            link = (sys.executable, "-c", LINE, str(ROOT), self.driver.socket, name)
            known = {"slots": int(it["cpus"]), "zone": it["labels"].get(ZONE, ""), "labels": it["labels"]}
            members.append(Member(f"n{number}", it["host"], it["address"], link, work, "not", **known))
            greeting = ask(replace(members[-1], start="stay"))
            pin = it["id"] if shared[it["address"]] > 1 else ""
            agents.append({"name": name, "id": pin, "address": it["address"], "greeting": greeting.decode("latin-1")})
        self._actors = [str(it["name"]) for it in agents]
        self._hosts = {it.name: it.host for it in members}
        o = self.options
        self.driver.ask("start", agents=agents, cpus=o.cpus, gpus=o.gpus, python=o.python, boot=BOOT)
        self._await(tell)
        return members

    def _await(self, tell: Callable[[str], None]) -> None:
        """Until all actors run; those that do not are told.

        Raises:
            SpecError, ClusterError: one cannot start its agent, or is not given its share in time.
        """
        deadline, waiting = time.monotonic() + 60 * self.options.wait_min, self._actors
        while waiting:
            up = self.driver.ask("up", names=waiting, wait_s=TELL_S)
            for name, it in up.items():
                if it["why"]:
                    raise refused(f"{short(name)}: {it['why']}")
                if it["nice"] > 0:
                    tell(
                        f"{short(name)} runs at nice {it['nice']}: start raylets with RAY_worker_niceness=0 to measure"
                    )
            waiting = [name for name in waiting if name not in up]
            why = f"{', '.join(map(short, waiting))}: Ray has not started the actor yet: is what it asks for in use?"
            if waiting and time.monotonic() > deadline:
                raise ClusterError(f"ray: {why} wait_min= allows for more")
            if waiting:
                tell(why)

    def mistaken(self, why: str) -> bool:
        """By Ray's words."""
        return bool(MISTAKES.search(why))

    def closed(self, why: str) -> bool:
        """By the driver's words: Ray's head could not be reached."""
        if GONE in why:
            self.driver.begin()
        return GONE in why or AWAY in why

    def machine(self, node: str) -> Mapping[str, Any]:
        """The raylet that is there now: Ray gives each a new id."""
        where = self._hosts[node]
        found = next((it for it in self.driver.ask("nodes") if it["host"] == where), {"id": ""})
        return {"id": found["id"], "name": found["id"], "where": where, "state": "ALIVE" if found["id"] else ""}

    def power(self, where: str, *, on: bool) -> None:
        """By the program that `power=` names."""
        run_program(self.name, "power", self.options.power, "restore" if on else "kill", where)

    def pulse(self, where: str) -> Mapping[str, Any]:
        """The raylets that have registered from there: one that was lost never comes back, another does."""
        return {"where": where, "at": " ".join(self.driver.ask("registered", host=where)), "every_s": HEALTH_S}

    def events(self) -> Sequence[Mapping[str, Any]]:
        """None yet."""
        return ()

    def release(self) -> None:
        """End the actors; safe twice."""
        actors, self._actors = self._actors, []
        try:
            if actors:
                self.driver.ask("kill", names=actors)
        finally:
            if "driver" in vars(self):
                self.driver.end()

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """End actors of runs that were started here and whose harness is gone, and remove what their agents left."""
        lines, over = [], list[str]()
        for name in self.driver.ask("named"):
            run, node, who = name.split(" ")
            left = is_left(who)
            lines.append(f"{'left' if left else f'in use by {who}, let be'}: actor of {node} of run {run}")
            if left and not dry_run:
                over.append(name)
        if over:
            self.driver.ask("kill", names=over)
        words = (work_root(self.options.work), *(() if dry_run else ("end",)))
        every = self.driver.ask("left", program=carried.LEFT.read_text(), words=words)
        for host, it in every.items():
            lines += [left_line(host, one) for one in it["found"]]
            lines += [f"{NOT_ASKED}: {host}: {it['why']}"] if it["why"] else []
        return lines


class Driver:
    """The process that speaks with Ray, and what it is asked. One that has ended is started again as it is needed."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="pg-ray-")
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the driver
        self._talk: Talk | None = None
        try:
            self.ask("version")
        except BaseException:
            self.end()
            raise

    @property
    def socket(self) -> str:
        """Where it takes connections that are to lead to an agent."""
        return f"{self._folder.name}/socket"

    def begin(self) -> Talk:
        """Start it, unless it runs. It connects by itself, and is not waited for."""
        if self._talk and not self._talk.over:
            return self._talk
        self._end_process()
        Path(self.socket).unlink(missing_ok=True)
        self._complaints.seek(0)
        self._complaints.truncate()
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self._options.token_file}
        process = subprocess.Popen(
            [sys.executable, "-P", str(DRIVER), self._options.address, self.socket], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._complaints, start_new_session=True, text=True, bufsize=1,
            env={**os.environ, **(own if self._options.token_file else {})},
        )  # fmt: skip
        self._ended = weakref.finalize(self, ended, process)
        self._talk = Talk(process)
        return self._talk

    def ask(self, verb: str, **about: object) -> Any:  # noqa: ANN401 - JSON
        """Its answer.

        Raises:
            SpecError, ClusterError: it has none; says why.
        """
        answer = self.begin().ask(verb, about, ANSWER_S)
        if not answer:
            raise refused(self._last_complaint())
        if "error" in answer:
            raise refused(answer["error"])
        return answer["ok"]

    def _last_complaint(self) -> str:
        self._complaints.seek(0)
        lines = [it for it in self._complaints.read().decode(errors="replace").splitlines() if it.strip()]
        return lines[-1].strip() if lines else GONE

    def _end_process(self) -> None:
        if self._talk:
            self._ended()

    def end(self) -> None:
        """End it; what it had said is said."""
        self._end_process()
        self._complaints.close()
        self._folder.cleanup()


class Talk:
    """Questions to a process and its answers, lines of JSON that a number pairs: they may come late, or never."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.over = False  # whether the process says nothing any more
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        threading.Thread(target=self._hear, daemon=True).start()

    def ask(self, verb: str, about: Mapping[str, object], seconds: float) -> dict[str, Any]:
        """The answer, `ok` or `error`; empty where the process has ended. One that comes later is dropped.

        Raises:
            ClusterError: there is none in time.
        """
        number, answer = next(self._numbers), queue.SimpleQueue[dict[str, Any]]()
        self._waiting[number] = answer
        try:
            self._say(json.dumps({"id": number, "verb": verb, "about": about}) + "\n")
            return {} if self.over else answer.get(timeout=seconds)
        except queue.Empty:
            raise ClusterError(f"ray: {verb}: no answer within {seconds:g} s") from None
        finally:
            del self._waiting[number]

    def _say(self, line: str) -> None:
        """Write it whole: after half a line the next question would not be understood."""
        assert self._process.stdin is not None  # noqa: S101 - asked for
        with interrupts_later(), contextlib.suppress(OSError):  # it has ended, and `_hear` tells
            self._process.stdin.write(line)

    def _hear(self) -> None:
        """Give each answer to who waits for it, until there are no more."""
        assert self._process.stdout is not None  # noqa: S101 - asked for
        with self._process.stdout as lines, contextlib.suppress(ValueError):  # half a line of one that was killed
            for line in lines:
                answer = json.loads(line)
                if waits := self._waiting.get(answer["re"]):
                    waits.put(answer)
        self.over = True  # before the rest: who comes to wait after it looks at this
        for waits in list(self._waiting.values()):
            waits.put({})


def ended(process: subprocess.Popen[str]) -> None:
    """End a process that we talk to; safe twice."""
    process.kill()
    process.wait()
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()


def short(name: str) -> str:
    """The node that an actor is for."""
    return name.split(" ")[1]


def refused(why: str) -> SpecError | ClusterError:
    """What Ray complained of: the caller's mistake, or a bad day."""
    if "UNAUTHENTICATED" in why or "AuthenticationError" in why:
        return SpecError(f"cluster ray: the token is missing or wrong: token_file= names it ({why})")
    return SpecError(f"cluster ray: {why}") if MISTAKES.search(why) else ClusterError(f"ray: {why}")
