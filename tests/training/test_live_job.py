"""Live recovery: whole jobs of real processes through kills of all their parts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from proving_ground.training.data import order
from proving_ground.training.recovery.members import Member

from . import mutants
from .ranks import FORKED, Ranks, be_rank, free_port, sets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerProcess

pytest.importorskip("torchft", reason="live recovery needs torchft (extra `live`; Linux, x86-64)")

ROWS = 1437


class Job:
    """A live job of real processes on the loopback interface."""

    def __init__(self, folder: Path, mutants: Sequence[str] = ("", "", ""), **config: object) -> None:
        self.folder, self.port, self.mutants = folder, free_port(), mutants
        self.words = sets(**{
            "steps": 4000, "global_batch": 96, "eval_every": -1, "timeout_s": 0.0, "ledger": True, "dropout": 0.1,
            "optimizer": "adamw", "lr": 0.002, "last_batch": "carry", "fingerprint_every": 5, **config,
        })  # fmt: skip
        self.lives = 0
        self.ranks = Ranks(folder, [self.node(number) for number in range(3)])
        self.lighthouse = self.serve()

    def node(self, number: int, **other: object) -> ForkServerProcess:
        """Start the trainer of a node, or start it again."""
        self.lives += 1
        argv = ["live", "--nodes", "1:3", "--number", str(number), "--lighthouse", f"127.0.0.1:{self.port}"]
        argv += ["--address", "127.0.0.1", "run", *self.words, *sets(**other)]
        env = {"PROVING_GROUND_EVENTS": str(self.folder / f"{number}.jsonl")}
        process = FORKED.Process(
            target=be_rank, args=(argv, env, self.folder / f"{number}.{self.lives}.log", self.mutants[number])
        )
        process.start()
        return process

    def serve(self, *more: str) -> ForkServerProcess:
        """Start the coordinator."""
        argv = ["lighthouse", "--port", str(self.port), *more]
        process = FORKED.Process(target=be_rank, args=(argv, {}, self.folder / "lighthouse.log", ""))
        process.start()
        return process

    def printed(self, number: int) -> str:
        """What the newest life of a node has printed."""
        return (self.folder / f"{number}.{self.lives}.log").read_text()

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.ranks.processes[number].kill()
        self.ranks.processes[number].join()

    def newest(self, number: int) -> int:
        """The newest step that a node has told."""
        return max((event["step"] for event in self.ranks.events(number, "step")), default=0)

    def more(self, number: int, world: int, steps: int = 6) -> None:
        """Wait until a node has made more steps in a world of this size."""
        begin, end = self.newest(number), time.monotonic() + 60
        while True:
            made = [it for it in self.ranks.events(number, "step") if it["step"] > begin and it["world_size"] == world]
            if len(made) >= steps:
                return
            assert time.monotonic() < end, f"node {number}: no {steps} steps of {world} ranks beyond step {begin}"
            time.sleep(0.02)

    def end(self) -> None:
        """End whatever still runs."""
        for process in [*self.ranks.processes, self.lighthouse]:
            process.kill()
            process.join()


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """A live job of three nodes."""
    made = Job(tmp_path, reduction="exact", prefetch=2, loaders=2)
    yield made
    made.end()


def learned(job: Job) -> dict[int, list[int]]:
    """Step → the samples that were learned from, of each step's shares in the generation that it counts in."""
    shares: dict[tuple[int, int], list[int]] = {}
    counts: dict[int, int] = {}
    for number in range(3):
        for it in job.ranks.events(number, "share"):
            shares.setdefault((it["step"], it["generation"]), []).extend(it["rows"])
        for it in job.ranks.events(number, "step"):
            counts[it["step"]] = it["generation"]
    return {step: sorted(shares[step, generation]) for step, generation in counts.items()}


@pytest.mark.timeout(240)
def test_a_job_goes_on_through_the_loss_of_every_part_of_it_and_stays_the_same(job: Job) -> None:
    job.more(0, world=3)
    job.kill(1)
    job.more(0, world=2)
    stranger = job.node(1, lr=0.1)
    stranger.join(30)
    assert stranger.exitcode == 2
    assert "configuration or version is not the job's" in job.printed(1)
    job.more(0, world=2)
    job.ranks.processes[1] = job.node(1)  # a replacement: its state comes from a peer
    job.more(1, world=3)
    (resumed,) = job.ranks.events(1, "resume")
    assert resumed["peer"] in (0, 2)
    job.kill(0)  # the first rank, and the host of the group's store
    job.more(2, world=2)
    job.ranks.processes[0] = job.node(0)
    job.more(0, world=3)
    job.lighthouse.kill()
    job.lighthouse.join()
    job.lighthouse = job.serve()
    job.more(0, world=3)
    os.kill(job.ranks.processes[2].pid or 0, signal.SIGTERM)  # asked to leave: it goes alone
    job.ranks.processes[2].join(60)
    assert job.ranks.processes[2].exitcode == 75
    job.more(0, world=2)
    last = job.newest(0)
    job.end()

    for step, rows in learned(job).items():
        if step <= last:
            assert rows == sorted(order.global_batch_rows(ROWS, 96, 0, step - 1, carry=True).tolist()), step
    generations = [it["generation"] for it in job.ranks.events(0, "ready")]
    assert generations == sorted(set(generations)), "they only grow, over restarts of the coordinator too"
    marks: dict[int, set[str]] = {}
    for number in range(3):
        for it in job.ranks.events(number, "fingerprint"):
            marks.setdefault(it["step"], set()).add(it["parameters_sha256"] + it["optimizer_sha256"])
    assert all(len(hashes) == 1 for hashes in marks.values())
    assert len(marks) >= 5
    assert np.isfinite([it["loss"] for it in job.ranks.events(0, "step")]).all()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutant", ["", "ahead_for_another_membership"])
def test_what_was_read_for_the_ranks_of_before_would_be_seen(tmp_path: Path, mutant: str) -> None:
    job = Job(tmp_path, (mutant,) * 3, reduction="exact", prefetch=3)
    try:
        job.more(0, world=3)
        job.kill(1)
        job.more(0, world=2)
        last = job.newest(0)
    finally:
        job.end()
    due = {step: order.global_batch_rows(ROWS, 96, 0, step - 1, carry=True).tolist() for step in range(1, last)}
    wrong = [step for step, rows in learned(job).items() if step in due and rows != sorted(due[step])]
    assert bool(wrong) == bool(mutant), wrong


@pytest.mark.timeout(120)
def test_the_dead_are_waited_for_as_long_as_the_coordinator_was_told(job: Job) -> None:
    job.lighthouse.kill()
    job.lighthouse.join()
    job.lighthouse = job.serve("--expiry", "1.5")
    job.more(0, world=3)
    killed_t = time.monotonic()
    job.kill(1)
    job.more(0, world=2)
    first = next(it for it in job.ranks.events(0, "step") if it["world_size"] == 2 and it["t"] > killed_t)
    assert first["t"] - killed_t > 0.9, "of 1.5 s, some may have passed since its last heartbeat; 0.35 s are usual"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("others", ["", "merciless"])
def test_a_member_that_is_late_and_lives_stays(others: str, tmp_path: Path) -> None:
    job = Job(tmp_path, (others, "late_once", others), reduction="exact")
    try:
        job.more(0, world=3)
        job.ranks.until(mutants.LATE_STEP + 20)
        worlds = {it["world_size"] for it in job.ranks.events(0, "membership")}
        assert worlds == ({2, 3} if others else {3})
    finally:
        job.end()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("nodes", ["", "credulous"])
def test_what_a_life_asked_for_before_its_end_may_arrive_after_it(nodes: str, tmp_path: Path) -> None:
    """As when a link that was broken is whole again: its kernel still has the question."""
    from torchft.coordination import LighthouseClient  # noqa: PLC0415 - not on every platform

    job = Job(tmp_path, (nodes, nodes, nodes), reduction="exact")
    try:
        job.more(0, world=3)
        late = f"{Member(1, '127.0.0.1', free_port(), 'of a former life').name}:1"
        client = LighthouseClient(f"http://127.0.0.1:{job.port}", timedelta(seconds=2))
        asked_t, whys = time.monotonic(), set[str]()
        for _ in range(20 if nodes else 1):  # a question counts in the round that it meets, which is not every time
            with contextlib.suppress(TimeoutError, RuntimeError):
                client.quorum(late, timedelta(seconds=0.5), world_size=1)
            job.more(0, world=3, steps=10)
            told = [it for number in range(3) for it in job.ranks.events(number, "detected")]
            whys = {it["why"] for it in told if it["t"] > asked_t}
            if "peer_silent" in whys:
                break
        assert "peer_silent" in whys if nodes else not whys
    finally:
        job.end()
