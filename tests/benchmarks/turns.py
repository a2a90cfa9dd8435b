"""Jobs that take turns: each makes some steps while the others stand still between two steps.

A shared machine is faster or slower from one second to the next; what takes turns by the half second meets the same
machine. And a process is faster or slower than another of the same program for as long as it lives: so a live job makes
half of its turns without live recovery, and an exact one by float sums, of the same model in the same memory. Called
by `tests.benchmarks.step_cost`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proving_ground.training.events import EVENTS_VARIABLE
from tests.training.ranks import FORKED, Ranks, be_rank, free_port

if TYPE_CHECKING:
    from proving_ground.training.loop import Job

LOOK_S = 0.005  # between two looks whether it is one's turn
NEVER = 10**9  # gradients
GOLDEN = 0.618034  # its multiples spread evenly over 0 to 1
START_S, TURN_S = 120.0, 60.0  # for all ranks to be ready; for a turn to be over


@dataclass(frozen=True)
class Jobs:
    """The jobs of some names, each with its ranks' processes; `board` has what the ranks wait for.

    A row a job: how many turns it may begin, then how many each of its ranks has ended. A step needs all ranks of a
    job: none of them gets ahead of its turn.
    """

    ranks: dict[str, Ranks]
    board: np.ndarray
    coordinators: dict[str, ForkServerProcess]  # of live jobs

    def turn(self, name: str) -> None:
        """Let one job make its steps.

        Raises:
            SystemExit: it does not.
        """
        row = self.board[list(self.ranks).index(name)]
        row[0] += 1
        end = time.monotonic() + (TURN_S if row[0] > 1 else START_S)
        while row[1:].min() < row[0]:
            if time.monotonic() > end or not all(it.is_alive() for it in self.ranks[name].processes):
                raise SystemExit(f"{name}: turn {row[0]} did not end: {self.ranks[name].printed()}")
            time.sleep(LOOK_S)

    def background_s(self, name: str) -> float:
        """CPU seconds so far that a live job has used beside its steps: its coordinator, and its ranks' heartbeats."""
        threads = sum(cpu_s(process.pid, "torchft") for process in self.ranks[name].processes)
        return threads + cpu_s(self.coordinators[name].pid, "")


def cpu_s(pid: int | None, name: str) -> float:
    """CPU seconds that a process' threads of such names have used so far."""
    used = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        before, _, after = (thread / "stat").read_text().rpartition(")")
        if before.partition("(")[2].startswith(name):
            used += sum(map(int, after.split()[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


def is_whole(turn: int) -> bool:
    """Whether a job makes a turn as it is configured; else without what is measured. Two neighbours are one of each."""
    return turn % 4 in (0, 3)


@contextmanager
def taking_turns(folder: Path, jobs: Mapping[str, Sequence[str]], size: int, steps: int) -> Iterator[Jobs]:
    """Start the jobs, `size` ranks each, by the words after `pg training`; killed with the block.

    A job whose words begin with `live` has a coordinator of its own.
    """
    board = np.memmap(folder / "board", dtype=np.int64, mode="w+", shape=(len(jobs), 1 + size))
    started: dict[str, Ranks] = {}
    coordinators: dict[str, ForkServerProcess] = {}
    try:
        for row, (name, words) in enumerate(jobs.items()):
            own, port = folder / name, free_port()
            own.mkdir()
            if words[0] == "live":
                argv = ["lighthouse", "--port", str(port)]
                coordinators[name] = FORKED.Process(target=be_rank, args=(argv, {}, own / "lighthouse.log", ""))
                coordinators[name].start()
            started[name] = Ranks(own, [])
            place = {"size": size, "port": port, "other_port": free_port(), "row": row, "steps": steps}
            for rank in range(size):
                place = place | {"rank": rank}
                process = FORKED.Process(target=be_turning, args=(list(words), own, place))
                process.start()
                started[name].processes.append(process)
        yield Jobs(started, board, coordinators)
    finally:
        for process in itertools.chain(coordinators.values(), *(it.processes for it in started.values())):
            process.kill()
            process.join()


def be_turning(words: list[str], folder: Path, place: dict[str, int]) -> None:
    """The life of a rank that waits for its turn before every first step of one."""
    rank, size, port = place["rank"], place["size"], place["port"]
    env = {EVENTS_VARIABLE: str(folder / f"{rank}.jsonl")}
    if words[0] == "live":
        where = ["--lighthouse", f"127.0.0.1:{port}", "--address", "127.0.0.1"]
        words = ["live", "--nodes", f"{size}:{size}", "--number", str(rank), *where, *words[1:]]
    else:
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(env)
    from proving_ground.training import loop  # noqa: PLC0415 - after the environment is set

    row = np.memmap(folder.parent / "board", dtype=np.int64, mode="r+").reshape(-1, 1 + size)[place["row"]]
    step, made = loop.step, itertools.count()
    switch: list[Switch] = []  # once the job has begun

    def in_turn(job: loop.Job, *, asked_to_stop: bool) -> bool:
        turn, later = divmod(next(made), place["steps"])
        if not later:
            row[1 + rank] = turn
            while row[0] <= turn:
                time.sleep(LOOK_S)
            switch.extend([] if switch else [switch_of(job, place)])
            switch[0](is_whole(turn))
        return step(job, asked_to_stop=asked_to_stop)

    loop.step = in_turn
    be_rank(words, env, folder / f"{rank}.log", "")


Switch = Callable[[bool], None]
"""Goes on with or without what is measured."""


def switch_of(job: Job, place: Mapping[str, int]) -> Switch:
    """What a job does in one half of its turns and not in the other; a plain one makes all of them."""
    if job.membership.may_undo:
        return live_or_not(job, place)
    return ahead_or_not(job) if job.config.prefetch else exact_or_not(job)


def ahead_or_not(job: Job) -> Switch:
    """Batches read ahead of the step, or in it."""
    from proving_ground.training.data.ahead import Ahead  # noqa: PLC0415 - after the environment is set

    ways = {True: job.ahead, False: Ahead(replace(job.config, prefetch=0), job.task, job.world.device)}

    def switch(whole: bool) -> None:  # noqa: FBT001 - it is what is switched
        job.ahead = ways[whole]

    return switch


def live_or_not(job: Job, place: Mapping[str, int]) -> Switch:
    """Live recovery, or none: plain sums in a group of their own, and the loop of a job that is not live."""
    import torch.distributed as dist  # noqa: PLC0415 - after the environment is set

    from proving_ground.training.recovery.fixed import Fixed  # noqa: PLC0415 - as above
    from proving_ground.training.recovery.live import MEET_S  # noqa: PLC0415 - as above

    live: Any = job.membership
    turns = itertools.count()
    seconds = timedelta(seconds=TURN_S)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", place["other_port"], place["size"], is_master=place["rank"] == 0, timeout=seconds
    )
    group: Any = dist.ProcessGroupGloo(store, place["rank"], place["size"], seconds)
    ways: dict[bool, tuple[Any, Any, bool]] = {
        True: (live, job.exchange.start_sum, True),
        False: (Fixed(), lambda values: group.allreduce([values]), False),
    }

    def switch(whole: bool) -> None:  # noqa: FBT001 - it is what is switched
        job.membership, job.exchange.start_sum, job.exchange.apart = ways[whole]
        live._met_t = time.monotonic() - MEET_S * (next(turns) * GOLDEN % 1)  # no step of a turn meets more than others

    return switch


def exact_or_not(job: Job) -> Switch:
    """Exact sums, or those of a job in float; a job that is one makes all its turns."""
    from proving_ground.training.exchange.communication import exchanging  # noqa: PLC0415 - as above
    from proving_ground.training.exchange.exact import ExactExchange  # noqa: PLC0415 - as above

    exact = job.exchange
    if not isinstance(exact, ExactExchange):
        return lambda _whole: None
    ways: dict[bool, tuple[Any, Any]] = {
        True: (job.model, exact),
        False: exchanging(job.model.module, job.config, job.world),
    }

    def switch(whole: bool) -> None:  # noqa: FBT001 - it is what is switched
        job.model, job.exchange = ways[whole]
        for bucket in exact._buckets:  # their hooks stay: in float they shall never have all they wait for
            bucket.waiting = len(bucket.parameters) if whole else NEVER

    return switch
