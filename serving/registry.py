"""Keeps models in MLflow's registry, with lineage as tags, and gets them from there. Called by `serving.commands`.

A model is registered once: the same checkpoint under the same name is the version that it was.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from monitoring.mlflow_store import (
    PARAMETER_MAX,
    RUN_TAG,
    TRIAL_TAG,
    experiment,
    shown,
    told,
)  # before mlflow: sets its patience
from monitoring.tracking import AwayError, TrackingError, allowed

# isort: split
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from serving import model
from serving.mistakes import FailedError, ServingError
from serving.source import Source

SHA_TAG, FOLDER = "proving_ground.checkpoint_sha256", "model"
REFUSED = re.compile(r"[/:.%\"'\s]+")
"""What a registered model's name may not have, with what asks for trouble in its address."""
REGISTERED = re.compile(r"(?:models:/)?([^/:]+)(?:/(\d+))?")
Say = Callable[[str], None]


@contextmanager
def registry(uri: str) -> Iterator[MlflowClient]:
    """MLflow's client; its errors are one line with the address.

    Raises:
        ServingError: a kind of address that needs what is not installed.
        FailedError: it is away, or refuses.
    """
    try:
        with told(uri):
            yield MlflowClient(uri)
    except ImportError as error:
        raise ServingError(f"{shown(uri)}: needs what is not installed here: {error}") from None
    except (AwayError, TrackingError) as error:
        raise FailedError(str(error)) from None


def named(name: str, say: Say) -> str:
    """The name that MLflow takes; that it is another one is said.

    Raises:
        ServingError: nothing is left of it.
    """
    found = REFUSED.sub("-", name).strip("-")
    if not found:
        raise ServingError(f"--name {name!r}: must have a letter or digit")
    if found != name:
        say(f"MLflow refuses the name {name!r}: the model is called {found!r} there")
    return found


def metric_names(metrics: Mapping[str, float], say: Say) -> dict[str, float]:
    """The metrics under names that MLflow takes; each that is another one is said, and none is lost.

    Raises:
        FailedError: two would have the same name.
    """
    found: dict[str, float] = {}
    for name, value in metrics.items():
        taken = allowed(name)
        if taken in found:
            raise FailedError(f"metrics {name!r} and another would both be called {taken!r} in MLflow")
        if taken != name:
            say(f"MLflow refuses the name {name!r}: the metric is called {taken!r} there")
        found[taken] = value
    return found


def register(source: Source, name: str, uri: str, say: Say) -> tuple[str, int, bool]:
    """Register a training's model: name, version, and whether that is new.

    Raises:
        ServingError, FailedError: one line; nothing is left on this machine, and no version in the registry.
    """
    name, metrics = named(name, say), metric_names(source.metrics, say)
    with registry(uri) as client:
        if (version := version_of(client, name, source.lineage.checkpoint_sha256)) is not None:
            return name, version, False
    with tempfile.TemporaryDirectory(prefix="proving-ground-model-") as folder:
        made = Path(folder) / FOLDER
        model.save(source, made)
        with registry(uri) as client:
            return name, keep(client, source, name, metrics, made), True


def version_of(client: MlflowClient, name: str, sha256: str) -> int | None:
    """The version that a checkpoint is already registered as."""
    every = client.search_model_versions(f"name = '{name}'")
    return next((int(it.version) for it in every if it.tags.get(SHA_TAG) == sha256), None)


def keep(client: MlflowClient, source: Source, name: str, metrics: Mapping[str, float], made: Path) -> int:
    """A run with the model as its artefact, and the version that leads to it; a run that fails says so."""
    lineage = source.lineage.flat()
    tags = {f"proving_ground.{key}": value for key, value in lineage.items()}
    suite = f"/{source.lineage.suite}" if source.lineage.run_id != "unknown" else ""
    number = experiment(client, f"proving-ground{suite}")
    own = {**tags, **parent(client, number, source), "mlflow.runName": f"register {name}"}
    run = client.create_run(number, tags=own).info
    try:
        parameters = [Param(key, value[:PARAMETER_MAX]) for key, value in lineage.items()]
        points = [Metric(key, value, run.start_time, source.lineage.step) for key, value in metrics.items()]
        client.log_batch(run.run_id, metrics=points, params=parameters)
        client.log_artifacts(run.run_id, str(made), FOLDER)
        version = versioned(client, name, run.run_id, tags)
    except BaseException:
        client.set_terminated(run.run_id, "FAILED")
        raise
    client.set_terminated(run.run_id, "FINISHED")
    return version


def parent(client: MlflowClient, number: str, source: Source) -> dict[str, str]:
    """The tag that puts the run below the one that `python -m monitoring track` made of the training, if it did."""
    wanted = f"tags.`{RUN_TAG}` = '{source.lineage.run_id}' and tags.`{TRIAL_TAG}` = '{source.lineage.trial}'"
    found = client.search_runs([number], wanted, max_results=1)
    return {"mlflow.parentRunId": found[0].info.run_id} if found else {}


def versioned(client: MlflowClient, name: str, run_id: str, tags: Mapping[str, str]) -> int:
    """A new version of a registered model, which is made if there is none."""
    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name)
    where = f"{client.get_run(run_id).info.artifact_uri}/{FOLDER}"
    return int(client.create_model_version(name, where, run_id, tags=dict(tags)).version)


@contextmanager
def fetched(what: str, uri: str) -> Iterator[Path]:
    """A copy of a registered model, gone afterwards.

    Raises:
        ServingError: neither a folder nor a registered model.
        FailedError: the registry is away.
    """
    match = REGISTERED.fullmatch(what)
    if match is None:
        raise ServingError(f"{what}: must be a model's folder, NAME, NAME/VERSION or models:/NAME/VERSION")
    with tempfile.TemporaryDirectory(prefix="proving-ground-model-") as folder:
        with registry(uri) as client:
            where = address(client, match[1], match[2], uri)
            got = mlflow.artifacts.download_artifacts(where, dst_path=folder, tracking_uri=uri)
        yield Path(got)


def address(client: MlflowClient, name: str, version: str | None, uri: str) -> str:
    """Where a version's files lie; without a version, the newest's.

    Raises:
        ServingError: there is no such model or version.
    """
    every = {int(it.version): it for it in client.search_model_versions(f"name = '{REFUSED.sub('-', name)}'")}
    if not every:
        raise ServingError(f"{name}: neither a folder nor a model in {shown(uri)}")
    if version is not None and int(version) not in every:
        raise ServingError(f"{name}: has no version {version}; it has {', '.join(map(str, sorted(every)))}")
    return str(client.get_model_version_download_uri(name, str(version or max(every))))
