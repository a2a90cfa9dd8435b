"""Nodes that Slurm gives one by one: `--cluster slurm:…,array=true`. A job array, whose elements are a node each.

Slurm requeues the element whose machine is lost, and nothing else. It comes again on any machine, under the same job
number: the line to a node goes to its element's job, wherever that runs now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proving_ground.bench.clusters.remote.pool import BOOT, Member
from proving_ground.bench.clusters.remote.slurm import LOOK_S, SlurmOptions, SlurmPool
from proving_ground.bench.clusters.remote.slurm_fate import ENDS
from proving_ground.bench.clusters.remote.slurm_story import Said
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError

FIELDS = "%A|%K|%T|%r|%S|%N"
RUNS = "RUNNING"


@dataclass(frozen=True)
class Element:
    """One of the array, as squeue has it."""

    job: str  # its own number, once it has run; until then the array's
    state: str
    reason: str
    begun: str  # or is to begin
    host: str

    @property
    def runs(self) -> bool:
        """Whether it has a machine."""
        return self.state == RUNS

    @property
    def ended(self) -> bool:
        """Whether it is over for good."""
        return self.state in ENDS

    @property
    def why(self) -> str:
        """What it waits for, or how it ended."""
        when = f" until {self.begun}" if self.reason == "BeginTime" and self.begun != "N/A" else ""
        return f"{self.state}: {self.reason}{when}"


def read(lines: str) -> dict[str, Element]:
    """Node → its element, from what squeue says with `FIELDS`, a line each."""
    found = {}
    for line in lines.splitlines():
        words = line.strip().split("|")
        if len(words) == FIELDS.count("|") + 1 and words[1].isdecimal():
            found[f"n{words[1]}"] = Element(words[0], *words[2:])
    return found


class SlurmArrayPool(SlurmPool):
    """A `Pool` of the elements of one array."""

    _me = "n{element}"

    def __init__(self, options: SlurmOptions) -> None:
        super().__init__(replace(options, requeue=True))
        self._first_s = self.wait_s  # the first to run waits for the last
        self._jobs: dict[str, str] = {}  # node → its element's job
        self._last: Mapping[str, Element] = {}  # node → its element, as squeue said last

    def _elements(self) -> dict[str, Element]:
        """Node → its element now; machines that are new are looked at from now on.

        Raises:
            SpecError, ClusterError: Slurm does not say.
        """
        asked = ("squeue", "--noheader", "--array", f"--jobs={self._job}", "--states=all", f"--format={FIELDS}")
        self._last = found = read(self._slurm(*asked))
        for node, it in found.items():
            if it.runs:
                self._where[node] = it.host
                self._about[f"Node/{it.host}"] = node
        return found

    def _element(self, node: str) -> Element:
        """A node's; one that Slurm has forgotten has ended long ago."""
        return self._elements().get(node) or Element("", "", "", "", "")

    def _hosts(self, count: int, tell: Callable[[str], None]) -> list[str]:
        """Where each element runs, as soon as all do; why they do not is told whenever that changes.

        Raises:
            ClusterError: one has ended, or they do not run in time.
        """
        told, deadline = "", time.monotonic() + self.wait_s
        while True:
            found = self._elements()
            waiting = {node: it for node, it in found.items() if not it.runs}
            if len(found) == count and not waiting:
                self._jobs = {node: it.job for node, it in found.items()}
                self._about |= {f"Job/{job}": node for node, job in self._jobs.items()}
                return [found[f"n{number}"].host for number in range(1, count + 1)]
            if over := next((node for node, it in waiting.items() if it.ended), None):
                raise ClusterError(f"slurm: job {waiting[over].job} of {over} is {waiting[over].why}")
            reason = next((it.reason for it in waiting.values()), "None")
            run = f"{len(found) - len(waiting)} of {count} machines are there"
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"slurm: {run} after {self.options.wait_min} min ({reason}); wait_min= allows for more"
                )
            self._refuse_for_good(reason)
            if (said := f"{run}: {reason}") != told and reason != "None":
                told = said
                tell(said)
            time.sleep(LOOK_S)

    def _into(self, node: str) -> tuple[str, ...]:
        """The program that leads to a node: a step of its element's job, on the machine that this has now."""
        return (*self._step(self._jobs[node]), self.options.python, "-c", BOOT)

    def member(self, name: str) -> Member | None:
        """The node as it is now; None: its element does not run."""
        self._slurm("scontrol", "ping")  # which says at once when there is no controller
        it = self._element(name)
        return self._member(name, it.host) if it.runs else None

    def waits(self) -> Mapping[str, str]:
        """Node → why its element does not run, in Slurm's words, as the story has heard them last."""
        return {node: it.why for node, it in self._last.items() if not it.runs and not it.ended}

    def lost(self) -> Collection[str]:
        """Those whose element has ended for good: it is not begun again."""
        return {node for node, it in self._last.items() if it.ended}

    def over(self) -> str:
        """How all of them have ended."""
        known = self._last.values()
        ends = dict.fromkeys(it.why for it in known if it.ended) if all(it.ended for it in known) else {}
        return f"array {self._job} is over: {', '.join(ends)}" if ends else ""

    def _said(self) -> Said:
        """The states of the elements, and of all machines that ever were theirs, each with the reason for it."""
        try:
            self._slurm("scontrol", "ping")
            jobs = {f"Job/{self._jobs[node]}": (it.state, it.reason) for node, it in self._elements().items()}
            machines = self._sinfo([it.removeprefix("Node/") for it in list(self._about) if it.startswith("Node/")])
        except (ClusterError, SpecError) as why:
            raise OSError(str(why)) from None
        return {**jobs, **{f"Node/{host}": said for host, said in machines.items()}}

    def machine(self, node: str) -> Mapping[str, Any]:
        """The machine that is this node, or was last; `id`: which begin of its element, empty where that waits."""
        it = self._element(node)
        where = self._where[node]
        begin = f"{it.job} since {it.begun}" if it.runs else ""
        return {"id": begin, "name": where, **self.state_of(where), "job": it.state, "job_reason": it.reason}

    def requeue(self, nodes: Sequence[str]) -> None:
        """Have Slurm end the elements of these nodes, with their notice, and put them into the queue again.

        Not by their own numbers: the last to run has that of the array, which stands for all of them.
        """
        for node in nodes:
            self._slurm("scontrol", "requeue", f"{self._job}_{node.removeprefix('n')}")


def pool_of(options: SlurmOptions) -> SlurmPool:
    """The nodes of one job, or of an array of them."""
    return SlurmArrayPool(options) if options.array else SlurmPool(options)
