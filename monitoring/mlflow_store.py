"""Keeps what is tracked in MLflow: a file here, a server, or Azure ML. Called by `monitoring.readers`.

An experiment is a suite, a run in it the harness' run, and below that one for each trial. A run is found again by its
tags, and MLflow keeps one of two equal values, so tracking the same run again adds what is missing and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # who waits, and how long, is decided in `tracking`
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from proving_ground.bench.redact import redacted
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.monitoring.tracking import Action, AwayError, Begin, End, Points, TrackingError

logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it tells of every table that it makes

RUN_TAG, TRIAL_TAG = "proving_ground.run", "proving_ground.trial"
LASTING = {
    "BAD_REQUEST", "INVALID_PARAMETER_VALUE", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_DOES_NOT_EXIST",
    "ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "INVALID_STATE",
}  # fmt: skip
"""MLflow's codes of errors that trying again does not cure."""
ARTEFACTS = (
    "report.html", "results.json", "spec.json", "plan.json", "search.json", "provenance.json", "prediction.json",
    "seal.json",
)  # fmt: skip
PARAMETER_MAX = 6000  # characters


def local_uri(runs: Path) -> str:
    """The SQLite file beside the runs, where nothing else is asked for."""
    return f"sqlite:///{runs.resolve() / 'mlflow.db'}"


@contextmanager
def told(uri: str) -> Iterator[None]:
    """MLflow's errors as ours; `serving.registry` has them so too.

    Raises:
        AwayError: the same may succeed later.
        TrackingError: it will not.
    """
    where = redacted(uri)
    try:
        yield
    except MlflowException as error:
        words = redacted(str(error).splitlines()[0])[:200]  # cut last: half an address shows its password
        if error.error_code in LASTING:
            raise TrackingError(f"{where}: {words}") from None
        raise AwayError(f"{where} does not answer ({error.error_code})") from None
    except (requests.RequestException, ConnectionError, TimeoutError) as error:
        raise AwayError(f"{where} does not answer ({type(error).__name__})") from None


def experiment(client: MlflowClient, name: str) -> str:
    """The id of an experiment, made if there is none; artefacts of a local one lie beside its file."""
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    uri = str(client.tracking_uri)
    local = uri.startswith("sqlite:///")
    folder = Path(uri.removeprefix("sqlite:///")).parent / "mlflow-artefacts" if local else None
    return str(client.create_experiment(name, artifact_location=folder.as_uri() if folder else None))


class MlflowStore:
    """One run, or one search, in MLflow."""

    def __init__(self, run: RunDir, uri: str, plan: Mapping[str, Any], *, model: bool = False) -> None:
        self._run, self._uri, self._plan, self._model = run, uri, plan, model
        self._client: MlflowClient | None = None
        self._ids: dict[str, str] = {}  # trial → MLflow's run; "" the harness' run
        self._experiment = ""

    def do(self, action: Action) -> None:
        """Keep one: see `tracking.Store`."""
        with told(self._uri):
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Points):
                self._points(action)
            else:
                self._end(action)

    def finish(self) -> None:
        """The run is over: report, results, seal, packages."""
        with told(self._uri):
            whole, client = self._whole(), self._opened()
            for name in ARTEFACTS:
                if (self._run.path / name).exists():
                    client.log_artifact(whole, str(self._run.path / name))
            packages = self._run.read("provenance").get("packages", {})
            self._text(whole, "requirements.txt", "".join(f"{name}=={it}\n" for name, it in packages.items()))
            client.set_terminated(whole, "FINISHED" if self._complete() else "FAILED")

    def _opened(self) -> MlflowClient:
        """The client; making one of a local file makes its tables."""
        if self._client is None:
            self._client = MlflowClient(self._uri)
        return self._client

    def _whole(self) -> str:
        """MLflow's run of the harness' run, made if there is none."""
        if "" not in self._ids:
            made = self._run.read("provenance")
            git = made.get("git", {})
            tags = {
                "mlflow.source.git.commit": git.get("commit") or "unknown",
                "mlflow.source.name": " ".join(made.get("argv", ())),
                "proving_ground.dirty": str(git.get("dirty")), "proving_ground.suite": self._run.suite,
                "proving_ground.cluster": self._plan.get("cluster", {}).get("name", "unknown"),
                "proving_ground.host": json.dumps(made.get("host", {})),
            }  # fmt: skip
            self._ids[""] = self._found("", self._run.run_id, made["wall_s"], tags)
        return self._ids[""]

    def _found(self, trial: str, name: str, wall_s: float, tags: dict[str, str]) -> str:
        """The id of the MLflow run with our tags, made if there is none."""
        client = self._opened()
        self._experiment = self._experiment or experiment(client, f"proving-ground/{self._run.suite}")
        wanted = f"tags.`{RUN_TAG}` = '{self._run.run_id}' and tags.`{TRIAL_TAG}` = '{trial or '-'}'"
        found: list[Run] = list(client.search_runs([self._experiment], wanted, max_results=1))
        if found:
            return str(found[0].info.run_id)
        own = {**tags, RUN_TAG: self._run.run_id, TRIAL_TAG: trial or "-", "mlflow.runName": name}
        made = client.create_run(self._experiment, start_time=round(1000 * wall_s), tags=own)
        return str(made.info.run_id)

    def _begin(self, action: Begin) -> None:
        if not action.trial:
            self._parameters(self._whole(), action)
            return
        trial: dict[str, Any] = next((it for it in self._plan.get("trials", ()) if it["id"] == action.trial), {})
        label = str(trial.get("label", self._plan.get("label", "unknown")))
        tags = {"mlflow.parentRunId": self._whole(), "proving_ground.label": label}
        name = f"{self._run.run_id} {action.trial}"
        own = self._ids[action.trial] = self._found(action.trial, name, action.wall_s, tags)
        self._parameters(own, action)

    def _parameters(self, own: str, action: Begin) -> None:
        parameters = [Param(key, str(value)[:PARAMETER_MAX]) for key, value in action.parameters.items()]
        self._opened().log_batch(own, params=parameters)

    def _points(self, action: Points) -> None:
        metrics = [Metric(it.name, it.value, round(1000 * it.wall_s), it.step) for it in action.points]
        self._opened().log_batch(self._ids[action.trial] if action.trial else self._whole(), metrics=metrics)

    def _end(self, action: End) -> None:
        own, client = self._ids[action.trial], self._opened()
        if action.checkpoints:
            self._text(own, "checkpoints.json", json.dumps(action.checkpoints, indent=1) + "\n")
            self._newest(own, Path(action.checkpoints[-1]["path"]))
        ended = {"proving_ground.ok": str(action.ok).lower(), "proving_ground.end": action.why}
        client.log_batch(own, tags=[RunTag(key, value) for key, value in ended.items() if value])
        client.set_terminated(own, "FINISHED" if action.ok else "FAILED", round(1000 * action.wall_s))

    def _newest(self, own: str, folder: Path) -> None:
        """The newest checkpoint's manifest, and all of it where that is asked for; as long as it is there."""
        if self._model and folder.is_dir():
            self._opened().log_artifacts(own, str(folder), "model")
        elif (manifest := folder / "manifest.json").is_file():
            self._opened().log_artifact(own, str(manifest), "checkpoint")

    def _text(self, own: str, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_text(text)
            self._opened().log_artifact(own, str(file))

    def _complete(self) -> bool:
        try:
            seal: dict[str, Any] = self._run.read("seal")
        except RunDirError:
            return False
        return bool(seal["complete"])
