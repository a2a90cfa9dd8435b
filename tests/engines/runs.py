"""What a user types, run to its end, and a cluster of machines driven by hand. Called by the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from proving_ground.bench import rundir
from proving_ground.bench.clusters import choose
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.protocols import ClusterRequest, ProcessExit, ProcessSpec
from tests.engines.traces import ROOT
from tests.programs import program

WAIT_S = 150.0
"""For what an engine does by itself, at a time-out of its own on a busy machine."""


def command(runs: Path, *words: str, env: Mapping[str, str] | None = None, status: int = 0) -> dict[str, Any]:
    """Run it; its results, with `out` and `history`. It ends with this status."""
    done = subprocess.run(
        [sys.executable, "-m", *words, "--runs", str(runs)], cwd=ROOT, env={**os.environ, **(env or {})},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    store = rundir.find(runs)
    assert rundir.verify(store) == []
    return {**store.read("results"), "out": done.stdout, "history": list(rundir.read_history(store))}


def shortened(suite: str, folder: Path, changes: Mapping[str, str]) -> str:
    """A chaos suite, whose faults are held no longer than they have to be seen; where it was written."""
    text = (ROOT / "chaos" / "suites" / f"{suite}.toml").read_text()
    for usual, short in changes.items():
        assert usual in text
        text = text.replace(usual, short)
    (folder / "shorter.toml").write_text(text)
    return str(folder / "shorter.toml")


def leaves(seconds: float, status: int) -> tuple[str, ...]:
    """A program that takes so long to leave on SIGTERM, and ends with a status; it says what it does."""
    return (sys.executable, "-c", LEAVES, str(seconds), str(status))


LEAVES = """
import signal, sys, time
def leave(*_):
    print("noticed", flush=True)
    time.sleep(float(sys.argv[1]))
    print("left", flush=True)
    sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, leave)
print('here', flush=True)
while True: time.sleep(0.1)
"""


def clean(where: str, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
    """The lines of `pg bench clean`."""
    done = subprocess.run(
        program("bench", "clean", "--cluster", where, *words), cwd=ROOT,
        env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def passed(results: Mapping[str, Any]) -> bool:
    """Whether every fault was recovered from, and nothing is wrong; a busy machine may be slow afterwards."""
    outcomes = [it["outcome"] for it in results["trials"]]
    told = {it["check"] for it in results["verdicts"] if it["verdict"] != "pass"}
    return bool(outcomes) and set(outcomes) == {"recovered"} and told <= {"full_speed", "clocks"}


def events(results: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [it for it in results["history"] if it["event"] == name]


def every_step_is_there(results: Mapping[str, Any]) -> bool:
    """Whether each process told all of its steps: one record more is one step more, from where it began."""
    steps: dict[tuple[str, str], list[int]] = {}
    for it in results["history"]:
        key = (str(it.get("trial")), it["source"])
        if it["event"] in ("start", "resume"):
            steps[key] = []
        if it["event"] == "step":
            steps.setdefault(key, []).append(it["step"])
    return all(after == before + 1 for each in steps.values() for before, after in pairwise(each))


def ranks_are_right(results: Mapping[str, Any]) -> bool:
    """Whether in each generation of each job the ranks are 0, 1, 2 …, and those of a node follow each other."""
    lives: dict[tuple[str, int], dict[int, str]] = {}
    for it in events(results, "ready"):
        lives.setdefault((it["trial"], it["generation"]), {})[it["rank"]] = it["source"]
    return bool(lives) and all(in_order(found) for found in lives.values())


def in_order(sources: Mapping[int, str]) -> bool:
    """Whether ranks without a gap lie on one node after the other, there by slot."""
    ranked = [sources[rank].split(".") for rank in sorted(sources)]
    slots = [[slot for _, slot in found] for _, found in groupby(ranked, key=itemgetter(0))]
    whole = sorted(sources) == list(range(len(sources))) and len(slots) == len({node for node, _ in ranked})
    return whole and all(found == sorted(found) for found in slots)


class Session:
    """A cluster that is up until the end of the `with`."""

    def __init__(self, where: str, run: Path, nodes: int) -> None:
        self.run, self.events = run, list[dict[str, Any]]()
        for name in ("events", "logs", "scratch"):
            (run / name).mkdir(parents=True)
        cluster, _ = choose(where)
        assert isinstance(cluster, AgentCluster)
        self.cluster = cluster
        request = ClusterRequest(run.name, nodes, 1, run / "scratch", volume_mb=1)
        try:
            self.nodes = cluster.setup(request, lambda event, **about: self.events.append({"event": event, **about}))
        except BaseException:
            cluster.teardown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_why: object) -> None:
        self.cluster.teardown()

    def start(self, node: str, *argv: str) -> int:
        files = (self.run / "events" / f"t1.{node}.0.jsonl", self.run / "logs" / f"t1.{node}.0.log")
        return self.cluster.start(ProcessSpec(node, 0, argv, {}, *files))

    def told(self, event: str) -> list[dict[str, Any]]:
        return [it for it in self.events if it["event"] == event]

    def until(self, true: Callable[[], object]) -> None:
        """Take in what comes until it is so; what never is so is told instead of waited for."""
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, self.events[-20:]
            self.cluster.sleep(0.05)

    def exits(self) -> Sequence[ProcessExit]:
        """Wait for the next processes that end."""
        ended: list[ProcessExit] = []

        def some() -> bool:
            ended.extend(self.cluster.exits())
            return bool(ended)

        self.until(some)
        return ended

    def lost(self, node: str, pid: int) -> None:
        """Wait until a node is given up; its process has ended with it, and the other nodes go on."""
        assert [(it.node, it.pid, it.code) for it in self.exits()] == [(node, pid, -9)]
        assert self.cluster.away == {node}
        other = next(it.name for it in self.nodes if it.name != node)
        self.start(other, "true")
        assert [(it.node, it.code) for it in self.exits()] == [(other, 0)]

    def back(self, node: str) -> None:
        """Wait until all nodes are there; this one has another agent than before, which starts what it is told to."""
        self.until(lambda: not self.cluster.away)
        assert [it["same"] for it in self.told("agent_back") if it["node"] == node] == [False]
        self.start(node, "true")
        assert [(it.node, it.code) for it in self.exits()] == [(node, 0)]
