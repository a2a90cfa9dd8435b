"""Every metric, defined once: name, kind, unit, labels, what it means, and where it comes from.

Read by the exporter, by the tests of rules and dashboards, and by whoever makes the README's table
(`pg monitoring metrics`). Names follow Prometheus' rules: base units (seconds, bytes, ratio), `_total` for
counters, the unit last.
"""

from __future__ import annotations

from dataclasses import dataclass

RUN = ("run",)
JOB = ("run", "trial")
NODE = (*JOB, "node")
WORKER = (*NODE, "slot")
HOST = ("node",)
GPU = ("node", "gpu")
QUEUE = ("run", "queue")

STEP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SAVE_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)
"""Near enough to each other that a median never seems three times another by falling into the next bucket."""
RECOVERY_BUCKETS_S = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)
LATENCY_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0,
)  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """One metric. `unit` is the base unit in words, empty for a pure number; `source` is an event or a place."""

    kind: str  # counter, gauge or histogram
    unit: str
    labels: tuple[str, ...]
    meaning: str
    source: str
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram's, ascending


METRICS: dict[str, Metric] = {
    # Training: one job is one trial of a run; a worker is one trainer process, `slot` its number on its node.
    "training_job_info": Metric(
        "gauge", "", (*JOB, "case", "workload", "mechanism"), "always 1; what a job is", "plan.json"
    ),
    "training_nodes_planned": Metric(
        "gauge", "", JOB, "nodes that the job is meant to have; without a plan: the most it had", "plan.json, start"
    ),
    "training_ranks_planned": Metric(
        "gauge", "", JOB, "ranks that the job is meant to have; without a plan: the most it had", "plan.json, start"
    ),
    "training_nodes_min": Metric("gauge", "", JOB, "the fewest nodes that it goes on with", "plan.json"),
    "training_steps_planned": Metric("gauge", "", JOB, "optimizer steps that the job is meant to make", "ready"),
    "training_seconds_estimated": Metric(
        "gauge",
        "seconds",
        JOB,
        "how long it was estimated to take; without a plan: by the pace of its first 100 steps",
        "plan.json, step",
    ),
    "training_start_timestamp_seconds": Metric(
        "gauge", "seconds", JOB, "when the job began (Unix time)", "trial_start"
    ),
    "training_price_dollars_per_hour": Metric(
        "gauge", "dollars", JOB, "of one node, where it was told", "--node-price"
    ),
    "training_loss": Metric("gauge", "", JOB, "global mean loss of the newest step", "step"),
    "training_evaluation": Metric("gauge", "", (*JOB, "split", "metric"), "newest value, e.g. of accuracy", "eval"),
    "training_evaluation_start_timestamp_seconds": Metric(
        "gauge",
        "seconds",
        JOB,
        "since when the job is evaluated (Unix time), by its plan, its rhythm or a `phase` evaluation; none: it is not",
        "step, phase",
    ),
    "training_learning_rate": Metric("gauge", "", JOB, "of the newest step", "step"),
    "training_gradient_norm": Metric("gauge", "", JOB, "of the newest step, where gradients are clipped", "step"),
    "training_parameters": Metric("gauge", "", JOB, "parameters that are trained", "ready"),
    "training_step": Metric(
        "gauge", "", WORKER, "newest step of a worker; goes back when a checkpoint is loaded", "step"
    ),
    "training_committed_step": Metric(
        "gauge", "", JOB, "newest step that all ranks recorded; goes back when training does", "step"
    ),
    "training_steps_total": Metric("counter", "", WORKER, "steps made, repeated ones too", "step"),
    "training_samples_total": Metric("counter", "", WORKER, "samples learned from, repeated ones too", "step"),
    "training_step_seconds": Metric(
        "histogram", "seconds", NODE, "time of a step, on its worker's clock", "step", STEP_BUCKETS_S
    ),
    "training_time_seconds_total": Metric(
        "counter",
        "seconds",
        (*WORKER, "part"),
        "time by part: data, forward, backward, comm (the exposed part only), optimizer, checkpoint, other",
        "step",
    ),
    "training_last_step_timestamp_seconds": Metric(
        "gauge", "seconds", WORKER, "when the newest step ended (Unix time)", "step"
    ),
    "training_errors_total": Metric("counter", "", (*NODE, "kind", "fatal"), "errors that workers told of", "error"),
    "training_process_up": Metric(
        "gauge",
        "",
        (*NODE, "slot", "role"),
        "1 while a process that the node agent started runs (a launcher, or a worker where there is none), 0 once it "
        "died; role is worker or coordinator",
        "process_start, process_exit",
    ),
    # Recovery
    "recovery_generation": Metric("gauge", "", JOB, "incarnation of the job: one more whenever the ranks met", "ready"),
    "recovery_world_size": Metric("gauge", "", JOB, "ranks of the newest generation", "start, ready, step"),
    "recovery_detections_total": Metric(
        "counter", "", (*NODE, "why"), "launchers noticed that something is wrong", "detected"
    ),
    "recovery_restarts_total": Metric(
        "counter", "", NODE, "times that a node's workers were started again", "workers_start"
    ),
    "recovery_evictions_total": Metric("counter", "", NODE, "a node's launcher was asked to leave", "asked_to_leave"),
    "recovery_gave_up_total": Metric("counter", "", NODE, "a launcher stopped for good", "gave_up"),
    "recovery_lost_steps_total": Metric(
        "counter", "", JOB, "committed steps that a newer generation makes again", "step"
    ),
    "recovery_in_progress": Metric(
        "gauge",
        "",
        JOB,
        "1 from the first symptom to the next step that all ranks committed",
        "process_exit, error, detected, step",
    ),
    "recovery_standstill_seconds": Metric(
        "histogram",
        "seconds",
        JOB,
        "from the last step that all ranks of a generation committed to the first of a newer one; starts at that step, "
        "because without a nemesis nobody knows when the fault was",
        "step",
        RECOVERY_BUCKETS_S,
    ),
    # Checkpoints
    "checkpoint_saves_total": Metric("counter", "", JOB, "checkpoints committed and durable", "checkpoint"),
    "checkpoint_failures_total": Metric("counter", "", JOB, "saves that failed; training went on", "error"),
    "checkpoint_loads_total": Metric("counter", "", JOB, "checkpoints verified and loaded", "resume"),
    "checkpoint_quarantined_total": Metric(
        "counter", "", JOB, "damaged ones, passed over and moved aside", "quarantine"
    ),
    "checkpoint_block_seconds": Metric(
        "histogram", "seconds", JOB, "how long training waited for a save", "checkpoint", SAVE_BUCKETS_S
    ),
    "checkpoint_save_seconds": Metric(
        "histogram", "seconds", JOB, "from the call to durable and committed", "checkpoint", SAVE_BUCKETS_S
    ),
    "checkpoint_load_seconds": Metric("histogram", "seconds", JOB, "read and verified", "resume", SAVE_BUCKETS_S),
    "checkpoint_size_bytes": Metric("gauge", "bytes", JOB, "of the newest", "checkpoint"),
    "checkpoint_last_step": Metric("gauge", "", JOB, "step of the newest", "checkpoint"),
    "checkpoint_last_success_timestamp_seconds": Metric(
        "gauge", "seconds", JOB, "when the newest was durable (Unix time)", "checkpoint"
    ),
    "checkpoint_unsaved_seconds": Metric(
        "gauge",
        "seconds",
        JOB,
        "training since the newest save or the job's begin, without what stood still; none: it does not save",
        "step, checkpoint",
    ),
    "checkpoint_usual_seconds": Metric(
        "gauge",
        "seconds",
        JOB,
        "training between two saves: the median of the job's 20 newest intervals, 1200 before its first save",
        "checkpoint",
    ),
    "checkpoint_disk_size_bytes": Metric(
        "gauge", "bytes", JOB, "file system that the newest is on", "machine, statvfs"
    ),
    "checkpoint_disk_free_bytes": Metric("gauge", "bytes", JOB, "free there, for an ordinary user", "machine, statvfs"),
    # Communication
    "communication_exposed_seconds_total": Metric(
        "counter", "seconds", WORKER, "time that steps waited for all-reduces after backward", "step"
    ),
    "communication_payload_bytes_total": Metric(
        "counter",
        "bytes",
        WORKER,
        "gradients that a worker gave to all-reduces, where the world has several",
        "step, ready",
    ),
    "communication_bus_bytes_per_second": Metric(
        "gauge", "bytes per second", (*JOB, "op", "size_bytes"), "bus bandwidth as in nccl-tests", "collective"
    ),
    "communication_link_bytes_per_second": Metric(
        "gauge", "bytes per second", JOB, "what every node's link is limited to, where it is", "plan.json"
    ),
    # GPUs: by nvidia-ml-py on the exporter's machine, or as the harness sampled them
    "gpu_utilization_ratio": Metric("gauge", "ratio", GPU, "share of time in which a kernel ran", "NVML, machine"),
    "gpu_memory_used_bytes": Metric("gauge", "bytes", GPU, "in use", "NVML, machine"),
    "gpu_memory_total_bytes": Metric("gauge", "bytes", GPU, "there is", "NVML, machine"),
    "gpu_temperature_celsius": Metric("gauge", "celsius", GPU, "of the chip", "NVML, machine"),
    "gpu_power_watts": Metric("gauge", "watts", GPU, "drawn", "NVML, machine"),
    "gpu_sm_clock_hertz": Metric("gauge", "hertz", GPU, "of the processors", "NVML, machine"),
    "gpu_ecc_errors_total": Metric(
        "counter", "", (*GPU, "corrected"), "memory errors since the driver came up", "NVML"
    ),
    "gpu_xid_errors_total": Metric("counter", "", (*GPU, "xid"), "critical errors that the driver reported", "NVML"),
    # Nodes: the exporter's machine, `node` is its host name; the last two of each emulated node
    "pg_node_cpu_seconds_total": Metric(  # node-exporter's has the name without the prefix, and a label `cpu`
        "counter", "seconds", (*HOST, "mode"), "of all cores, by what they did", "/proc/stat"
    ),
    "node_cores": Metric("gauge", "", HOST, "cores that the system has", "/proc/stat"),
    "node_load1": Metric("gauge", "", HOST, "processes that want to run, over a minute", "/proc/loadavg"),
    "node_memory_total_bytes": Metric("gauge", "bytes", HOST, "there is", "/proc/meminfo"),
    "node_memory_available_bytes": Metric("gauge", "bytes", HOST, "to be had without swapping", "/proc/meminfo"),
    "node_oom_kills_total": Metric("counter", "", HOST, "processes killed for want of memory", "/proc/vmstat"),
    "node_disk_size_bytes": Metric("gauge", "bytes", (*HOST, "mount"), "of the runs' file system", "statvfs"),
    "node_disk_free_bytes": Metric("gauge", "bytes", (*HOST, "mount"), "free there", "statvfs"),
    "node_disk_read_bytes_total": Metric("counter", "bytes", (*HOST, "device"), "read", "/proc/diskstats"),
    "node_disk_written_bytes_total": Metric("counter", "bytes", (*HOST, "device"), "written", "/proc/diskstats"),
    "node_network_receive_bytes_total": Metric("counter", "bytes", (*HOST, "device"), "received", "/proc/net/dev"),
    "node_network_transmit_bytes_total": Metric("counter", "bytes", (*HOST, "device"), "sent", "/proc/net/dev"),
    "node_clock_offset_seconds": Metric(
        "gauge",
        "seconds",
        NODE,
        "a node's wall clock less the harness' wall clock, where there is one",
        "node_clock, step",
    ),
    "node_throttled_seconds_total": Metric("counter", "seconds", NODE, "held back by its CPU share", "machine"),
    # Searches: `trial` is one trial of a search
    "search_info": Metric("gauge", "", (*RUN, "algorithm", "metric", "mode"), "always 1; what is searched", "sitting"),
    "search_trials_planned": Metric("gauge", "", RUN, "trials that there are to be", "sitting"),
    "search_trials": Metric(
        "gauge",
        "",
        (*RUN, "state"),
        "trials by state: waiting, running, finished, stopped (by the algorithm), cut_off (by the budget), failed",
        "trials.jsonl",
    ),
    "search_best_value": Metric("gauge", "", RUN, "best value of any trial that did not fail", "reported"),
    "search_trial_value": Metric("gauge", "", JOB, "newest value of a trial that runs", "reported"),
    "search_last_report_timestamp_seconds": Metric(
        "gauge", "seconds", RUN, "when any trial last told a value (Unix time)", "reported"
    ),
    "search_steps_total": Metric("counter", "", RUN, "steps that all trials made, repeated ones too", "step"),
    "search_start_timestamp_seconds": Metric(
        "gauge", "seconds", RUN, "when it would have begun, had it run without a break (Unix time)", "sitting"
    ),
    "search_budget_seconds": Metric("gauge", "seconds", RUN, "that it may take, where that was told", "search.json"),
    "search_budget_steps": Metric(
        "gauge", "", RUN, "steps that its trials may make, where that was told", "search.json"
    ),
    # End points under load
    "endpoint_info": Metric("gauge", "", (*RUN, "model", "engine"), "always 1; what is under load", "load.json"),
    "endpoint_users": Metric("gauge", "", RUN, "users that ask, each one request at a time", "level"),
    "endpoint_requests_total": Metric(
        "counter", "", (*RUN, "outcome"), "requests that ended: answered (status 200) or failed", "end"
    ),
    "endpoint_latency_seconds": Metric(
        "histogram", "seconds", RUN, "time of an answered request", "end", LATENCY_BUCKETS_S
    ),
    "endpoint_late_total": Metric("counter", "", RUN, "answered, and later than the p99 that was told", "end"),
    "endpoint_p99_told_seconds": Metric(
        "gauge", "seconds", RUN, "in which 99 of 100 requests are answered, where that was told", "load.json"
    ),
    "endpoint_in_flight": Metric("gauge", "", RUN, "requests that have begun and not ended", "begin, end"),
    "endpoint_replicas_planned": Metric("gauge", "", RUN, "replicas that there are to be", "replicas"),
    "endpoint_replicas_up": Metric(
        "gauge",
        "",
        RUN,
        "replicas that HAProxy sends requests to; without it: whose process lives",
        "replicas",
    ),
    # Queues: `queue` is job (for machines), trial (for a slot of its search) or request (for an answer)
    "queue_oldest_timestamp_seconds": Metric(
        "gauge",
        "seconds",
        QUEUE,
        "since when that waits which has waited longest (Unix time); none: nothing waits",
        "queued, sitting, begin",
    ),
    "queue_told_seconds": Metric(
        "gauge",
        "seconds",
        QUEUE,
        "how long it was told that it waits at most: a job the cluster's wait_min, a trial the search's budget_s, a "
        "request the bound of `longest`",
        "queued, search.json, load.json",
    ),
    # What was done to the job: for annotations only; no rule may use it (a test looks)
    "chaos_fault_active": Metric(
        "gauge", "", (*JOB, "fault", "kind", "target"), "1 while an injected fault is held", "fault_begin, fault_end"
    ),
    "chaos_time_to_recovery_seconds": Metric(
        "gauge",
        "seconds",
        (*JOB, "fault", "kind"),
        "time to recovery: from the moment of the fault to the first step that all ranks of a newer generation "
        "committed; none where training never stopped; of faults that overlap one, under the first, to the last of "
        "those steps",
        "fault_begin, step",
    ),
    # The exporter itself
    "exporter_events_total": Metric("counter", "", ("run",), "events taken in", "events/*.jsonl"),
    "exporter_lines_refused_total": Metric("counter", "", ("run",), "lines that are no events", "events/*.jsonl"),
    "exporter_series_refused_total": Metric("counter", "", ("metric",), "new series beyond a metric's limit", "itself"),
    "exporter_last_event_timestamp_seconds": Metric(
        "gauge", "seconds", ("run",), "of the newest event (Unix time)", "events/*.jsonl"
    ),
    "exporter_poll_seconds": Metric("gauge", "seconds", (), "how long the last look at the files took", "itself"),
}


def table() -> str:
    """All metrics as a Markdown table, for the README."""
    rows = [
        f"| `{name}` | {it.kind} | {it.unit or '–'} | {', '.join(it.labels) or '–'} | {it.meaning} | {it.source} |"
        for name, it in METRICS.items()
    ]
    return "\n".join(["| metric | kind | unit | labels | meaning | from |", "|---|---|---|---|---|---|", *rows])
