"""Keeps models in MLflow's registry, with lineage as tags, and gets them from there. Called by `serving.commands`.

A model is registered once: the same checkpoint under the same name is the version that it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from proving_ground.bench.redact import redacted
from proving_ground.monitoring.mlflow_store import (
    PARAMETER_MAX,
    RUN_TAG,
    TRIAL_TAG,
    experiment,
    told,
)  # before mlflow: sets its patience
from proving_ground.monitoring.tracking import AwayError, TrackingError, allowed

# isort: split
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from proving_ground.serving import left, model
from proving_ground.serving.mistakes import FailedError, ServingError
from proving_ground.serving.source import UNKNOWN, Source

PREFIX, FOLDER = "proving_ground.", "model"
SHA_TAG, RUN_ID_TAG = f"{PREFIX}checkpoint_sha256", f"{PREFIX}run_id"
REFUSED = re.compile(r"[/:.%\"'\s]+")
"""What a registered model's name may not have, with what asks for trouble in its address."""
REGISTERED = re.compile(r"(?:models:/)?([^/:@]+)(/\d+|/latest|@[^/:@]+)?")
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
        raise ServingError(f"{redacted(uri)}: needs what is not installed here: {error}") from None
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


@dataclass(frozen=True)
class Registered:
    """A version in the registry, with the lineage that it has there."""

    name: str
    version: int
    new: bool
    tags: Mapping[str, str]


def register(source: Source, name: str, uri: str, say: Say) -> Registered:
    """Register a training's model, once; lineage that an older registration had not is added.

    Raises:
        ServingError, FailedError: one line; nothing is left on this machine, and no version in the registry.
    """
    name, metrics = named(name, say), metric_names(source.metrics, say)
    with registry(uri) as client:
        if found := versions_of(client, name, source.lineage.checkpoint_sha256):
            return Registered(name, int(found[0].version), new=False, tags=proven(client, found[0], source, say))
    with left.folder("model") as folder:
        made = folder / FOLDER
        model.save(source, made)
        with registry(uri) as client:
            return keep(client, source, name, metrics, made)


def versions_of(client: MlflowClient, name: str, sha256: str) -> list[ModelVersion]:
    """The versions that a checkpoint is registered as, oldest first."""
    every = client.search_model_versions(f"name = '{name}'")
    return sorted((it for it in every if it.tags.get(SHA_TAG) == sha256), key=lambda it: int(it.version))


def proven(client: MlflowClient, found: ModelVersion, source: Source, say: Say) -> Mapping[str, str]:
    """The tags of a version; of one without lineage, with what is proven now."""
    if found.tags.get(RUN_ID_TAG, UNKNOWN) != UNKNOWN or source.lineage.run_id == UNKNOWN:
        return dict(found.tags)
    tags = tags_of(source)
    for key, value in tags.items():
        client.set_model_version_tag(found.name, found.version, key, value)
    say(f"{found.name}/{found.version} was registered without lineage; it is proven now, and its tags say so")
    return tags


def tags_of(source: Source) -> dict[str, str]:
    """Lineage as tags."""
    return {f"{PREFIX}{key}": value for key, value in source.lineage.flat().items()}


def keep(client: MlflowClient, source: Source, name: str, metrics: Mapping[str, float], made: Path) -> Registered:
    """A run with the model as its artefact, and the version that leads to it; a run that fails says so."""
    lineage, tags = source.lineage.flat(), tags_of(source)
    suite = f"/{source.lineage.suite}" if source.lineage.run_id != UNKNOWN else ""
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
    return the_first(client, Registered(name, version, new=True, tags=tags), run.run_id)


def the_first(client: MlflowClient, own: Registered, run_id: str) -> Registered:
    """The oldest version of the same checkpoint: where two register at a time, the younger one goes."""
    oldest, *_ = versions_of(client, own.name, own.tags[SHA_TAG])
    if int(oldest.version) == own.version:
        return own
    client.delete_model_version(own.name, str(own.version))
    client.delete_run(run_id)
    return Registered(own.name, int(oldest.version), new=False, tags=dict(oldest.tags))


def parent(client: MlflowClient, number: str, source: Source) -> dict[str, str]:
    """The tag that puts the run below the one that `pg monitoring track` made of the training, if it did."""
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
def fetched(what: str, uri: str) -> Iterator[tuple[Path, str]]:
    """A copy of a registered model, gone afterwards, and which version it is: NAME/VERSION.

    Raises:
        ServingError: neither a folder nor a registered model.
        FailedError: the registry is away.
    """
    match = REGISTERED.fullmatch(what)
    if match is None:
        raise ServingError(f"{what}: must be a model's folder, NAME, NAME/VERSION, NAME@ALIAS or models:/NAME/VERSION")
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not file.exists():  # MLflow would make it
        raise ServingError(f"{what}: neither a folder nor a model in {redacted(uri)}, which does not exist")
    with left.folder("model") as folder:
        with registry(uri) as client:
            found = version_meant(client, match[1], match[2], uri)
            where = str(client.get_model_version_download_uri(found.name, found.version))
            got = mlflow.artifacts.download_artifacts(where, dst_path=str(folder), tracking_uri=uri)
        yield Path(got), f"{found.name}/{found.version}"


def version_meant(client: MlflowClient, name: str, asked: str | None, uri: str) -> ModelVersion:
    """A version by its number, or by an alias; without either, or as `latest`, the newest.

    Raises:
        ServingError: there is no such model, version or alias.
    """
    every = {int(it.version): it for it in client.search_model_versions(f"name = '{REFUSED.sub('-', name)}'")}
    if not every:
        raise ServingError(f"{name}: neither a folder nor a model in {redacted(uri)}")
    if asked in (None, "/latest"):
        return every[max(every)]
    if asked.startswith("@"):
        return of_alias(client, every[max(every)].name, asked[1:])
    if int(asked[1:]) not in every:
        raise ServingError(f"{name}: has no version {asked[1:]}; it has {', '.join(map(str, sorted(every)))}")
    return every[int(asked[1:])]


def of_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion:
    """The version that has an alias.

    Raises:
        ServingError: none has.
    """
    known: Mapping[str, str] = client.get_registered_model(name).aliases
    if alias not in known:
        raise ServingError(f"{name}: has no alias {alias!r}; it has {', '.join(sorted(known)) or 'none'}")
    return client.get_model_version(name, known[alias])
