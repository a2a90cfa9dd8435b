"""A Slurm cluster: a real controller, a real slurmd on each machine, and Slurm's commands for the harness.

Called by tests of what runs over Slurm, with Debian's packages. The controller has a machine of its own, so that the
harness has nothing but the clients, which need `bed.env`, and a munged of ours.
Time-outs are short: a node whose power is cut is DOWN after some 10 s instead of 300 s.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines import accounting, machines
from tests.engines.folders import vanishing
from tests.engines.machines import Machine

PROGRAMS = machines.PROGRAMS | {
    "munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "pkill": "procps",
}  # fmt: skip
"""Program → the Debian package that has it."""

CONTROLLER = "ctl"
CONTROLLER_NUMBER = 253
READY_TIMEOUT_S = 60
SOCKET = "/run/munge/munge.socket.2"
KEY = "/etc/slurm/munge.key"
STATE = "/var/lib/slurm/controller/job_state"
TOPOLOGY = "topology.conf"
CPUS = 64
"""Of a node, as Slurm counts them: more than there are, so that many small jobs fit."""

SETTINGS = {
    "ClusterName": "proving",
    "SlurmUser": "root",
    "StateSaveLocation": str(Path(STATE).parent),
    "SlurmdSpoolDir": "/var/lib/slurm/node",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "SlurmctldLogFile": "/var/log/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurmd.log",
    "ProctrackType": "proctrack/linuxproc",  # works with every layout of cgroups
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "MpiDefault": "none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SlurmdParameters": "config_overrides",
    "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2",
    "ReturnToService": "2",
    "SlurmdTimeout": "5",
    "MessageTimeout": "3",
    "TCPTimeout": "1",
    "KillWait": "2",
    "CompleteWait": "0",
}

KEEPALIVE = {"CommunicationParameters": "keepalivetime=2,keepaliveinterval=1,keepaliveprobes=3"}
"""For `settings`: srun ends some 7 s after its node's power was cut, with status 0; without this it stays."""

CGROUPS = "CgroupPlugin=cgroup/v1\n"
"""It is loaded and not used; the other plugin, or asking for the right one, ends slurmd on many machines."""

MUNGE = f"""
mkdir -p /var/lib/slurm
mkdir -m 755 /run/munge /var/log/munge
mkdir -m 700 /var/lib/munge
exec munged --key-file {KEY}
"""

KILL_SLURMD = ["sh", "-c", "kill -KILL $(cat /run/slurmd.pid)"]
KILL_CONTROLLER = ["sh", "-c", "kill -KILL $(cat /run/slurmctld.pid)"]
KILL_ALL = ["sh", "-c", "kill -KILL -1; true"]  # all but the machine's first process, which stays as its switch
RESTORE = ["sh", "-c", f"munged --force --key-file {KEY} && slurmd"]
KEPT = ["setpriv", "--pdeathsig", "clear"]
"""What a daemon is started by, so that it does not end with whoever starts it."""

GUARD = '"$@" & child=$!; read -r _; kill $child; wait $child'
"""A program that ends with our pipe."""


@dataclass(frozen=True)
class Cluster:
    """Nodes `e1`, `e2`, … by their names, and the controller's machine."""

    folder: Path
    nodes: dict[str, Machine]
    controller: Machine
    settings: Mapping[str, str]
    partitions: Mapping[str, str]
    switches: Mapping[str, str]
    key: str = field(default_factory=lambda: secrets.token_hex(64))

    @property
    def conf(self) -> Path:
        """For `SLURM_CONF`; it is there on the nodes, too, since jobs take the variable along."""
        return self.folder / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """The harness's variables with the one that Slurm's commands need."""
        return os.environ | {"SLURM_CONF": str(self.conf)}

    @property
    def socket(self) -> Path:
        """Of the harness's munged."""
        return self.folder / "munge.socket"

    def run(self, *command: str) -> str:
        """What one of Slurm's commands writes; it must succeed."""
        return subprocess.run(command, env=self.env, check=True, capture_output=True, text=True).stdout

    def states(self) -> dict[str, str]:
        """Node → its state as `sinfo` has it, for instance `idle`, `down*`."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t").splitlines()
        return dict(line.split() for line in lines)

    def wait_for(self, name: str, *states: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when a node has one of some states.

        Raises:
            TimeoutError: names the states that all of them have.
        """
        end = time.monotonic() + timeout_s
        while self.states()[name] not in states:
            if time.monotonic() > end:
                raise TimeoutError(f"{name} is not {states}: {self.states()}; {self.log(name)}")
            time.sleep(0.1)

    def log(self, name: str) -> str:
        """The end of what a node's slurmd logged, or the controller's."""
        machine, daemon = (self.controller, "slurmctld") if name == CONTROLLER else (self.nodes[name], "slurmd")
        return machine.run(["tail", "-n", "20", f"/var/log/{daemon}.log"], check=False).stdout if machine.up else ""

    @property
    def program(self) -> Path:
        """For `slurmd=`, `slurmctld=` and `power=`: it ends daemons, or all that runs on a node, and starts them."""
        return self.folder / "program"

    def write_program(self) -> None:
        """Write it, for the machines as they are now."""
        deeds = {f"kill {name}": it.command(KILL_SLURMD) for name, it in self.nodes.items()}
        deeds |= {f"start {name}": it.command([*KEPT, "slurmd"]) for name, it in self.nodes.items()}
        deeds |= {f"power kill {name}": it.command(KILL_ALL) for name, it in self.nodes.items()}
        deeds |= {f"power restore {name}": it.command([*KEPT, *RESTORE]) for name, it in self.nodes.items()}
        deeds |= {"stop": self.controller.command(KILL_CONTROLLER)}
        deeds |= {"start": self.controller.command([*KEPT, "slurmctld"])}
        cases = [f'"{words}") {shlex.join(command)} >/dev/null 2>&1 ;;' for words, command in deeds.items()]
        self.program.touch(0o700)
        self.program.write_text("\n".join(["#!/bin/sh", 'case "$*" in', *cases, "*) exit 2 ;;", "esac", ""]))

    def stop_munge(self) -> None:
        """End the harness's munged, for good: nobody here can ask Slurm anything any more."""
        os.kill(int((self.folder / "munge.pid").read_text()), signal.SIGTERM)
        while self.socket.exists():
            time.sleep(0.05)

    def kill_slurmd(self, name: str) -> None:
        """Kill a node's daemon; steps that run there go on."""
        self.nodes[name].run(KILL_SLURMD)

    def start_slurmd(self, name: str) -> None:
        """Start a node's daemon."""
        self.nodes[name].run(["slurmd"])

    def kill_controller(self) -> None:
        """Kill the controller's daemon; what it has not saved is lost, jobs of the last seconds included (`save`)."""
        self.controller.run(KILL_CONTROLLER)

    def save(self, job: str) -> None:
        """Return when the controller has written a job down, as it does some seconds after each change."""
        before, end = time.time(), time.monotonic() + READY_TIMEOUT_S
        self.run("scontrol", "update", f"jobid={job}", "comment=to be saved")
        while float(self.controller.run(["stat", "-c", "%.Y", STATE], check=False).stdout or 0) < before:
            if time.monotonic() > end:
                raise TimeoutError(f"the controller saves nothing: {self.log(CONTROLLER)}")
            time.sleep(0.1)

    def start_controller(self) -> None:
        """Start the controller's daemon, with the state that is there."""
        self.controller.run(["slurmctld"])

    def partition(self, name: str, *, on: bool = True) -> None:
        """Drop all packets between the harness and a node; the controller still reaches it."""
        self.nodes[name].partition(on=on)

    def power_off(self, name: str) -> None:
        """End all of a node at one stroke, in silence."""
        self.nodes[name].kill()

    def power_on(self, name: str) -> None:
        """Boot it again; the controller calls it idle some time later (`wait_for`)."""
        self.nodes[name].boot()
        self.install(self.nodes[name])
        self.start_slurmd(name)

    def install(self, machine: Machine) -> None:
        """Give a machine that has just booted its files, and start munged."""
        machine.write("/etc/slurm/slurm.conf", self.text(SOCKET), 0o644)
        machine.write(str(self.conf), self.text(SOCKET), 0o644)
        for folder in (Path("/etc/slurm"), self.folder):
            machine.write(str(folder / TOPOLOGY), self.topology, 0o644)
        machine.write("/etc/slurm/cgroup.conf", CGROUPS, 0o644)
        machine.write(KEY, self.key)
        machine.run(["sh", "-c", MUNGE])

    @property
    def topology(self) -> str:
        """topology.conf: each switch with its nodes, and one above them."""
        lines = [f"SwitchName={name} Nodes={nodes}" for name, nodes in self.switches.items()]
        return "\n".join([*lines, *([f"SwitchName=top Switches={','.join(self.switches)}"] if lines else []), ""])

    def text(self, socket: str | Path) -> str:
        """slurm.conf; munged's socket has another place on the harness's side."""
        places = {
            "SlurmctldHost": f"{CONTROLLER}({self.controller.address})",
            "AuthInfo": f"cred_expire=5,socket={socket}",
        }
        if "AccountingStorageHost" in self.settings:
            places["AccountingStoragePass"] = str(socket)  # by which slurmdbd is asked, and not by AuthInfo
        tree = {"TopologyPlugin": "topology/tree"} if self.switches else {}
        lines = [f"{name}={value}" for name, value in {**SETTINGS, **places, **tree, **self.settings}.items()]
        lines += [f"NodeName={it.name} NodeAddr={it.address} CPUs={CPUS} State=UNKNOWN" for it in self.nodes.values()]
        lines += [f"PartitionName={name} {options}" for name, options in self.partitions.items()]
        return "\n".join(lines) + "\n"


MAIN = {"main": "Nodes=ALL Default=YES MaxTime=INFINITE State=UP"}


@contextlib.contextmanager
def slurm(
    count: int,
    volume: Path | None = None,
    partitions: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    switches: Mapping[str, str] | None = None,
    *,
    counts: bool = False,
) -> Iterator[Cluster]:
    """A cluster of `count` nodes `e1`, `e2`, …, all idle; partition `main` has them all.

    `partitions` are more of these, name → its options in slurm.conf; `settings` are lines that differ from `SETTINGS`,
    `switches` the network, name → nodes. With `counts` it has an accounting (`accounting.PROGRAMS`).

    Raises:
        OSError: it cannot be had here.
        TimeoutError: a node did not become idle.
    """
    names = {number: f"e{number}" for number in range(1, count + 1)} | {CONTROLLER_NUMBER: CONTROLLER}
    with (
        vanishing("pg-slurm-") as folder,
        machines.named(names, volume) as made,
    ):
        *nodes, controller = made
        by_name = {machine.name: machine for machine in nodes}
        own = {**(settings or {}), **(accounting.settings(controller) if counts else {})}
        bed = Cluster(folder, by_name, controller, own, MAIN | dict(partitions or {}), switches or {})
        with authenticated(bed):
            start(bed)
            bed.write_program()
            yield bed


@contextlib.contextmanager
def authenticated(bed: Cluster) -> Iterator[None]:
    """A munged of the harness's own, and its slurm.conf; munged ends with our pipe."""
    bed.folder.chmod(0o755)
    bed.conf.write_text(bed.text(bed.socket))
    (bed.folder / TOPOLOGY).write_text(bed.topology)
    key = bed.folder / "munge.key"
    key.touch(0o600)
    key.write_text(bed.key)
    files = {"key-file": key.name, "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    munged = ["munged", "--foreground", *[f"--{name}={bed.folder / file}" for name, file in files.items()]]
    with (
        (bed.folder / "munge.log").open("w") as log,
        subprocess.Popen(
            ["sh", "-c", GUARD, "sh", *munged], stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def start(bed: Cluster) -> None:
    """Start all daemons, and wait until all nodes are idle."""
    for machine in (bed.controller, *bed.nodes.values()):
        bed.install(machine)
    bed.controller.run(["mkdir", "-p", SETTINGS["StateSaveLocation"]])
    if "AccountingStorageHost" in bed.settings:
        accounting.start(bed.controller, SETTINGS["ClusterName"], SOCKET)
    bed.start_controller()
    for name in bed.nodes:
        bed.start_slurmd(name)
    for name in bed.nodes:
        bed.wait_for(name, "idle")
