"""What the dashboards show, as data: a title, queries and a unit for each panel. Read by `monitoring.dashboards`.

In queries `@job` stands for the chosen run and trial, `@run` for the run alone, `@rate` for Grafana's window for rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "table", "bargauge", "state-timeline"]
"""A course is a time series; what counts now a number or a bar; what has names a table; what is so or not a band."""


@dataclass(frozen=True)
class Shown:
    """One panel. `queries`: legend → PromQL; `unit` is Grafana's: s, bytes, percentunit, short, and so on.

    `most` is the end of the axis, where there is one: 1 for a share.
    """

    title: str
    unit: str
    queries: dict[str, str]
    stacked: bool = False
    kind: Kind = "timeseries"
    most: float | None = None


def quantiles(metric: str, by: str = "trial", of: str = "@job", high: float = 0.95) -> dict[str, str]:
    """Median and a high percentile of a histogram."""
    inner = f"sum by ({by}, le) (rate({metric}_bucket{{{of}}}[@rate]))"
    named = (("median", 0.5), (f"p{100 * high:.0f}", high))
    return {f"{name} {{{{{by}}}}}": f"histogram_quantile({q}, {inner})" for name, q in named}


def mean(metric: str) -> dict[str, str]:
    """Mean of what a histogram has seen since the job began."""
    return {"mean {{trial}}": f"{metric}_sum{{@job}} / {metric}_count{{@job}}"}


def queue(of: str) -> Shown:
    """What waits: since when the oldest does, and how long it was told."""
    where = f'{{@run, queue="{of}"}}'
    return Shown(f"In the queue: a {of} has waited, and was told", "s", {
        "waited {{run}}": f"time() - queue_oldest_timestamp_seconds{where}",
        "told {{run}}": f"queue_told_seconds{where}",
    })  # fmt: skip


WORKER = "{{trial}} {{node}}.{{slot}}"
NODE = "{{trial}} {{node}}"
GPU = "{{node}} gpu {{gpu}}"

OVERVIEW = (
    Shown("Jobs", "short", {"{{trial}} {{case}} {{workload}} {{mechanism}}": "training_job_info{@job}"}, kind="table"),
    Shown("Alerts that fire", "short", {"": 'ALERTS{alertstate="firing", alertname!="Watchdog"}'}, kind="table"),
    Shown("Ranks: planned, fewest, in the job", "short", {
        "planned {{trial}}": "training_ranks_planned{@job}",
        "fewest {{trial}}": "training_ranks_planned{@job} * on (run, trial) training_nodes_min{@job}"
        " / on (run, trial) training_nodes_planned{@job}",
        "in {{trial}}": "recovery_world_size{@job}",
    }, kind="stat"),
    Shown("Processes up", "short", {
        "{{trial}} {{node}}.{{slot}} {{role}}": "training_process_up{@job}",
    }, kind="state-timeline"),
    Shown("Progress", "percentunit", {
        "{{trial}}": "max by (run, trial) (training_step{@job}) / on (run, trial) training_steps_planned{@job}",
    }, kind="bargauge", most=1),
    Shown("Running for, and estimated", "s", {
        "running {{trial}}": "time() - training_start_timestamp_seconds{@job}",
        "estimated {{trial}}": "training_seconds_estimated{@job}",
    }, kind="stat"),
    Shown("Time used, of the estimate", "percentunit", {
        "{{trial}}": "job:cost:ratio_of_estimate{@job}",
    }, kind="bargauge", most=1.5),
    Shown("Cost so far", "currencyUSD", {"{{trial}}": "job:cost:dollars{@job}"}, kind="stat"),
    Shown("Price of a node and hour", "currencyUSD", {
        "{{trial}}": "training_price_dollars_per_hour{@job}",
    }, kind="stat"),
    Shown("Parameters trained", "short", {"{{trial}}": "training_parameters{@job}"}, kind="stat"),
    queue("job"),
)  # fmt: skip
GPUS = (
    Shown("GPU utilisation", "percentunit", {GPU: "gpu_utilization_ratio"}),
    Shown("GPU memory used", "percentunit", {GPU: "gpu_memory_used_bytes / gpu_memory_total_bytes"}),
    Shown("GPU temperature", "celsius", {GPU: "gpu_temperature_celsius"}),
    Shown("GPU power", "watt", {GPU: "gpu_power_watts"}),
    Shown("GPU clock", "hertz", {GPU: "gpu_sm_clock_hertz"}),
    Shown("Memory errors", "short", {
        "{{node}} gpu {{gpu}} corrected {{corrected}}": "gpu_ecc_errors_total",
    }, kind="stat"),
    Shown("Critical errors (Xid)", "short", {"{{node}} gpu {{gpu}} Xid {{xid}}": "gpu_xid_errors_total"}, kind="table"),
)  # fmt: skip
TRAINING = (
    Shown("Loss", "short", {"{{trial}}": "training_loss{@job}"}),
    Shown("Evaluation", "short", {"{{trial}} {{split}} {{metric}}": "training_evaluation{@job}"}),
    Shown("Evaluation goes on for", "s", {
        "{{trial}}": "time() - training_evaluation_start_timestamp_seconds{@job}",
    }),
    Shown("Learning rate", "short", {"{{trial}}": "training_learning_rate{@job}"}),
    Shown("Gradient norm", "short", {"{{trial}}": "training_gradient_norm{@job}"}),
    Shown("Step of each worker", "short", {WORKER: "training_step{@job}"}),
    Shown("Committed step", "short", {"{{trial}}": "training_committed_step{@job}"}),
    Shown("Time since the newest step", "s", {WORKER: "time() - training_last_step_timestamp_seconds{@job}"}),
    Shown("Errors that workers told of", "short", {
        "{{trial}} {{node}} {{kind}}": "sum by (trial, node, kind) (training_errors_total{@job})",
    }, kind="table"),
)  # fmt: skip
COMMUNICATION = (
    Shown("Share of time in exposed communication", "percentunit", {"{{trial}}": "job:communication:ratio5m{@job}"}),
    Shown("Exposed communication of each worker", "percentunit", {
        WORKER: "rate(communication_exposed_seconds_total{@job}[@rate])",
    }),
    Shown("Gradients exchanged", "Bps", {WORKER: "rate(communication_payload_bytes_total{@job}[@rate])"}),
    Shown("Bus bandwidth of collectives", "Bps", {
        "{{trial}} {{op}} {{size_bytes}} B": "communication_bus_bytes_per_second{@job}",
    }),
    Shown("Rate of the links", "Bps", {"{{trial}}": "communication_link_bytes_per_second{@job}"}, kind="stat"),
)  # fmt: skip
SYSTEM = (
    Shown("CPU", "short", {"{{node}} {{mode}}": "rate(pg_node_cpu_seconds_total[@rate])"}, stacked=True),
    Shown("Load, and cores", "short", {"load {{node}}": "node_load1", "cores {{node}}": "node_cores"}),
    Shown("Memory", "bytes", {
        "used {{node}}": "node_memory_total_bytes - node_memory_available_bytes",
        "total {{node}}": "node_memory_total_bytes",
    }),
    Shown("Processes killed for want of memory", "short", {"{{node}}": "node_oom_kills_total"}, kind="stat"),
    Shown("Disk space used", "percentunit", {
        "{{node}} {{mount}}": "1 - node_disk_free_bytes / node_disk_size_bytes",
    }, kind="bargauge", most=1),
    Shown("Disk traffic", "Bps", {
        "read {{device}}": "rate(node_disk_read_bytes_total[@rate])",
        "written {{device}}": "rate(node_disk_written_bytes_total[@rate])",
    }),
    Shown("Network traffic", "Bps", {
        "received {{device}}": "rate(node_network_receive_bytes_total[@rate])",
        "sent {{device}}": "rate(node_network_transmit_bytes_total[@rate])",
    }),
    Shown("Held back by the CPU share", "percentunit", {NODE: "rate(node_throttled_seconds_total{@job}[@rate])"}),
    Shown("Wall clocks: ahead of the harness'", "s", {NODE: "node_clock_offset_seconds{@job}"}),
    Shown("Exporter: events", "short", {"{{run}}": "rate(exporter_events_total{@run}[@rate])"}),
    Shown("Exporter: time since the newest event", "s", {
        "{{run}}": "time() - exporter_last_event_timestamp_seconds{@run}",
    }),
    Shown("Exporter: lines and series refused", "short", {
        "lines {{run}}": "exporter_lines_refused_total{@run}",
        "series of {{metric}}": "exporter_series_refused_total",
    }, kind="stat"),
    Shown("Exporter: time of a look at the files", "s", {"": "exporter_poll_seconds"}),
)  # fmt: skip
THROUGHPUT = (
    Shown("Samples", "short", {"{{trial}}": "sum by (trial) (rate(training_samples_total{@job}[@rate]))"}),
    Shown("Samples of each worker", "short", {WORKER: "rate(training_samples_total{@job}[@rate])"}),
    Shown("Steps", "short", {"{{trial}}": "max by (trial) (rate(training_steps_total{@job}[@rate]))"}),
    Shown("Step time by node", "s", quantiles("training_step_seconds", "node")),
    Shown("Where the time goes", "percentunit", {
        "{{part}}": "sum by (part) (rate(training_time_seconds_total{@job}[@rate])) "
                    "/ scalar(sum(rate(training_time_seconds_total{@job}[@rate])))",
    }, stacked=True),
)  # fmt: skip
CHECKPOINTS = (
    Shown("Age of the newest", "s", {"{{trial}}": "time() - checkpoint_last_success_timestamp_seconds{@job}"}),
    Shown("Training that is not saved, and usually lies between two saves", "s", {
        "not saved {{trial}}": "checkpoint_unsaved_seconds{@job}", "usual {{trial}}": "checkpoint_usual_seconds{@job}",
    }),
    Shown("Step of the newest", "short", {"{{trial}}": "checkpoint_last_step{@job}"}, kind="stat"),
    Shown("Saved, failed, loaded, quarantined", "short", {
        "saved {{trial}}": "checkpoint_saves_total{@job}", "failed {{trial}}": "checkpoint_failures_total{@job}",
        "loaded {{trial}}": "checkpoint_loads_total{@job}", "bad {{trial}}": "checkpoint_quarantined_total{@job}",
    }),
    Shown("Training waits for a save", "s", quantiles("checkpoint_block_seconds")),
    Shown("Until it is durable", "s", quantiles("checkpoint_save_seconds")),
    Shown("Reading and verifying", "s", mean("checkpoint_load_seconds")),
    Shown("Size", "bytes", {"{{trial}}": "checkpoint_size_bytes{@job}"}, kind="stat"),
    Shown("Space used on their disk", "percentunit", {
        "{{trial}}": "1 - checkpoint_disk_free_bytes{@job} / checkpoint_disk_size_bytes{@job}",
    }, kind="bargauge", most=1),
)  # fmt: skip
RECOVERY = (
    Shown("Recovery in progress", "short", {"{{trial}}": "recovery_in_progress{@job}"}, kind="state-timeline"),
    Shown("Ranks", "short", {"{{trial}}": "recovery_world_size{@job}"}),
    Shown("Time to recovery, by fault", "s", {
        "{{fault}} {{kind}}": "chaos_time_to_recovery_seconds{@job}",
    }, kind="bargauge"),
    Shown("Standstill: last step to next", "s", mean("recovery_standstill_seconds")),
    Shown("Generation of the job", "short", {"{{trial}}": "recovery_generation{@job}"}, kind="stat"),
    Shown("Detections", "short", {"{{node}} {{why}}": "recovery_detections_total{@job}"}, kind="table"),
    Shown("Workers started again", "short", {NODE: "recovery_restarts_total{@job}"}),
    Shown("Asked to leave, and given up", "short", {
        "left {{node}}": "recovery_evictions_total{@job}", "gave up {{node}}": "recovery_gave_up_total{@job}",
    }),
    Shown("Steps lost", "short", {"{{trial}}": "recovery_lost_steps_total{@job}"}, kind="stat"),
)  # fmt: skip
SEARCH = (
    Shown("Searches", "short", {"{{run}} {{algorithm}}: {{mode}} {{metric}}": "search_info{@run}"}, kind="table"),
    Shown("Trials by state", "short", {"{{state}}": "sum by (state) (search_trials{@run})"}, stacked=True),
    Shown("Best value so far", "short", {"{{run}}": "search_best_value{@run}"}),
    Shown("Newest value of each trial", "short", {"{{trial}}": "search_trial_value{@job}"}),
    Shown("Since any trial told a value", "s", {"{{run}}": "time() - search_last_report_timestamp_seconds{@run}"}),
    Shown("Steps of all trials", "short", {"{{run}}": "rate(search_steps_total{@run}[@rate])"}),
    Shown("Trials that have ended", "percentunit", {
        "{{run}}": 'sum by (run) (search_trials{@run, state!~"waiting|running"})'
                   " / on (run) search_trials_planned{@run}",
    }, kind="bargauge", most=1),
    Shown("Budget used", "percentunit", {
        "seconds {{run}}": "(time() - search_start_timestamp_seconds{@run}) / search_budget_seconds{@run}",
        "steps {{run}}": "search_steps_total{@run} / search_budget_steps{@run}",
    }, kind="bargauge", most=1),
    queue("trial"),
)  # fmt: skip
SERVING = (
    Shown("End points", "short", {"{{run}} {{model}} {{engine}}": "endpoint_info{@run}"}, kind="table"),
    Shown("Users, and requests in flight", "short", {
        "users {{run}}": "endpoint_users{@run}", "in flight {{run}}": "endpoint_in_flight{@run}",
    }),
    Shown("Requests a second", "reqps", {
        "{{outcome}} {{run}}": "sum by (run, outcome) (rate(endpoint_requests_total{@run}[@rate]))",
    }, stacked=True),
    Shown("Share that fails, and that is late", "percentunit", {
        "fails {{run}}": "endpoint:failed:ratio5m{@run}", "late {{run}}": "endpoint:late:ratio5m{@run}",
    }),
    Shown("Latency, and its p99 as told", "s", {
        **quantiles("endpoint_latency_seconds", "run", "@run", 0.99), "told {{run}}": "endpoint_p99_told_seconds{@run}",
    }),
    Shown("Replicas: planned, up", "short", {
        "planned {{run}}": "endpoint_replicas_planned{@run}", "up {{run}}": "endpoint_replicas_up{@run}",
    }),
    queue("request"),
)  # fmt: skip

DASHBOARDS: dict[str, tuple[str, tuple[Shown, ...]]] = {
    "overview": ("Cluster overview", OVERVIEW),
    "gpus": ("GPUs", GPUS),
    "training": ("Training", TRAINING),
    "communication": ("Communication", COMMUNICATION),
    "system": ("System", SYSTEM),
    "throughput": ("Throughput", THROUGHPUT),
    "checkpoints": ("Checkpoints", CHECKPOINTS),
    "recovery": ("Recovery", RECOVERY),
    "search": ("Search", SEARCH),
    "serving": ("Serving", SERVING),
}
"""File name → title and panels."""

CHOICES: dict[str, tuple[str, str]] = {
    "search": ("search_info", 'search_trial_value{run=~"$run"}'),
    "serving": ("endpoint_info", ""),
}
"""Dashboard → series whose runs, and whose trials, a reader chooses from; of all others a job's."""
OF_JOBS = ("training_job_info", 'training_job_info{run=~"$run"}')

ANNOTATIONS = {
    "faults": ("chaos_fault_active{@job}", "orange"),
    "alerts": ('ALERTS{alertstate="firing"}', "red"),
}
"""What is shaded in every panel: name → query, colour."""
