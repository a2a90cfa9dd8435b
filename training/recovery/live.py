"""Live recovery: survivors carry on at the next step, and a replacement gets its state from one of them.

Called by `training.loop` in place of `learn` alone. A step counts when every sum of it has arrived; until then nothing
has changed, so a step that fails is made again by the members that are left, from the same samples: the global batch is
a function of the step alone. Members that are behind (a replacement, or one whose sums failed where another's arrived)
get the state of one that is not, by broadcast in the new group. `live_members` says who takes part.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from proving_ground.training.checkpoints.checkpoint import CheckpointError
from proving_ground.training.checkpoints.saving import claim, progress, put, resume, tensors
from proving_ground.training.config import Config, ConfigError
from proving_ground.training.exchange.exact import seed_all
from proving_ground.training.recovery.elastic import STOPPED
from proving_ground.training.recovery.lines import answers
from proving_ground.training.recovery.members import BrokenError, CutOffError, Member, Members, Place
from proving_ground.training.state import Hollow, mapped, tensors_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from proving_ground.training.exchange.communication import World
    from proving_ground.training.loop import Job
    from proving_ground.training.recovery.fixed import Learned, Word

PROTOCOL = 2  # members of another number are refused
OWN = frozenset({
    "data", "profile", "threads", "device", "backend", "timeout_s", "ledger", "fingerprint_every",
    "deterministic", "eval_every",
    "checkpoint_dir", "checkpoint_every", "checkpoint_interval_s", "mtbf_s", "checkpoint_async", "keep_checkpoints",
    "resume", "store_s", "pace", "micro_batch", "fit_memory", "activation_checkpointing", "compile",
    "prefetch", "loaders", "cache_dir", "cache_mb",
})  # fmt: skip
"""Keys of the configuration that may differ between members."""
GIVE_UP_S = 60.0  # without a committed step
FIRST_CALL_S = 20.0  # how long a job that begins waits for all nodes
LAST_CALL_S = 1.0  # how long the members wait for each other after the coordinator was lost
MEETING_S = 10.0  # for a word or a tensor in a meeting: one of us may be reading a checkpoint
LOOK_S = 0.05
AWAY_S = 4.0  # from a member that we cannot reach, the first time
MEET_S = 0.25  # from one agreement on the members to the next, where steps are shorter


class GaveUpError(Exception):
    """The job cannot go on by itself; the message says why."""


class WaitError(Exception):
    """More members are expected in a moment."""


class Said(NamedTuple):
    """What a member tells in a meeting."""

    step: int
    made_in: int  # the generation that made this step
    generation: int  # the newest that it knows of
    expects: int  # members
    waited: int  # whether it has waited long enough for them


class Live:
    """One process' part in a live job; as a context: it leaves the job at the end."""

    may_undo = True

    def __init__(self, job: Job, place: Place, stop: threading.Event, ready: Callable[[], None]) -> None:
        refuse(job.config, place)
        self._job, self._stop, self._ready = job, stop, ready
        self._members = Members(place, settings(job.config))
        self._made_in = 0  # the generation of our last step
        self._expects = place.nodes[1]
        self._due = True  # the members of the coming step are to be agreed on
        self._met_t = self._began_t = -math.inf  # the last agreement, and the last attempt at a step
        self._agreed = False
        self._away_s = AWAY_S  # how long we stay away at most
        self._together = 0  # members of the last group that agreed
        self._unsettled_t = math.inf  # since when we meet without having agreed
        self._failing_t = math.inf  # since when no attempt counts
        self._told = ""  # what was detected since the last step
        job.exchange.start_sum = self._members.start_sum
        job.exchange.apart = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None and not self._stop.is_set():
            self._finish()
        self._members.leave()

    def step(self, learn: Callable[..., Learned], *, wish: bool) -> Learned | None:
        """Make one step with whoever takes part, again until it counts; as `learn`. None: the job is done already.

        Who is asked to stop (`wish`) goes alone. What `learn` asks the others is whether to agree on the members.

        Raises:
            GaveUpError: no step for `GIVE_UP_S`.
            ConfigError: the job is of another configuration.
        """
        del wish
        while True:
            try:
                if self._due and not self._mid_round(self._job.step):
                    self._meet()
                if self._job.step >= self._job.steps:
                    return None
                self._begin()
                fields, _ = learn(wish=self._wish())
            except WaitError:
                time.sleep(LOOK_S)
            except BrokenError as error:
                self._undo(error)
            else:
                return fields, self._stop.is_set() and not self._mid_round(self._job.step + 1)
            if self._stop.is_set():
                raise SystemExit(STOPPED)
            self._failing_t = min(self._failing_t, time.monotonic())
            if time.monotonic() - self._failing_t > GIVE_UP_S:
                raise GaveUpError(f"no step for {GIVE_UP_S:.0f} s ({self._told or 'too few nodes'})")

    def _mid_round(self, step: int) -> bool:
        """Whether the ranks learn alone just then: who takes part is agreed between rounds."""
        return not self._job.updates.at_rest(step)

    def takes_part(self, ledger: Mapping[str, Any]) -> None:
        """The rank's share of a step is about to be summed: a survivor's word that it counts is one for all samples."""
        self._job.events.emit("share", step=self._job.step + 1, **ledger)

    def summed(self, told: Word) -> None:
        """The gradients' sums have arrived: once all that the ranks told has, too, the step counts."""
        _, meet = told.wait()
        if not self._job.updates.alone:
            self.commit(meet=meet)

    def learned(self, *, wished: bool) -> None:
        """The step is made: where ranks learn alone, it counts with all since the average before."""
        if self._job.updates.alone and self._job.updates.at_rest(self._job.step + 1):
            self.commit(meet=wished)

    def judging(self, _world: World) -> tuple[int, int]:
        """(part, parts) of the test split that this rank judges: all, since nobody knows who takes part."""
        return 0, 1

    def commit(self, *, meet: bool) -> None:
        """Every sum has arrived: from here on the step counts. With `meet` somebody wants to agree before the next."""
        self._due = meet
        self._members.committed(self._job.step + 1, ask=meet)
        self._made_in, self._told, self._failing_t, self._away_s = self._job.generation, "", math.inf, AWAY_S

    def _undo(self, error: BrokenError) -> None:
        """Forget what the attempt has done, and tell once what was wrong."""
        job = self._job
        if self._told != error.why:
            job.events.emit("detected", why=error.why, detail=str(error))
            self._told = error.why
        if error.why in ("no_coordinator", "no_quorum") and self._together:
            self._expects = self._together
        self._agreed, self._due, self._unsettled_t = False, True, math.inf
        self._members.give_up_attempt(error)
        job.exchange.forget()
        job.optimizer.zero_grad()
        job.step = job.updates.undo(job.step)
        if isinstance(error, CutOffError):
            self._stay_away(error.member)
        elif error.why not in ("peer_lost", "peer_silent"):
            time.sleep(LOOK_S)

    def _stay_away(self, member: Member) -> None:
        """Leave, so that the others can go on, and come back when the way to a member is open again.

        Or after a while, longer each time: a member without power is missed by the coordinator, and never answers.
        """
        self._members.leave()
        until, self._away_s = time.monotonic() + self._away_s, 2 * self._away_s
        while not answers(member.address, member.port) and time.monotonic() < until:
            if self._stop.is_set():
                raise SystemExit(STOPPED)
            time.sleep(LOOK_S)

    def _wish(self) -> bool:
        """Whether to agree before the step after the one that begins: after it the agreement would be `MEET_S` old."""
        now = time.monotonic()
        step_s, self._began_t = now - self._began_t, now
        return now + step_s - self._met_t > MEET_S

    def _begin(self) -> None:
        """Make ready for an attempt at a step."""
        job = self._job
        self._members.timeout_s = job.config.timeout_s or job.patience.seconds()
        if job.config.reduction == "float" and not self._mid_round(job.step):
            seed_all(job.config.seed, job.step, job.world.rank)  # a replacement need not be told random states
        job.watch.begin()

    def _meet(self) -> None:
        """Agree on the members of the coming step; if they are others than before, on all that they must share."""
        job, before = self._job, self._job.world.size
        changed = self._members.meet(job.step)
        if changed or not self._agreed:
            if self._agreed and self._members.size < before:
                job.events.emit("detected", why="membership_changed", detail=f"{self._members.size} of {before} left")
            self._agreed = False
            self._members.timeout_s = MEETING_S
            self._agree()
        self._met_t = time.monotonic()

    def _agree(self) -> None:
        job, members = self._job, self._members
        self._refuse_strangers()
        self._unsettled_t = min(self._unsettled_t, time.monotonic())
        waited = time.monotonic() - self._unsettled_t > (LAST_CALL_S if job.step else FIRST_CALL_S)
        said = [Said(*row) for row in members.gather((job.step, self._made_in, job.generation, self._expects, waited))]
        newest = max((one.step, one.made_in) for one in said)
        current = [one for one in said if (one.step, one.made_in) == newest]
        if members.size < max(one.expects for one in current) and not said[0].waited:
            raise WaitError
        generation = self._next_generation(max(one.generation for one in said))
        job.world = replace(job.world, rank=0, size=1)
        if newest[0] == 0:
            newest = self._go_on_from_checkpoint()
        job.generation = generation
        job.world = replace(job.world, rank=members.rank, size=members.size)
        job.phases.rank = members.rank
        job.saver.renew(generation)
        job.events.emit("membership", round=generation, group_rank=members.rank, world_size=members.size)
        self._bring_up_to_date(newest)
        self._agreed, self._together, self._expects, self._unsettled_t = True, members.size, 0, math.inf
        self._ready()

    def _next_generation(self, known: int) -> int:
        """The number of this membership: rank 0 claims it where checkpoints are, so that no older writer commits."""
        mine = 0
        if self._members.rank == 0:
            mine = known + 1
            try:
                mine = max(mine, claim(self._job.config))
            except CheckpointError as error:
                self._job.events.emit("error", message=f"{error}; training goes on", kind="Claim", fatal=False)
        return self._members.gather((mine,))[0][0]

    def _go_on_from_checkpoint(self) -> tuple[int, int]:
        """Nobody has a state: rank 0 reads the newest checkpoint, if there is one; (step, generation) of what it has.

        Raises:
            GaveUpError: there are checkpoints, and none can be gone on from.
        """
        if self._members.rank == 0:
            try:
                self._made_in = resume(self._job)
            except CheckpointError as error:
                raise GaveUpError(str(error)) from None
        step, made_in = self._members.gather((self._job.step, self._made_in))[0]
        return step, made_in

    def _bring_up_to_date(self, newest: tuple[int, int]) -> None:
        """Where members are behind, one that is not sends its state to all."""
        job, members = self._job, self._members
        have = [tuple(row) for row in members.gather((job.step, self._made_in))]
        if all(one == newest for one in have):
            return
        giver, begin = have.index(newest), time.monotonic()
        state = tensors(job) | {"about": progress(job, []) | {"made_in": self._made_in}}
        state = self._from(giver, state)
        if (job.step, self._made_in) == newest:
            return
        about = state["about"]
        put(job, state)
        job.step, job.best, job.metrics = about["step"], about["best"], about["metrics"]
        self._made_in = about["made_in"]
        peer = Member.read(members.names[giver])
        job.events.emit(
            "resume", step=job.step, path=f"peer {peer.address}", peer=peer.number, generation=job.generation,
            of_generation=self._made_in, read_s=time.monotonic() - begin,
        )  # fmt: skip

    def _from(self, giver: int, value: Any) -> Any:  # noqa: ANN401 - a tree
        """One member's nesting, on every member; tensors travel as they are."""
        members, mine = self._members, self._members.rank == giver
        sent = iter(tensors_of(value))
        hollow = pickle.dumps(mapped(value, torch.Tensor, lambda it: Hollow(it.shape, it.dtype)))
        size = torch.tensor([len(hollow)])
        members.start_broadcast(size, giver).wait()
        words = torch.frombuffer(bytearray(hollow if mine else bytes(int(size))), dtype=torch.uint8)
        members.start_broadcast(words, giver).wait()

        def receive(like: Hollow) -> torch.Tensor:
            tensor = (
                next(sent).detach().cpu().contiguous().clone() if mine else torch.empty(like.shape, dtype=like.dtype)
            )
            if tensor.numel():
                members.start_broadcast(tensor.view(-1).view(torch.uint8), giver).wait()
            return tensor

        return mapped(pickle.loads(words.numpy().tobytes()), Hollow, receive)  # noqa: S301 - a member's of this job

    def _refuse_strangers(self) -> None:
        """A member of another configuration or version takes no part.

        Raises:
            ConfigError: it is us.
            BrokenError: it is another; it goes by itself.
        """
        names = [Member.read(name) for name in self._members.names]
        mine = self._members.settings
        counts = {one.settings: sum(it.settings == one.settings for it in names) for one in names}
        if len(counts) == 1:
            return
        many = max(counts.values())
        first = next(one.settings for one in names if counts[one.settings] == many)
        stays = bool(self._job.step) if self._members.newest_step else mine == first
        if not stays:
            raise ConfigError("this node's configuration or version is not the job's: nothing was joined")
        raise BrokenError("stranger", "a node of another configuration or version was refused")

    def _finish(self) -> None:
        """Once more: a member whose last sums failed where ours arrived gets the state from us."""
        try:
            self._meet()
            self._members.gather((0,))
        except (BrokenError, WaitError, GaveUpError, ConfigError):
            return


def settings(config: Config) -> str:
    """The hash of all that must be the same in every member."""
    shared = {name: value for name, value in asdict(config).items() if name not in OWN}
    about = json.dumps([PROTOCOL, torch.__version__, shared], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def refuse(config: Config, place: Place) -> None:
    """Refuse what cannot be live.

    Raises:
        ConfigError: in one line why.
    """
    if place.nodes[1] < 2:
        raise ConfigError("live recovery needs two nodes at least: with one there is no survivor")
    if config.model == "paced":
        raise ConfigError("model = 'paced' checks its sums by fixed ranks: not with live recovery")
    if config.parallel != "ddp":
        raise ConfigError(
            f"parallel = {config.parallel!r}: a node that is lost takes its part of the model along, so there is "
            "nothing that survivors could carry on; use launch or torchrun, which start all ranks again"
        )
    if config.norm == "batch":
        raise ConfigError("norm = 'batch': its statistics would count a step that is made again; live needs 'group'")
    if config.reduction == "exact" and place.nodes[1] > config.shards:
        raise ConfigError(f"shards = {config.shards}: must be at least the number of nodes, {place.nodes[1]}")
    try:
        import torchft  # noqa: F401, PLC0415 - not on every platform
    except ImportError:
        raise ConfigError(
            f"live recovery needs torchft, which {sys.platform} lacks here: pip install '.[live]' (Linux, x86-64)"
        ) from None
