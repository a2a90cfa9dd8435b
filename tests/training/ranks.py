"""Real ranks for tests: processes forked from a warm server, on the loopback interface, each with its event file."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proving_ground.bench import servers
from proving_ground.training.events import EVENTS_VARIABLE

from .mutants import become

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from multiprocessing.context import ForkServerProcess

Event = dict[str, Any]

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["proving_ground.training.warm"])


@dataclass
class Ranks:
    """The ranks of one job, started."""

    folder: Path
    processes: list[ForkServerProcess]

    def wait(self, timeout_s: float = 240) -> list[int]:
        """Exit codes (minus the signal's number) once all have ended; a rank that does not end in time is killed."""
        end = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode or 0 for process in self.processes]

    def strike(self, ranks: Iterable[int]) -> None:
        """Kill these ranks as at one moment: stopped first, none sees another's end."""
        struck = [self.processes[rank] for rank in ranks]
        pids = [it.pid for it in struck if it.pid and it.exitcode is None]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)

    def kill(self) -> list[int]:
        """Exit codes after all were struck."""
        self.strike(range(len(self.processes)))
        return self.wait()

    def events(self, rank: int = 0, name: str | None = None) -> list[Event]:
        """What a rank said so far, all of it or one kind of event."""
        file = self.folder / f"{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if name in (None, event["event"])]

    def printed(self, rank: int = 0) -> str:
        """What a rank printed."""
        return (self.folder / f"{rank}.log").read_text()

    def until(self, step: int, rank: int = 0, name: str = "step", timeout_s: float = 120) -> None:
        """Wait until a rank has done `step` steps; of `name` "checkpoint": until one of them or more is durable."""
        end = time.monotonic() + timeout_s
        while not any(event["step"] >= step for event in self.events(rank, name)):
            assert time.monotonic() < end, self.printed(rank)
            time.sleep(0.005)


def start(
    folder: Path, size: int, arguments: Sequence[str], command: str = "run", mutant: str = "", **environ: str
) -> Ranks:
    """Start `size` ranks of `pg training run` (or another command); their files go to `folder`.

    `mutant` names a way in which they are wrong (`mutants.py`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), EVENTS_VARIABLE: str(folder / f"{rank}.jsonl")}
        given = ([command, *arguments], shared | own | environ, folder / f"{rank}.log", mutant)
        processes.append(FORKED.Process(target=be_rank, args=given))
        processes[-1].start()
    return Ranks(folder, processes)


def be_rank(arguments: list[str], environ: dict[str, str], log: Path, mutant: str) -> None:
    """The forked process' life."""
    os.environ.update(environ, GLOO_SOCKET_IFNAME="lo")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from proving_ground.training.__main__ import leave, main  # noqa: PLC0415 - after the environment is set

    become(mutant)
    leave(main(arguments))


GIVEN: set[int] = set()
"""Ports that this process has asked for: one that is not bound yet looks free."""


def free_port() -> int:
    """A port of the loopback interface that nobody has, nor was given here."""
    while (port := servers.free_port(0)) in GIVEN:
        pass
    GIVEN.add(port)
    return port


def sets(**keys: object) -> list[str]:
    """`--set` arguments."""
    return [part for name, value in keys.items() for part in ("--set", f"{name}={value}")]
