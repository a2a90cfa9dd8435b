"""The job for Azure ML: what the SDK's own classes make of it, and its command under the platform's variables.

No job was ever sent to Azure from here. What Azure would refuse beyond its SDK's own checks is not known.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving_ground.bench.rundir import read_events
from proving_ground.infra import commands, mljob, outputs
from proving_ground.infra.config import MlCompute
from proving_ground.infra.reading import ConfigError
from proving_ground.serving import environment
from tests.training.ranks import free_port

pytestmark = pytest.mark.timeout(600)  # the SDK is installed once, into an environment of its own
AZURE = outputs.AzureOutputs("sub", "rg", "acr", "https://blob", "checkpoints", "workspace", "cluster")
COMPUTE = MlCompute("Standard_NC96ads_A100_v4", 8)
TRAINING = ["steps=4", "global_batch=8", "checkpoint_every=2"]
READ = """import json, sys, warnings
warnings.filterwarnings("ignore")
from azure.ai.ml import load_job
made = load_job(sys.argv[1])
sent = made._to_job()._to_rest_object().as_dict()["properties"]  # the SDK has no public way to it
print(json.dumps(sent, default=lambda it: it.as_dict() if hasattr(it, "as_dict") else str(it)))
"""


def job(**changed: Any) -> dict[str, Any]:
    return mljob.body(AZURE, COMPUTE, "acr.example/trainer:1", TRAINING, **{"nodes": 2, **changed})


@pytest.fixture(scope="module")
def sdk() -> Path:
    """The Python that has Azure ML's SDK."""
    return environment.ready(print, Path(__file__).with_name("azureml.txt")) / "python"


def sent(sdk: Path, made: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """What the SDK would send of a body."""
    (folder / "job.yaml").write_text(yaml.safe_dump(made))
    command = [str(sdk), "-c", READ, str(folder / "job.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_sdk_makes_of_it_what_was_meant(sdk: Path, tmp_path: Path) -> None:
    made = job(hours=2)
    done = sent(sdk, made, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["jobType"], found["command"]) == ("Command", made["command"])
    assert found["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 4}
    assert (found["resources"]["instanceCount"], found["resources"]["shmSize"]) == (2, "8g")
    assert found["limits"] == {"jobLimitsType": "Command", "timeout": "PT2H"}
    assert found["computeId"] == "cluster"
    assert {(name, it["jobOutputType"], it["mode"]) for name, it in found["outputs"].items() if name != "default"} == {
        (name, "uri_folder", "ReadWriteMount") for name in ("events", "checkpoints")
    }


@pytest.mark.parametrize(
    ("key", "value"), [("distribution", {"type": "torchrun"}), ("resources", {"instance_count": "two"}), ("nodes", 2)]
)
def test_the_sdk_refuses_what_is_no_job(sdk: Path, tmp_path: Path, key: str, value: object) -> None:
    done = sent(sdk, {**copy.deepcopy(job()), key: value}, tmp_path)
    assert done.returncode
    assert key in done.stderr


def test_each_rank_trains_under_the_variables_of_the_platform_and_leaves_its_outputs(tmp_path: Path) -> None:
    """Two nodes of one process, as Azure ML starts them: by a shell, with the outputs' folders put in."""
    made = job(ranks=1)
    folders = {name: tmp_path / name for name in made["outputs"]}
    command = made["command"]
    for name, folder in folders.items():
        folder.mkdir()
        command = command.replace(f"${{{{outputs.{name}}}}}", str(folder))
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    usual = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    usual["PATH"] = f"{Path(sys.executable).parent}:{usual['PATH']}"
    ranks = [
        subprocess.Popen(
            ["bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**usual, **meeting, "RANK": str(it), "NODE_RANK": str(it), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        )
        for it in range(2)
    ]  # fmt: skip
    for it in ranks:
        out, _ = it.communicate()
        assert it.returncode == 0, out
    steps = {it.stem: [event["step"] for event in read_events(it) if event["event"] == "step"]
             for it in sorted(folders["events"].iterdir())}  # fmt: skip
    assert steps == {"0": [1, 2, 3, 4], "1": [1, 2, 3, 4]}
    assert list(folders["checkpoints"].iterdir())


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"nodes": 9}, "--nodes 9: azure.ml_compute has 1 to 8"), ({"nodes": 0}, "1 to 8"),
     ({"ranks": 5}, "--ranks 5: Standard_NC96ads_A100_v4 has 1 to 4 GPUs")],
)  # fmt: skip
def test_what_the_compute_does_not_have_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        job(**changed)


def test_the_command_writes_a_body_and_says_how_to_send_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    exported = type("Exported", (), {"azure": AZURE})
    monkeypatch.setattr(outputs, "load", lambda _: exported)
    settings = [word for it in TRAINING for word in ("--set", it)]
    file = tmp_path / "one.yaml"
    words = ["job", "prod", "--nodes", "2", "--image", "acr.example/trainer:1", "--file", str(file), *settings]
    assert commands.run(words) == 0
    assert yaml.safe_load(file.read_text()) == job()
    create, _ = capsys.readouterr().out.splitlines()
    assert create == f"az ml job create --file {file} --resource-group rg --workspace-name workspace"


def test_a_stack_without_azure_ml_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outputs, "load", lambda _: type("Exported", (), {"azure": None}))
    assert commands.run(["job", "dev"]) == 2
    assert capsys.readouterr().err == "infra: job: stack dev has no Azure ML (azure.ml_compute)\n"


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--set model: must be KEY=VALUE"):
        mljob.body(AZURE, COMPUTE, "one", ["steps=4", "model"], nodes=1)
