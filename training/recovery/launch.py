"""One node's launcher: torch elastic's agent, tuned and mended. Called by `pg training launch`.

It meets the other nodes (`rendezvous`), starts this node's workers by forking itself, with all that they need
imported already, watches them, and starts them again together with all others when something is wrong. Its events
(chaos/README.md) say when what was noticed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from proving_ground.training.entry import call
from proving_ground.training.events import (
    EVENTS_OF_LAUNCHER,
    EVENTS_VARIABLE,
    GAVE_UP,
    MISTAKE,
    EventWriter,
    NoEvents,
    take_own_files,
    told_path,
)
from proving_ground.training.recovery import rendezvous
from proving_ground.training.recovery.elastic import STOPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_S = 0.05  # how often workers are looked at
RETRIES = 3  # without a step in between
BACKOFF_S = 1.0  # before the first retry without progress; doubled each time
BARRIER_S = 10.0  # for the other nodes' workers to end, after our own have
KILL_S = 1  # from SIGKILL to the end of a worker


@dataclass(frozen=True)
class Launch:
    """What the command line asked: nodes at least and at most, workers here, where to meet, as whom."""

    nodes: tuple[int, int]
    workers: int
    coordinator: str
    job: str
    address: str
    entry: str
    words: tuple[str, ...]


class GaveUpError(RuntimeError):
    """The job cannot go on by itself; the message says why."""


class MistakenError(RuntimeError):
    """A worker was told what cannot be; it has said what, and no new start mends that."""


class LeaveError(Exception):
    """The node was asked to leave the job, and nothing of it runs here any more."""


class Agent(LocalElasticAgent):
    """torch's agent with short time-outs, events, a way to leave, and an end to retries that lead nowhere."""

    def __init__(self, spec: WorkerSpec, events: EventWriter | NoEvents, progress: Progress) -> None:
        super().__init__(spec, DefaultLogsSpecs(), start_method="fork", exit_barrier_timeout=BARRIER_S)
        self._events, self._progress = events, progress
        self._retries = Retries()
        self._leaving = False

    def leave(self, _number: int, _frame: object) -> None:
        """SIGTERM's handler: the workers finish their step, save and stop, and then this node leaves the job.

        Raises:
            LeaveError: there are no workers to wait for.
        """
        self._leaving = self._meeting.leaving = True
        self._events.emit("asked_to_leave")
        pids = list(self._pcontext.pids().values()) if self._pcontext else []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if not pids or self._worker_group.state != WorkerState.HEALTHY:
            raise LeaveError

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        while True:
            try:
                super()._rendezvous(worker_group)
                break
            except DistStoreError:  # a node died after it had met with us, and before it told its rank: meet again
                self._events.emit(
                    "detected", why="membership_changed", detail="a node was gone before it told its rank"
                )
                self._count_fruitless()
        self._events.emit(
            "membership", round=self._meeting.round, group_rank=worker_group.group_rank,
            world_size=worker_group.workers[0].world_size,
        )  # fmt: skip

    @property
    def _meeting(self) -> rendezvous.Handler:
        handler = self._worker_group.spec.rdzv_handler
        assert isinstance(handler, rendezvous.Handler)  # noqa: S101 - `work` gave it one
        return handler

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids: dict[int, Any] = super()._start_workers(worker_group)
        assert self._pcontext is not None  # noqa: S101 - just started
        vars(self._pcontext)["close"] = functools.partial(kill_all, self._pcontext)
        self._events.emit("workers_start", pids=list(pids.values()), attempt=self._retries.fruitless)
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            codes = [failure.exitcode for failure in result.failures.values()]
            self._events.emit("detected", why="worker_failed", detail=codes)
            if self._leaving:
                raise LeaveError
            if MISTAKE in codes:
                raise MistakenError(f"a worker ended with status {MISTAKE}, a mistake in what it was told")
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        failed = worker_group.state != WorkerState.HEALTHY
        if not failed:
            self._events.emit("detected", why="membership_changed", detail=None)
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        if failed:
            self._count_fruitless()
        self._initialize_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        del worker_group
        self._shutdown()
        self._events.emit("workers_stopped")

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = KILL_S) -> None:
        del death_sig  # a worker that waits for a dead peer hears nothing but SIGKILL
        super()._shutdown(signal.SIGKILL, timeout)

    def _count_fruitless(self) -> None:
        """Wait longer with each restart after which no step was made, and give up after `RETRIES`.

        Raises:
            GaveUpError: that was the last.
        """
        if seconds := self._retries.wait_s(progress=self._progress.made()):
            self._events.emit("backoff", attempt=self._retries.fruitless, seconds=seconds)
            time.sleep(seconds)


def kill_all(started: PContext, *_gently: object) -> None:
    """End all workers of a context at once, where torch would send SIGTERM and wait for half a minute."""
    type(started).close(started, signal.SIGKILL, KILL_S)


class Retries:
    """How often workers were started without a step in between, and what follows from that."""

    def __init__(self) -> None:
        self.fruitless = 0

    def wait_s(self, *, progress: bool) -> float:
        """Seconds to wait before the next attempt; `progress`: a step was made since the one before.

        Raises:
            GaveUpError: that was the last.
        """
        self.fruitless = 0 if progress else self.fruitless + 1
        if self.fruitless > RETRIES:
            raise GaveUpError(f"no step after {RETRIES} retries")
        return BACKOFF_S * 2 ** (self.fruitless - 1) if self.fruitless else 0.0


class Progress:
    """Whether this node's workers made a step since the last time it was asked, by their event files."""

    def __init__(self, files: Sequence[Path | None]) -> None:
        self._sizes = {file: size_of(file) for file in files if file}

    def made(self) -> bool:
        """Whether a `step` was appended."""
        read = [self._read(file) for file in self._sizes]  # every one of them, also after the first that did
        return any(read)

    def _read(self, file: Path) -> bool:
        begin, self._sizes[file] = self._sizes[file], size_of(file)
        if self._sizes[file] == begin:
            return False
        with file.open("rb") as lines:
            lines.seek(begin)
            return b'"event":"step"' in lines.read()


def size_of(file: Path) -> int:
    """Bytes of a file that may not exist yet."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def launch(asked: Launch) -> int:
    """Run this node's workers until the job is done; the exit status.

    0: done. `STOPPED`: asked to leave by SIGTERM. `MISTAKE`: a worker's. `GAVE_UP`: the job cannot go on by itself.
    """
    import_module(
        "proving_ground.training.warm"
    )  # for the workers, and because torch imports half of itself to word an error
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarted ranks read the round before's addresses
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 says in the log where it stands
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # SIGTERM is ours
    path = os.environ.get(EVENTS_OF_LAUNCHER)
    with contextlib.closing(EventWriter(path) if path else NoEvents()) as events:
        events.emit("launch", node=os.uname().nodename, pid=os.getpid(), nodes=list(asked.nodes))
        try:
            return work(asked, events)
        except MistakenError as error:
            events.emit("gave_up", message=str(error))  # the log has the worker's own line
            return MISTAKE
        except (GaveUpError, RendezvousError) as error:
            again = shlex.join(["python", "-m", "proving_ground.training", *sys.argv[1:]])
            message = f"{error or type(error).__name__}; the last checkpoint is kept: go on with {again}"
            events.emit("gave_up", message=message)
            sys.stderr.write(f"launch: stopped for good: {message}\n")
            return GAVE_UP


def work(asked: Launch, events: EventWriter | NoEvents) -> int:
    """Meet, start, watch, start again; the exit status.

    Raises:
        GaveUpError, RendezvousError: the job cannot go on by itself.
        MistakenError: a worker was told what cannot be.
    """
    meeting = rendezvous.handler(asked.coordinator, asked.job, asked.nodes, asked.address)
    meeting.tell = functools.partial(tell_of_coordinator, events)
    spec = WorkerSpec(
        role="trainer", local_world_size=asked.workers, entrypoint=worker, args=(asked.entry, asked.words),
        rdzv_handler=meeting, max_restarts=sys.maxsize, monitor_interval=LOOK_S, local_addr=asked.address,
    )  # fmt: skip
    agent = Agent(spec, events, Progress([event_file(slot) for slot in range(asked.workers)]))
    signal.signal(signal.SIGTERM, agent.leave)
    try:
        result = agent.run()
        meeting.set_closed()
    except RendezvousClosedError:
        return 0  # the others are done
    except LeaveError:
        meeting.leave()
        return STOPPED
    except (GaveUpError, MistakenError):
        meeting.leave()
        raise
    return int(result.is_failed())


def tell_of_coordinator(events: EventWriter | NoEvents, what: str) -> None:
    """The coordinator is `lost`, or `found` again."""
    if what == "lost":
        events.emit("detected", why="no_coordinator")
    else:
        events.emit("coordinator_found")


def worker(entry: str, words: Sequence[str]) -> int:
    """A worker's life, in a copy of the launcher's process: call `entry` ("module:function") with the words."""
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # a worker whose launcher is gone would step on, unseen
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    slot = int(os.environ["LOCAL_RANK"])
    if file := event_file(slot):
        os.environ[EVENTS_VARIABLE] = str(file)
    take_own_files()
    status = call(entry, words)
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def event_file(slot: int) -> Path | None:
    """Where a worker of this node appends its events: as told, else beside the launcher's file, which is slot 0's."""
    if own := os.environ.get(f"{EVENTS_VARIABLE}_{slot}"):
        return Path(own)
    told, first = os.environ.get(EVENTS_VARIABLE), told_path()
    if first is None or str(first) != told:  # it names the slot by itself
        return first
    return first.with_name(f"{first.name.removesuffix('0.jsonl')}{slot}.jsonl")
