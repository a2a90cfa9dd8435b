"""Which code each measurement depends on, and whether that code is still the same.

A measured file keeps the commit, the paths and a hash of the files there, of Python without comments and docstrings.
The hash is compared with the files as they are: that needs no history, so it says the same in a shallow clone and in a
dirty work tree, and changes only when a table may have become untrue. Called by `sitting.keep`, which records, and by
`tables`, which tells.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from proving_ground.bench.provenance import git

ROOT = Path(__file__).parent.parent.parent
Paths = tuple[str, ...]

LOOP: Paths = (
    "training/loop.py", "training/events.py", "training/state.py", "training/timing.py", "training/warm.py",
    "training/data/ahead.py", "training/data/mapped.py", "training/data/order.py", "training/data/shards.py",
    "training/device/fit.py", "training/device/precision.py", "training/device/recompute.py",
    "training/exchange/communication.py", "training/measuring/collectives.py", "training/models/*.py",
)  # fmt: skip
SAVING: Paths = (
    *(f"training/checkpoints/{it}.py" for it in ("checkpoint", "saving", "stores")), "training/judging/fingerprint.py",
)  # fmt: skip
LIVE: Paths = (
    *(f"training/recovery/{it}.py" for it in ("lighthouse", "lines", "live", "live_commands", "members")),
    "training/exchange/patience.py", "training/exchange/exact.py",
)  # fmt: skip
RESTART: Paths = (
    *(f"training/recovery/{it}.py" for it in ("elastic", "launch", "rendezvous")), "training/lifetime.py",
    "training/exchange/patience.py",
)  # fmt: skip
NODES: Paths = (
    "bench/company.py", "bench/drive.py", "bench/keeper.py", "bench/mechanisms.py", "bench/run.py",
    "bench/clusters/*.py", "bench/clusters/local/*.py", *(f"bench/agent/{it}.py" for it in (
        "init", "kernel", "launch", "machine", "node", "orders", "processes", "volume")),
)  # fmt: skip
ELSEWHERE = ("batch", "engine", "pods", "withheld")
"""Faults by the means of an engine: none of them can come to a job on this machine, as a test sees."""
BREAKING: Paths = (
    "bench/jobstate.py", "chaos/nemesis.py", "chaos/schedule.py", "chaos/targets.py", *(f"chaos/faults/{it}.py" for it
    in ("__init__", "checkpoints", "disks", "fault", "network", "processes", "proof", "resources")),
)  # fmt: skip
CONTRACT: Paths = ("reports/document.py", "reports/figures.py", "reports/history.py", "reports/verdicts.py")
JUDGING: Paths = (
    *CONTRACT, "bench/lineage.py", "training/judging/replay.py", "training/judging/reference.py",
    "reports/agreement.py", "reports/scaling/results.py", "reports/stability.py",
    "reports/recovery/checks.py", "reports/recovery/custody.py",
    "reports/recovery/first_steps.py", "reports/recovery/gaps.py", "reports/recovery/incidents.py",
    "reports/recovery/injection.py", "reports/recovery/jobs.py", "reports/recovery/ledger.py",
    "reports/recovery/lives.py", "reports/recovery/planned.py", "reports/recovery/proof.py",
    "reports/recovery/rates.py", "reports/recovery/results.py", "reports/recovery/sameness.py",
    "reports/recovery/steps.py", "reports/recovery/timeline.py",
)  # fmt: skip
DECIDES_NOTHING: Mapping[str, str] = {
    "reports/recovery/alerts.py": "says whether alerts came, which changes no outcome and no time",
    "reports/recovery/clocks.py": "clocks of machines elsewhere; no table is of those",
    "reports/recovery/effective.py": "effective time; its own table names it",
    "reports/recovery/figures.py": "medians for results.json; tables are made of the trials",
    "reports/recovery/healthy.py": "steps of undisturbed jobs",
    "reports/recovery/replaced.py": "moments of nodes that an engine gave again; no verdict leans on them",
}
"""What `reports.recovery.results` imports and `JUDGING` leaves out → why no outcome and no time follows from it."""
SITTINGS: Paths = ("tests/validations/chaos_runs.py", "tests/validations/sitting.py")
RECOVERIES: Paths = (*SITTINGS, "tests/validations/restart.py", "reports/independence.py")
MEASURING: Paths = (
    *CONTRACT, *(f"reports/scaling/{it}.py" for it in ("cells", "checks", "measure", "pace", "results")),
    "reports/stability.py",
)  # fmt: skip
COMPARING: Paths = ("reports/comparing/compare.py", "reports/comparing/pairing.py", "reports/intervals.py")
BROKEN_JOBS: Paths = (*LOOP, *SAVING, *NODES, *BREAKING, *JUDGING)
BENCHMARKS: Paths = (
    *LOOP,
    *NODES,
    *MEASURING,
    "bench/plan.py",
    "bench/bound.py",
    "bench/calibrate.py",
    "bench/faithful.py",
)
COMMANDS: Paths = (
    "bench/*.py", "chaos/*.py", "chaos/faults/*.py", "reports/*.py", "reports/*/*.py", "monitoring/*.py",
    "search/*.py", "loop/*.py", "infra/*.py", "training/typed.py", "training/events.py",
)  # fmt: skip

CODE: Mapping[str, Paths] = {
    "scaling": (*BENCHMARKS, "bench/suites/scaling.toml", "training/profiles/*", "tests/validations/scaling.py"),
    "matrix": (
        *BENCHMARKS, "reports/scaling/predict.py", "reports/scaling/forecast.py", "bench/suites/matrix.toml",
        "training/profiles/*", "tests/validations/matrix.py",
    ),
    "aa-in-turn": (*BENCHMARKS, *COMPARING),
    "aa": (*BENCHMARKS, *COMPARING, "tests/validations/aa.py"),
    "attribution": (*BENCHMARKS, "reports/scaling/attribution.py", "tests/validations/attribution.py"),
    "restart": (*BROKEN_JOBS, *RESTART, *RECOVERIES, "chaos/suites/kill.toml"),
    "recovery": (*BROKEN_JOBS, *LIVE, *RECOVERIES, "chaos/suites/live-kill.toml", "tests/validations/recovery.py"),
    "shootout": (
        *BROKEN_JOBS, *LIVE, *RESTART, *SITTINGS, "chaos/suites/shootout.toml", "tests/validations/shootout.py",
    ),
    "effective": (
        *BROKEN_JOBS, *LIVE, *RESTART, "reports/recovery/effective.py", "reports/recovery/forecast.py",
        "tests/validations/effective.py",
    ),
    "trainers": (
        *BROKEN_JOBS, *LIVE, *RESTART, "training/exchange/local.py", "tests/validations/trainers.py",
        "tests/validations/defect*.py",
    ),
    "tampering": (
        *JUDGING, "bench/rundir.py", "chaos/faults/*.py", "reports/recovery/*.py", "tests/validations/tamper*.py",
        "tests/validations/tampering.toml",
    ),
    "connections": (
        *BROKEN_JOBS, *LIVE, "bench/agent/*.py", "bench/clusters/remote/*.py", "chaos/suites/live-kill.toml",
        "tests/engines/machine*", "tests/engines/sshd.py", "tests/validations/connections.py",
    ),
    "suites": (
        "bench/*.py", "bench/suites/*", "chaos/*.py", "chaos/suites/*", "chaos/faults/*.py", "training/config.py",
        "training/measuring/programs.py", "training/typed.py", "tests/validations/suite*.py",
    ),
    "inputs": (
        *COMMANDS, "serving/*.py", "training/*.py", "training/*/*.py", "bench/clusters/fake.py",
        "tests/validations/inputs.py",
    ),
    "inputs-first": COMMANDS,
    "soak": (*BROKEN_JOBS, *LIVE, *RESTART, "tests/validations/soak.py"),
    "same-training": (
        *LOOP, *SAVING, "training/exchange/exact.py", "reports/recovery/ledger.py", "reports/recovery/sameness.py",
        "tests/training/ranks.py", "tests/validations/same_training.py", "tests/validations/schedules.py",
    ),
    "simulation": (
        *LIVE, *RESTART, "training/checkpoints/checkpoint.py", "bench/keeper.py", "tests/validations/live_*.py",
        "tests/validations/members.py", "tests/validations/rules_off.py", "tests/validations/runs.py",
        "tests/validations/simulation.py", "tests/validations/virtual.py",
    ),
    "checkpoints": (
        *SAVING[:3], "tests/validations/checkpoints.py",
        "tests/validations/crashes.py", "tests/validations/writers.py", "tests/validations/tracing.py",
    ),
    "checkpoint-speed": (*SAVING, "training/state.py", "tests/benchmarks/checkpoint_speed.py"),
    "step-cost": (*LOOP, *LIVE, "tests/benchmarks/step_cost.py", "tests/benchmarks/turns.py"),
    "alerts": (
        *LOOP, *NODES, *BREAKING, "monitoring/*.py", "monitoring/rules/*", "monitoring/prometheus/*",
        "reports/recovery/alerts.py", "chaos/suites/alerts.toml", "tests/validations/alerts.py",
    ),
    "healthy": (
        *LOOP, *LIVE, *NODES, "monitoring/*.py", "monitoring/rules/*", "monitoring/prometheus/*",
        "tests/validations/healthy.py",
    ),
    "gpu": (
        *LOOP, *SAVING, *LIVE, *RESTART, *BREAKING, "training/device/flops.py",
        *(f"training/measuring/{it}.py" for it in ("plain", "programs", "storing")),
        "bench/clusters/local/gpus.py", "bench/suites/gpu.toml", "chaos/suites/gpu.toml",
        "tests/validations/gpu.py",
    ),
    "searches": (
        *LOOP, "training/config.py", "training/typed.py", "search/*.py", "search/suites/*.toml", "bench/rundir.py",
        "bench/agent/kernel.py", "bench/agent/processes.py", "bench/child.py", "reports/intervals.py",
        "reports/scaling/checks.py", "tests/search/running.py", "tests/validations/searches.py",
    ),
    "clones": (
        *BENCHMARKS, *BROKEN_JOBS, *LIVE, *RESTART, "bench/further.py", "bench/suites/scaling.toml",
        "chaos/suites/default.toml", "tests/validations/clones.py",
    ),
    "pulumi": (
        "Pulumi.yaml", "Pulumi.local.yaml", "infra/__main__.py", "infra/config.py", "infra/life.py", "infra/program.py",
        "infra/stack*.py", "infra/states.py", "infra/locks.py", "infra/cluster/*.py", "monitoring/rules/*",
        "monitoring/dashboards/*", "monitoring/prometheus/*", "tests/infra/testbed/cluster.py",
        "tests/infra/testbed/images.py", "tests/infra/testbed/node.*", "tests/infra/testbed/project.py",
        "tests/validations/pulumi.py",
    ),
}  # fmt: skip
"""Name of a measured file → glob patterns of what its values depend on."""


def measured_by(document: Mapping[str, Any]) -> str:
    """The name of the measured file that a document belongs to, by the command that made it."""
    last = str(document.get("command", "")).split(" ")[-1]
    return last.rpartition(".")[2].replace("_", "-")


def fingerprint(paths: Sequence[str], root: Path = ROOT) -> str:
    """A hash of names and contents of the files that the patterns match; 16 hex digits."""
    digest = hashlib.sha256()
    for file in sorted({it for pattern in paths for it in root.glob(pattern) if it.is_file()}):
        content = code_of(file.read_text()).encode() if file.suffix == ".py" else file.read_bytes()
        digest.update(f"{file.relative_to(root)} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


@cache
def code_of(text: str) -> str:
    """A Python module without comments, docstrings and what is blank, an import in one line: what it does."""
    lines = text.splitlines()
    for it in tokenize.generate_tokens(io.StringIO(text).readline):
        if it.type == tokenize.COMMENT:
            row, column = it.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[first - 1 : last] = [""] * (last - first + 1)
        elif isinstance(node, ast.Import | ast.ImportFrom) and last > first:  # a longer name puts it on several lines
            lines[first - 1 : last] = [lines[first - 1][: node.col_offset] + ast.unparse(node), *[""] * (last - first)]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def record(document: dict[str, Any]) -> None:
    """Keep with which code something is measured, each state of it once."""
    paths = CODE.get(measured_by(document), ())
    if not paths:
        return
    known, sha256 = document.setdefault("code", []), fingerprint(paths)
    if sha256 not in [it["sha256"] for it in known]:
        commit = (git("rev-parse", "HEAD") or "")[:12]
        known.append({"commit": commit or None, "paths": list(paths), "sha256": sha256})


def has_changed(document: Mapping[str, Any], root: Path = ROOT) -> bool:
    """Whether anything in the document was measured with other code than there is now."""
    return any(fingerprint(it["paths"], root) != it["sha256"] for it in document.get("code", ()))


def words(document: Mapping[str, Any], root: Path = ROOT) -> str:
    """The line below a table; of what other code measured before, the last."""
    if not document.get("code"):
        return "Which code this was measured with was not recorded."
    since = "Its code has changed since." if has_changed(document, root) else "Its code is still the same."
    before = list(document.get("earlier", ()))[-1:]
    return " ".join([f"{at(document)}. {since}", *(f"Before it: {it}" for it in before)])


def at(document: Mapping[str, Any]) -> str:
    """`Measured at a1b2c3d4e5f6`."""
    code = document["code"]
    first, last = (it["commit"] or "no commit" for it in (code[0], code[-1]))
    more = "" if len(code) == 1 else f" to {last}, with {len(code)} states of its code"
    return f"Measured at {first}{more}"


def commits_since(document: Mapping[str, Any]) -> str:
    """How many commits have changed the code since the first measurement, for the terminal."""
    code = document.get("code", ())
    if not code or not has_changed(document):
        return words(document)
    paths = sorted({f":(glob){path}" for it in code for path in it["paths"]})
    count = git("rev-list", "--count", f"{code[0]['commit']}..HEAD", "--", *paths)
    if count is None:
        return f"{words(document)} Cannot tell how many commits: this clone has no history."
    return f"{words(document)} Commits that changed it: {count}."
