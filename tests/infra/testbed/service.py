"""The testbed in the background: one process holds the cluster and does what is asked of it. Called by `__main__.py`.

It has the lock of its folder for as long as it lives, so nobody takes a testbed that was killed for one that is up.
All that it makes ends with it (`node.py`); what a kill leaves is its folder and empty cgroups, which `remove` takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from proving_ground.infra.config import ROOT
from tests.engines.kubernetes import Kubernetes, kubernetes
from tests.infra.testbed import node

FOLDER = Path("/var/tmp/proving-ground-testbed")
END_S = 60.0  # for a testbed that was told to end
UP, DOOR = "up", "door"
PROGRAM = """#!/bin/sh
# The testbed's own command from any folder: `{name} kill n2`, `{name} restore n2`, `{name} api stop`.
cd {root} && exec {python} -m tests.infra.testbed --folder {folder} "$@"
"""


class RefusedError(RuntimeError):
    """The caller's mistake, or something that the machine lacks: one line."""


@dataclass(frozen=True)
class Place:
    """The folder of a testbed."""

    folder: Path

    @property
    def cluster(self) -> Path:
        """Where the cluster keeps its files, its kubeconfig among them."""
        return self.folder / "cluster"

    @property
    def door(self) -> str:
        """The socket at which it is asked."""
        return str(self.folder / DOOR)

    @property
    def holder(self) -> int | None:
        """The process that holds it; None where there is none."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "lock").open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
        return None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the lock, as its holder.

        Raises:
            RefusedError: another has it.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(f"a testbed is up already in {self.folder}: `down` ends it") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def ask(self, verb: str, **about: str | bool) -> Any:
        """Have the holder do something.

        Raises:
            RefusedError: there is no testbed, or it refuses; says why.
        """
        try:
            with Client(self.door, "AF_UNIX") as line:
                line.send({"verb": verb, **about})
                done, found = line.recv()
        except (OSError, EOFError):
            raise RefusedError(f"no testbed is up in {self.folder}") from None
        if not done:
            raise RefusedError(found)
        return found

    def end(self) -> bool:
        """End the testbed, however far up it is; whether there was anything of one."""
        there, deadline = self.folder.exists(), time.monotonic() + END_S
        while pid := self.holder:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.2)
        node.sweep()
        shutil.rmtree(self.folder, ignore_errors=True)
        return there


# --- the process that holds it ----------------------------------------------------------------------------------------


def hold(place: Place, count: int, archives: Sequence[Path], *, stack: bool = False) -> None:
    """Bring a cluster up, say so on standard output, and do what is asked until SIGTERM.

    Until it is up, whoever started it has to hold its standard input open: their end is its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_once)
    up = threading.Event()
    threading.Thread(target=_end_with_caller, args=(up,), daemon=True).start()
    with place.held():
        shutil.rmtree(place.cluster, ignore_errors=True)
        shared = place.folder / "shared"
        for folder in (place.cluster, shared):
            folder.mkdir(exist_ok=True)
        with kubernetes(place.cluster, count, shared, archives, stack=stack) as made, opened(place.folder) as door:
            up.set()
            print(UP, flush=True)
            serve(door, made)


def _end_once(*_: object) -> None:
    """Begin to end: whoever waits for that may say so again and again."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def _end_with_caller(up: threading.Event) -> None:
    """SIGTERM for ourselves when the standard input ends before the cluster is up."""
    os.read(0, 1)
    if not up.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def opened(folder: Path) -> Listener:
    """The socket at which a testbed is asked; beside it the command as one program, for options such as `power=`."""
    made = folder / "testbed"
    words = {"root": ROOT, "python": sys.executable, "folder": folder}
    made.write_text(PROGRAM.format(name=made, **{name: shlex.quote(str(it)) for name, it in words.items()}))
    made.chmod(0o700)
    return Listener(str(folder / DOOR), "AF_UNIX")


def serve(door: Listener, made: Kubernetes) -> None:
    """Do what comes by the door, one after the other."""
    while True:
        with contextlib.suppress(OSError, EOFError), door.accept() as line:
            asked = dict(line.recv())
            try:
                line.send((True, VERBS[asked.pop("verb")](made, **asked)))
            except (RefusedError, OSError, RuntimeError) as why:
                line.send((False, str(why)))


def power(made: Kubernetes, name: str, *, on: bool) -> str:
    """Cut a node's power, or give it back."""
    it = known(made, name)
    if on == (it.process is not None):
        raise RefusedError(f"{name} {'has' if on else 'has no'} power already")
    if on:
        it.restore()
    else:
        it.kill()
    return f"{name} {'has power again' if on else 'has no power'}"


def part(made: Kubernetes, name: str, *, on: bool) -> str:
    """Part a node from all others, or heal that."""
    made.bed.part(known(made, name).name, on=on)
    return f"{name} is {'cut off from all others' if on else 'reached again'}"


def api(made: Kubernetes, *, on: bool) -> str:
    """Kill the API server, or start it again; what it has stored stays."""
    server = made.bed.server
    if on == (not server.program.ended):
        raise RefusedError(f"the API server {'runs' if on else 'is away'} already")
    if on:
        server.start()
    else:
        server.stop()
    return f"the API server {'answers again' if on else 'is away'}"


def status(made: Kubernetes) -> Mapping[str, Any]:
    """What there is: each node with its power, its cable and Kubernetes' word, and whether the API server is there."""
    bed = made.bed
    answers = not bed.server.program.ended
    ready = node.ready(bed.server) if answers else set()
    cut = {one for pair in bed.network.blocked for one in pair if sum(one in it for it in bed.network.blocked) > 2}
    nodes = {
        it.name: {"power": it.process is not None, "cut_off": it.name in cut, "ready": it.name in ready}
        for it in bed.nodes
    }
    return {"api": answers, "nodes": nodes}


def known(made: Kubernetes, name: str) -> node.Node:
    """The node of that name.

    Raises:
        RefusedError: there is none.
    """
    nodes = {it.name: it for it in made.bed.nodes}
    if name not in nodes:
        raise RefusedError(f"no node {name!r}; there are {', '.join(nodes)}")
    return nodes[name]


VERBS: Mapping[str, Callable[..., Any]] = {"power": power, "part": part, "api": api, "status": status}


# --- whoever asks for one ---------------------------------------------------------------------------------------------


def start(place: Place, count: int, archives: Sequence[Path], *, stack: bool = False) -> None:
    """Have a testbed up in the background; it is gone again where this is interrupted, however that comes.

    Raises:
        RefusedError: one is up already, or it does not come up; says why.
    """
    if place.holder is not None:
        raise RefusedError(f"a testbed is up already in {place.folder}: `down` ends it")
    place.end()  # what a killed one left
    place.folder.mkdir(mode=0o700, parents=True)
    words = ["--folder", str(place.folder), "hold", "--nodes", str(count)]
    words += [word for it in archives for word in ("--image", str(it))] + ["--stack"] * stack
    with (place.folder / "holder.log").open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.infra.testbed", *words], cwd=ROOT, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        await_up(holder, place.folder / "holder.log")
    except BaseException:
        assert holder.stdin is not None
        holder.stdin.close()
        place.end()
        raise
    for stream in (holder.stdin, holder.stdout):
        assert stream is not None
        stream.close()


def await_up(holder: subprocess.Popen[str], log: Path) -> None:
    """Wait until it says that it is up.

    Raises:
        RefusedError: it has ended; the last line of its log says why.
    """
    assert holder.stdout is not None
    if holder.stdout.readline().strip() != UP:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        raise RefusedError(lines[-1].removeprefix("testbed: ") if lines else "it ended without a word")
