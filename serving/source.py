"""Where a model comes from: a checkpoint, and the sealed run that it was made in. Called by `serving.commands`.

A checkpoint is intact by its own hashes (`training.checkpoints`). It belongs to a run where a sealed event of that run
names the same hash: lineage is proven, or it is said that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.rundir import Record, RunDir
from proving_ground.serving.mistakes import FailedError, ServingError
from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.stores import MANIFEST, Folder

PER_RANK = ("step_s", "data_s", "comm_s", "loss")
"""Fields of a rank's `step` events that become metrics: the median of its steps, of the loss the last one."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Lineage:
    """Where a model was trained; what nothing recorded says is `unknown`."""

    checkpoint: str  # its name
    checkpoint_sha256: str
    step: int
    model: str
    world_size: int
    global_batch: int
    precision: str
    seed: int
    torch: str
    run_id: str = UNKNOWN
    suite: str = UNKNOWN
    trial: str = UNKNOWN
    complete: str = UNKNOWN  # whether all of the run ended well, by its seal
    seal_sha256: str = UNKNOWN  # of seal.json, which has the hash of every file of the run
    commit: str = UNKNOWN
    dirty: str = UNKNOWN
    nodes: str = UNKNOWN
    mechanism: str = UNKNOWN
    cluster: str = UNKNOWN
    label: str = UNKNOWN

    def flat(self) -> dict[str, str]:
        """As tags."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Source:
    """A verified checkpoint, where it comes from, and what was measured on the way."""

    parts: Mapping[str, Any]
    lineage: Lineage
    metrics: Mapping[str, float] = field(default_factory=dict)
    passed_over: Sequence[str] = ()  # newer ones that are damaged, and why


def find(what: str, runs: Path, of_run: str = "", *, incomplete: bool = False) -> Source:
    """The training that a person means: a checkpoint, a folder of checkpoints, or a recorded run.

    A run that failed or was cut off is taken where `incomplete` asks for it.

    Raises:
        ServingError: it is none of these, or the run is not the checkpoint's.
        FailedError: no checkpoint is intact, or the run differs from its seal.
    """
    path = Path(what)
    if (path / MANIFEST).is_file() or (path.is_dir() and checkpoint.newest_first(Folder(path))):
        loaded, passed_over = load(path)
        run = opened(runs, of_run, incomplete=incomplete) if of_run else None
        return described(loaded, run, passed_over)
    run = opened(runs, what, incomplete=incomplete)
    loaded, passed_over = load(newest_of(run))
    return described(loaded, run, passed_over)


def opened(runs: Path, name: str, *, incomplete: bool) -> RunDir:
    """A recorded run that is as it was sealed.

    Raises:
        ServingError: there is none, it was never sealed, or it is incomplete and that was not asked for.
        FailedError: something was changed since.
    """
    try:
        run = rundir.find(runs, name)
        differs = rundir.verify(run)
    except rundir.RunDirError as error:
        problem = f"{name}: is no checkpoint either" if Path(name).exists() else "nor is it a checkpoint"
        raise ServingError(f"{error}; {problem}") from None
    if differs:
        raise FailedError(f"{run.path}: is not as it was sealed: {'; '.join(differs[:3])}")
    if not incomplete and not run.read("seal")["complete"]:
        raise ServingError(f"{run.path}: failed or was cut off, by its seal; --incomplete takes it as it is")
    return run


def load(path: Path) -> tuple[checkpoint.Loaded, list[str]]:
    """A checkpoint, or the newest intact one in a folder of them; damaged ones are left where they are, and named.

    Raises:
        FailedError: none is intact.
    """
    store, names = (Folder(path.resolve().parent), [path.resolve().name]) if (path / MANIFEST).is_file() else (
        Folder(path), checkpoint.newest_first(Folder(path)),
    )  # fmt: skip
    damaged: list[str] = []
    for name in names:
        try:
            return put_together(checkpoint.load(store, name)), damaged
        except checkpoint.DamagedError as error:
            damaged.append(str(error))
        except checkpoint.CheckpointError as error:
            raise FailedError(str(error)) from None
    raise FailedError(f"no checkpoint is intact: {'; '.join(damaged[:3])}")


def put_together(loaded: checkpoint.Loaded) -> checkpoint.Loaded:
    """A checkpoint that every rank wrote its part of, as one of a whole model; any other as it is."""
    shards = [state for name, state in sorted(loaded.parts.items()) if name.startswith("shard-")]
    if not shards:
        return loaded
    from proving_ground.training.checkpoints import sharded_saving  # noqa: PLC0415 - only for a model that was cut over ranks

    state = sharded_saving.assembled(shards, (0, 1), lambda rows, _: rows)
    return replace(loaded, parts={"training": loaded.parts["training"], **state})


def saved_in(run: RunDir) -> list[Record]:
    """The `checkpoint` events of a sealed run."""
    try:
        return [it for it in rundir.read_history(run) if it["event"] == "checkpoint" and it.get("sha256")]
    except rundir.RunDirError as error:
        raise ServingError(str(error)) from None


def newest_of(run: RunDir) -> Path:
    """The newest checkpoint that a run has made and that is still there.

    Raises:
        ServingError: it has made none, or all are gone.
    """
    saved = [Path(str(it["path"])) for it in saved_in(run)]
    if not saved:
        raise ServingError(f"{run.path}: has made no checkpoint: its suite needs training.checkpoint_every")
    found = next((it for it in reversed(saved) if (it / MANIFEST).is_file()), None)
    if found is None and "://" in (last := str(saved_in(run)[-1]["path"])):
        raise ServingError(f"{last}: object stores are not read here: copy the checkpoint, and name its folder")
    if found is None:
        raise ServingError(
            f"{run.path}: its {len(saved)} checkpoints are gone, the last was {saved[-1]}; a suite keeps them by "
            "training.checkpoint_dir"
        )
    return found


def described(loaded: checkpoint.Loaded, run: RunDir | None, passed_over: Sequence[str]) -> Source:
    """A checkpoint with all that is known of it."""
    training = loaded.parts["training"]
    config = training["config"]
    own = Lineage(
        Path(loaded.path).name, loaded.sha256, training["step"], config["model"], len(training["random"]),
        config["global_batch"], config["precision"], config["seed"], written_by(Path(loaded.path)),
    )  # fmt: skip
    metrics = {f"eval/{name}": float(it) for name, it in training["metrics"].items() if isinstance(it, int | float)}
    if run is None:
        return Source(loaded.parts, own, metrics, passed_over)
    event = made_by(run, loaded)
    trial = str(event["trial"])
    lineage = Lineage(**asdict(own) | of_run(run, trial))
    return Source(loaded.parts, lineage, metrics | of_ranks(run, trial, own.step), passed_over)


def written_by(path: Path) -> str:
    """The torch that has written a checkpoint."""
    about, _ = checkpoint.unseal((path / MANIFEST).read_bytes(), path.name)
    return str(about["torch"])


def made_by(run: RunDir, loaded: checkpoint.Loaded) -> Record:
    """The sealed event that tells of this very checkpoint.

    Raises:
        ServingError: the run has not made it.
    """
    for event in saved_in(run):
        if event["sha256"] == loaded.sha256:
            return event
    raise ServingError(f"{loaded.path}: {run.path} has not made it: no sealed event has its hash")


def of_run(run: RunDir, trial: str) -> dict[str, str]:
    """What a sealed run says of one of its trials."""
    provenance, plan = run.read("provenance"), run.read("plan")
    row: dict[str, Any] = next((it for it in plan["trials"] if it["id"] == trial), {})
    git = provenance.get("git", {})
    return {
        "run_id": run.run_id, "suite": run.suite, "trial": trial, "seal_sha256": rundir.sha256(run.path / "seal.json"),
        "complete": str(run.read("seal")["complete"]).lower(),
        "commit": str(git.get("commit") or UNKNOWN), "dirty": str(git.get("dirty", UNKNOWN)),
        "nodes": str(row.get("nodes", UNKNOWN)), "mechanism": str(row.get("mechanism") or "none"),
        "cluster": str(plan.get("cluster", {}).get("name", UNKNOWN)), "label": str(row.get("label", UNKNOWN)),
    }  # fmt: skip


def of_ranks(run: RunDir, trial: str, last_step: int) -> dict[str, float]:
    """Metrics of every rank of a trial, under its place: `rank/n1.0/step_s`; and its last evaluation: `eval/loss`."""
    steps: dict[str, list[Record]] = {}
    found = {}
    for event in rundir.read_history(run):
        if event.get("trial") != trial or event.get("step", last_step + 1) > last_step:
            continue
        if event["event"] == "step":
            steps.setdefault(str(event["source"]), []).append(event)
        elif event["event"] == "eval":
            found[f"eval/{event['metric']}"] = float(event["value"])
    for source, records in sorted(steps.items()):
        found[f"rank/{source}/steps"] = float(len(records))
        for name in PER_RANK:
            values = [float(it[name]) for it in records if isinstance(it.get(name), int | float)]
            if values:
                found[f"rank/{source}/{name}"] = values[-1] if name == "loss" else median(values)
    return found
