"""What each event of a run means for the metrics. Called by `monitoring.exporter`.

Who is in a job, how far it is and when a recovery begins and ends is known by `bench.jobstate`. Everything that alerts
may use comes from the trainers, the launchers and the node agent; what the nemesis says of itself goes into the metrics
`chaos_*` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proving_ground.bench.jobstate import JobState, News
from proving_ground.bench.rundir import HARNESS, LOCK, Record
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.gpu import put_gpu
from proving_ground.monitoring.rhythm import EVALUATION, Evaluations, Promise, Saves, is_to_save
from proving_ground.monitoring.taker import Taker
from proving_ground.training.events import STEP_PARTS

HOST = "host"  # the `node` of GPUs that the harness sampled
NUMBERS = {"loss": "training_loss", "lr": "training_learning_rate", "grad_norm": "training_gradient_norm"}
"""Field of a `step` → the job's gauge."""


@dataclass
class Job:
    """What is known of one job (trial) of a run."""

    run: str
    trial: str
    plan: Mapping[str, Any]
    state: JobState
    payload: dict[str, int] = field(default_factory=dict)  # worker → bytes of gradients of a step
    started: dict[str, int] = field(default_factory=dict)  # node → times that its workers were started
    folder: str = ""  # of the newest checkpoint
    disk_told: bool = False  # the harness tells how full the checkpoints' disk is
    serving: set[tuple[str, str]] = field(default_factory=set)  # node and slot of what is there for the workers
    saves: Saves | None = None  # None: it is not meant to save
    evaluations: Evaluations = field(default_factory=Evaluations)
    promise: Promise | None = None  # None: its plan has an estimate

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of a job's series."""
        return self.run, self.trial

    @property
    def nodes(self) -> int:
        """Nodes that it is meant to have."""
        return int(self.plan.get("nodes", 0))

    @property
    def ranks(self) -> int:
        """Ranks that it is meant to have."""
        return self.nodes * int(self.plan.get("ranks_per_node", 1))


class Intake(Taker):
    """Takes in the events of a run, and of trainers without a harness."""

    def __init__(
        self, board: Board, run: str, plan: Mapping[str, Any], clock: Mapping[str, float] | None, price: float
    ) -> None:
        super().__init__(board, run, clock)
        self._plans = {str(trial["id"]): trial for trial in plan.get("trials", ())}
        nodes = plan.get("cluster", {}).get("nodes", ())
        self._coordinate = {str(it["name"]) for it in nodes if it.get("role") == "coordinates"}
        self.bare = not self._plans  # their own events are all there is
        self.lock = "" if self.bare else LOCK
        self._price = price
        self._ended: set[str] = set()
        self.jobs: dict[str, Job] = {}

    def react(self, record: Record) -> None:
        """What an event means, by its name."""
        trial, event = record.get("trial"), record["event"]
        if about := OF_RUN.get(event):
            about(self, record)
        elif trial and not (trial in self._ended and event != ("start" if self.bare else "trial_start")):
            self._take(str(trial), event, record)  # what was read late must not bring an ended job back

    def _take(self, trial: str, event: str, record: Record) -> None:
        if event == "trial_start" or (self.bare and trial not in self.jobs):
            self.trial_start(self._job(trial), record)
        job = self._job(trial)
        news = job.state.take(record)
        if react := REACTIONS.get(event):
            react(self, job, record)
        if trial in self.jobs and (event != "step" or news.committed):
            self._told(job, news)
        if trial in self.jobs and news.committed:
            self._committed(job, record)

    def _told(self, job: Job, news: News) -> None:
        """What is known of the job as a whole."""
        board, state = self._board, job.state
        board.set("recovery_in_progress", job.labels, int(state.symptom_t is not None))
        for name, number in (("recovery_generation", state.generation), ("recovery_world_size", state.world_size)):
            if number:
                board.set(name, job.labels, number)
        if self.bare and state.world_size:
            self._most("training_ranks_planned", job, state.world_size)
            self._most("training_nodes_planned", job, len({it.node for it in state.workers.values()}))
        if news.committed:
            board.set("training_committed_step", job.labels, state.step)
        if news.standstill:
            board.observe("recovery_standstill_seconds", job.labels, news.standstill.seconds)
            board.add("recovery_lost_steps_total", job.labels, news.standstill.lost)
        for it in news.recovered:
            if it.seconds is not None:
                board.set("chaos_time_to_recovery_seconds", (*job.labels, it.fault.id, it.fault.kind), it.seconds)

    def _most(self, name: str, job: Job, value: float) -> None:
        """The most that there ever was: without a plan this is what the job is meant to have."""
        if value > (self._board.get(name, job.labels) or 0):
            self._board.set(name, job.labels, value)

    def _committed(self, job: Job, record: Record) -> None:
        """All ranks made a step: training that a save may be due for, and maybe an evaluation begins."""
        board, step = self._board, job.state.step
        if job.saves:
            job.saves.step(record)
            board.set("checkpoint_unsaved_seconds", job.labels, job.saves.unsaved_s)
        if job.evaluations.due(step):
            self._at("training_evaluation_start_timestamp_seconds", job.labels, record)
        if job.promise and (estimate_s := job.promise.estimate_s(step, float(record["t"]), job.evaluations.steps)):
            board.set("training_seconds_estimated", job.labels, estimate_s)

    def _job(self, trial: str) -> Job:
        if trial not in self.jobs:
            plan = self._plans.get(trial, {})
            self.jobs[trial] = self._new(trial, plan)
        return self.jobs[trial]

    def _new(self, trial: str, plan: Mapping[str, Any]) -> Job:
        saves = Saves() if is_to_save(plan) else None
        return Job(self._run, trial, plan, JobState(plan), saves=saves, evaluations=Evaluations.of(plan))

    # The run as a whole --------------------------------------------------------------------------------------------

    def queued(self, record: Record) -> None:
        """The run waits for machines; the first word of it says since when. A node that was lost may wait, too."""
        if "node" in record:
            return
        labels = (self._run, "job")
        if self._board.get("queue_oldest_timestamp_seconds", labels) is None:
            self._at("queue_oldest_timestamp_seconds", labels, record)
        self._board.set("queue_told_seconds", labels, record["wait_s"])

    def its_turn(self, record: Record) -> None:
        """It has its machines, or has given up."""
        del record
        self._board.drop_job(self._run, begins=("queue_",))

    def run_end(self, record: Record) -> None:
        """The harness is done with all its jobs, whatever became of them."""
        del record
        self.sealed()

    def sealed(self) -> None:
        """Nobody works at any job of the run any more, whether or not somebody said so."""
        self._board.drop_job(self._run, begins=("queue_",))
        for trial in list(self.jobs):
            self._over(trial)

    def forget(self, trial: str) -> None:
        """A job without the harness that was cut off; should it be heard of after all, it begins anew."""
        self._board.drop_job(self._run, trial)
        self.jobs.pop(trial, None)

    # The harness' node agent ---------------------------------------------------------------------------------------

    def trial_start(self, job: Job, record: Record) -> None:
        """A job begins; what an earlier attempt left is gone."""
        self._board.drop_job(*job.labels)
        self._ended.discard(job.trial)
        job = self.jobs[job.trial] = self._new(job.trial, job.plan)
        about = (str(job.plan.get(name) or "") for name in ("case", "workload", "mechanism"))
        self._board.set("training_job_info", (*job.labels, *about), 1)
        fewest = job.plan.get("min_nodes") or job.nodes
        link = (job.plan.get("link_mbps") or 0) * 1e6 / 8
        for name, value in (
            ("training_nodes_planned", job.nodes), ("training_nodes_min", fewest),
            ("training_ranks_planned", job.ranks),
            ("training_seconds_estimated", job.plan.get("estimate_s", 0)),
            ("communication_link_bytes_per_second", link), ("training_price_dollars_per_hour", self._price),
        ):  # fmt: skip
            if value:
                self._board.set(name, job.labels, value)
        self._at("training_start_timestamp_seconds", job.labels, record)
        for name in COUNTED:
            self._board.set(name, job.labels, 0)
        if self.bare:
            job.promise = Promise(float(record["t"]))
        if job.saves:
            self._board.set("checkpoint_unsaved_seconds", job.labels, 0)
            self._board.set("checkpoint_usual_seconds", job.labels, job.saves.usual_s)

    def trial_end(self, job: Job, record: Record) -> None:
        """A job is over: it has no present values any more."""
        del record
        self._over(job.trial)

    def _over(self, trial: str) -> None:
        self.forget(trial)
        self._ended.add(trial)

    def process_start(self, job: Job, record: Record) -> None:
        """The node agent started a process."""
        if record.get("serves"):
            job.serving.add((str(record["node"]), str(record["slot"])))
        self._board.set("training_process_up", self._process(job, record), 1)
        if self._process(job, record)[-1] == "worker":
            self._count_from_zero(job, str(record["node"]))

    def _count_from_zero(self, job: Job, node: str) -> None:
        for name, more in COUNTED_BY_NODE:
            self._board.add(name, (*job.labels, node, *more), 0)

    def process_exit(self, job: Job, record: Record) -> None:
        """The node agent saw one end."""
        labels = self._process(job, record)
        if self._board.get("training_process_up", labels) is None:
            return
        if record.get("code") == 0:
            self._board.drop("training_process_up", labels)
        else:
            self._board.set("training_process_up", labels, 0)

    def _process(self, job: Job, record: Record) -> tuple[str, ...]:
        """Its labels; the coordinator of a small trial may be on a node that trains in a larger one."""
        node, slot = str(record["node"]), str(record["slot"])
        coordinates = node in self._coordinate or (node, slot) in job.serving
        return (*job.labels, node, slot, "coordinator" if coordinates else "worker")

    def machine(self, job: Job, record: Record) -> None:
        """A sample of the machine."""
        for node, seconds in record.get("throttled_s", {}).items():
            self._board.set("node_throttled_seconds_total", (*job.labels, node), float(seconds))
        if volume := record.get("volume"):
            job.disk_told = True
            self._board.set("checkpoint_disk_size_bytes", job.labels, volume["size"])
            self._board.set("checkpoint_disk_free_bytes", job.labels, volume["free"])
        for gpu in record.get("gpus", ()):
            put_gpu(self._board, HOST, gpu)

    def fault_begin(self, job: Job, record: Record) -> None:
        """For annotations only."""
        self._board.set("chaos_fault_active", self._fault(job, record), 1)

    def fault_end(self, job: Job, record: Record) -> None:
        """For annotations only."""
        held = self._board.values.get("chaos_fault_active", {})
        for labels in [it for it in held if it[:3] == (*job.labels, str(record["fault"]))]:
            self._board.drop("chaos_fault_active", labels)

    @staticmethod
    def _fault(job: Job, record: Record) -> tuple[str, ...]:
        return (*job.labels, str(record["fault"]), str(record["kind"]), ",".join(record.get("target", ())))

    # Launchers -----------------------------------------------------------------------------------------------------

    def workers_start(self, job: Job, record: Record) -> None:
        """A launcher started its workers."""
        node = node_of(record)
        job.started[node] = job.started.get(node, 0) + 1
        if job.started[node] > 1:
            self._board.add("recovery_restarts_total", (*job.labels, node))

    def detected(self, job: Job, record: Record) -> None:
        """A launcher noticed that something is wrong."""
        self._board.add("recovery_detections_total", (*job.labels, node_of(record), str(record.get("why", ""))))

    def asked_to_leave(self, job: Job, record: Record) -> None:
        """A launcher got SIGTERM."""
        self._board.add("recovery_evictions_total", (*job.labels, node_of(record)))

    def gave_up(self, job: Job, record: Record) -> None:
        """A launcher stopped for good."""
        self._board.add("recovery_gave_up_total", (*job.labels, node_of(record)))

    # Trainers ------------------------------------------------------------------------------------------------------

    def start(self, job: Job, record: Record) -> None:
        """A worker is up."""
        if self.bare:
            self._count_from_zero(job, node_of(record))

    def ready(self, job: Job, record: Record) -> None:
        """A worker is ready to make steps."""
        job.payload[str(record["source"])] = int(record.get("gradient_bytes", 0))
        job.evaluations.steps = int(record.get("steps", job.evaluations.steps))
        for field_, name in (("steps", "training_steps_planned"), ("parameters", "training_parameters")):
            if field_ in record:
                self._board.set(name, job.labels, float(record[field_]))

    def end(self, job: Job, record: Record) -> None:
        """A worker is done; without a harness nobody else says that the job is over."""
        if self.bare:
            self.trial_end(job, record)

    def step(self, job: Job, record: Record) -> None:
        """A worker made a step."""
        board, number = self._board, int(record["step"])
        node, _, slot = str(record["source"]).rpartition(".")
        worker = (*job.labels, node, slot)
        board.drop("training_evaluation_start_timestamp_seconds", job.labels)
        board.add("training_steps_total", worker)
        board.add("training_samples_total", worker, record["samples"])
        board.set("training_step", worker, number)
        self._at("training_last_step_timestamp_seconds", worker, record)
        if (ahead_s := self._clocks.wall_ahead_s(node, record)) is not None:
            board.set("node_clock_offset_seconds", worker[:3], ahead_s)
        if number >= job.state.step:
            for field_, name in NUMBERS.items():
                if isinstance(value := record.get(field_), int | float):
                    board.set(name, job.labels, value)
        self._time(job, worker, record)

    def node_clock(self, record: Record) -> None:
        """The harness measured a node's clocks; its wall clock is told of the jobs that have a worker there."""
        node = self._clocks.measured(record)
        for job in self.jobs.values():
            if any(it.node == node for it in job.state.workers.values()):
                self._board.set("node_clock_offset_seconds", (*job.labels, node), float(record["wall_ahead_s"]))

    def _time(self, job: Job, worker: tuple[str, ...], record: Record) -> None:
        """Where the time of a step went."""
        step_s = record.get("step_s")
        if step_s is None:
            return
        board = self._board
        board.observe("training_step_seconds", worker[:3], step_s)
        told = 0.0
        for name in STEP_PARTS:
            if seconds := record.get(name):
                board.add("training_time_seconds_total", (*worker, name[:-2]), seconds)
                told += seconds
        board.add("training_time_seconds_total", (*worker, "other"), max(0.0, step_s - told))
        board.add("communication_exposed_seconds_total", worker, record.get("comm_s", 0.0))
        if record.get("world_size", job.ranks) > 1 and (payload := job.payload.get(str(record["source"]))):
            board.add("communication_payload_bytes_total", worker, payload)

    def phase(self, job: Job, record: Record) -> None:
        """A worker says what it does; that an evaluation begins is told by trainers of one's own."""
        if record["phase"] == EVALUATION:
            self._at("training_evaluation_start_timestamp_seconds", job.labels, record)

    def eval(self, job: Job, record: Record) -> None:
        """The model was evaluated."""
        self._board.drop("training_evaluation_start_timestamp_seconds", job.labels)
        job.evaluations.made(int(record["step"]))
        labels = (*job.labels, str(record["split"]), str(record["metric"]))
        self._board.set("training_evaluation", labels, float(record["value"]))

    def checkpoint(self, job: Job, record: Record) -> None:
        """A checkpoint is durable."""
        board = self._board
        board.add("checkpoint_saves_total", job.labels)
        board.set("checkpoint_size_bytes", job.labels, record["bytes"])
        board.set("checkpoint_last_step", job.labels, record["step"])
        self._at("checkpoint_last_success_timestamp_seconds", job.labels, record)
        board.observe("checkpoint_block_seconds", job.labels, record["block_s"])
        if "durable_s" in record:
            board.observe("checkpoint_save_seconds", job.labels, record["durable_s"])
        job.folder = str(record["path"]).rpartition("/")[0]
        if job.saves:
            job.saves.save(record)
            board.set("checkpoint_unsaved_seconds", job.labels, job.saves.unsaved_s)
            board.set("checkpoint_usual_seconds", job.labels, job.saves.usual_s)

    def resume(self, job: Job, record: Record) -> None:
        """A checkpoint was loaded: rank 0 read it, and every rank tells."""
        if not job.state.workers[str(record["source"])].rank:
            self._board.add("checkpoint_loads_total", job.labels)
            if "read_s" in record:
                self._board.observe("checkpoint_load_seconds", job.labels, record["read_s"])

    def quarantine(self, job: Job, record: Record) -> None:
        """A damaged checkpoint was passed over."""
        del record
        self._board.add("checkpoint_quarantined_total", job.labels)

    def collective(self, job: Job, record: Record) -> None:
        """A collective was measured."""
        if "busbw" in record:
            labels = (*job.labels, str(record["op"]), str(record["bytes"]))
            self._board.set("communication_bus_bytes_per_second", labels, float(record["busbw"]))

    def error(self, job: Job, record: Record) -> None:
        """A worker told of an error; one that training survived is a save that failed."""
        fatal = bool(record.get("fatal", True))
        labels = (*job.labels, node_of(record), str(record.get("kind", "")), str(fatal).lower())
        self._board.add("training_errors_total", labels)
        if not fatal and "checkpoint" in str(record["message"]):
            self._board.add("checkpoint_failures_total", job.labels)


def node_of(record: Record) -> str:
    """The node that an event is of: `n2` of source `n2.0` or `n2.launch`."""
    source = str(record.get("source", HARNESS))
    return source.partition(".")[0]


COUNTED = (
    "checkpoint_saves_total", "checkpoint_failures_total", "checkpoint_loads_total", "checkpoint_quarantined_total",
    "recovery_lost_steps_total",
)  # fmt: skip
"""Counters of a job that are there from its beginning, at 0, so that the first increase can be seen."""

COUNTED_BY_NODE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("recovery_restarts_total", ()),
    ("recovery_evictions_total", ()),
    ("recovery_gave_up_total", ()),
    ("recovery_detections_total", ("worker_failed",)),
    ("recovery_detections_total", ("membership_changed",)),
    ("recovery_detections_total", ("no_coordinator",)),
    ("training_errors_total", ("OutOfMemoryError", "true")),
    ("training_errors_total", ("OutOfMemoryError", "false")),  # survived, with a smaller batch
)
"""The same of a node, with what follows the node in its labels."""

OF_RUN: dict[str, Callable[[Intake, Record], None]] = {
    "node_clock": Intake.node_clock,
    "queued": Intake.queued,
    "cluster_up": Intake.its_turn,
    "run_end": Intake.run_end,
}
"""Event of no trial → what it does to the board."""

REACTIONS: dict[str, Callable[[Intake, Job, Record], None]] = {
    "trial_end": Intake.trial_end,
    "process_start": Intake.process_start,
    "process_exit": Intake.process_exit,
    "neighbour_exit": Intake.process_exit,  # the coordinator's node is none of the job's
    "machine": Intake.machine,
    "fault_begin": Intake.fault_begin,
    "fault_end": Intake.fault_end,
    "workers_start": Intake.workers_start,
    "detected": Intake.detected,
    "asked_to_leave": Intake.asked_to_leave,
    "gave_up": Intake.gave_up,
    "start": Intake.start,
    "ready": Intake.ready,
    "end": Intake.end,
    "step": Intake.step,
    "phase": Intake.phase,
    "eval": Intake.eval,
    "checkpoint": Intake.checkpoint,
    "resume": Intake.resume,
    "quarantine": Intake.quarantine,
    "collective": Intake.collective,
    "error": Intake.error,
}
"""Event → what it does to the board."""
