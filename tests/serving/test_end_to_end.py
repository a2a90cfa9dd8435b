"""Register, load where this project is not, serve in both engines, check, put load on: all of it real."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import HERE, free_port
from proving_ground.serving import check, cli, environment, figures, model, registry, score, servers, source
from proving_ground.serving.mistakes import FailedError, ServingError
from tests.serving.conftest import ROOT, Trained

pytestmark = pytest.mark.timeout(600)  # torch and MLflow in many processes, on a busy machine

ALONE = """\
import json, sys
import mlflow.pyfunc
found = mlflow.pyfunc.load_model(sys.argv[1])
example = json.load(open(sys.argv[1] + "/example.json"))["inputs"]
import numpy
answer = found.predict({name: numpy.asarray(it, dtype="float32") for name, it in example.items()})
ours = [name for name in sys.modules if name.partition(".")[0] == "proving_ground"]
print(json.dumps({"output": answer["output"].tolist(), "ours": ours, "path": sys.path}))
"""


def answer_of(folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    example = json.loads((folder / "example.json").read_text())["inputs"]
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = score.Scorer(check.data_of(folder)).answer(example)[
        "output"
    ]
    return found


def test_the_model_answers_as_the_trained_network(trained: Trained) -> None:
    found = source.find("latest", trained.runs)
    task, network = model.rebuilt(found)
    with torch.no_grad():
        wanted = network(task.batch("test", np.arange(model.ROWS)).inputs).numpy()
    assert model.difference(answer_of(trained.model), wanted) <= model.TOLERANCE


def test_it_loads_where_this_project_is_not(trained: Trained, tmp_path: Path) -> None:
    at = environment.ready(print)
    words = [str(at / "python"), "-I", "-c", ALONE, str(trained.model)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=servers.variables(at))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ours"] == []
    assert not [it for it in found["path"] if it.startswith(str(ROOT))]
    assert model.difference(found["output"], answer_of(trained.model)) <= model.TOLERANCE


@pytest.fixture(scope="module")
def both(trained: Trained) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(servers.running(trained.model, it, 0, 1, print)).url for it in servers.ENGINES]
    assert left(trained.model) == []


def test_both_engines_answer_as_the_model_does(
    trained: Trained, both: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", str(trained.model), "--endpoint", both[0], "--endpoint", both[1]]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.count("same answers") == 2


def other(trained: Trained, folder: Path, change: str) -> Path:
    """A model that is another one: of other weights, of another shape, or with a column more."""
    found = source.find("latest", trained.runs)
    if change == "weights":
        found.parts["model"][
            "0.weight" if "0.weight" in found.parts["model"] else next(iter(found.parts["model"]))
        ].add_(1)
        model.save(found, folder)
        return folder
    shutil.copytree(trained.model, folder)
    data = check.data_of(folder)
    schema, example = json.loads((data / "schema.json").read_text()), json.loads((data / "example.json").read_text())
    first = schema["inputs"][0]
    if change == "shape":
        first["shape"] = [1, 8, 16]
        example["inputs"]["input"] = np.zeros((3, 1, 8, 16)).tolist()
    else:
        first["name"] = "picture"
        example["inputs"] = {"picture": example["inputs"]["input"]}
    (data / "schema.json").write_text(json.dumps(schema))
    (data / "example.json").write_text(json.dumps(example))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("weights", "answers differ"),
        ("shape", "refuses what the model takes"),
        ("name", "refuses what the model takes"),
    ],
)
def test_another_model_behind_the_address_is_seen(
    trained: Trained, both: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, words: str
) -> None:
    folder = other(trained, tmp_path / "other", change)
    for url in both:
        assert cli.main(["check", str(folder), "--endpoint", url]) == 1
        line = capsys.readouterr().err
        assert words in line
        assert line.count("\n") == 1


def test_an_address_that_answers_all_alike_is_seen(trained: Trained, both: list[str]) -> None:
    scorer = score.Scorer(check.data_of(trained.model))
    example = json.loads((trained.model / "example.json").read_text())["inputs"]
    with pytest.raises(FailedError, match="the model takes"):
        check.refused(both[0], scorer, "a good request", example)


def test_mistakes_are_one_line(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = [
            (["serve", str(trained.model), "--port", str(port)], 2, "choose another"),
            (["serve", str(tmp_path)], 2, "MLmodel is missing"),
            (["check", str(trained.model), "--endpoint", "nonsense"], 2, "must be http://"),
            (["check", str(trained.model), "--endpoint", f"http://{HERE}:1/score"], 1, "does not answer"),
            (["check", str(trained.model), "--schema", str(tmp_path / "no.json")], 2, "cannot be read"),
            (["check", str(trained.model), "--schema", str(trained.model / "MLmodel")], 2, "is no schema"),
            (["load", str(trained.model), "--seconds", "1"], 2, "at least 2"),
            (["load", str(trained.model), "--kill"], 2, "--replicas 2"),
            (["register", "nothing", "--name", "digits", "--runs", str(tmp_path)], 2, "checkpoint"),
        ]
        for words, status, said in cases:
            assert cli.main(words) == status, words
            line = capsys.readouterr().err
            assert said in line
            assert line.count("\n") == 1, line


def test_a_server_that_does_not_come_up_leaves_nothing(trained: Trained, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained.model, broken)
    next(broken.rglob("network.pt2")).write_bytes(b"nothing")
    with pytest.raises(FailedError, match="r1 ended with"), servers.running(broken, "azureml", 0, 1, print):
        pass
    assert left(broken) == []


def left(folder: Path) -> list[int]:
    """Processes that have a folder in their command or variables."""
    found = []
    for it in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (it / "cmdline").read_bytes() + (it / "environ").read_bytes():
                found.append(int(it.name))
    return [it for it in found if it != os.getpid()]


def test_ctrl_c_ends_an_end_point_and_leaves_nothing(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "served-here"
    shutil.copytree(trained.model, copy)
    serve = subprocess.Popen(
        [sys.executable, "-m", "proving_ground.serving", "serve", str(copy), "--port", "0"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert serve.stdout is not None
    assert "Ctrl-C ends it" in serve.stdout.readline()
    assert len(left(copy)) >= 2
    serve.send_signal(signal.SIGINT)
    _, said = serve.communicate(timeout=60)
    assert (serve.returncode, said) == (130, "serving: interrupted\n")
    assert left(copy) == []


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    port = free_port(0)
    words = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", f"{tmp_path}/art"]
    argv = [sys.executable, "-m", "mlflow", "server", *words, "--host", HERE, "--port", str(port)]
    more = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with servers.started_group("mlflow", port, tmp_path, [*argv, "--workers", "1"], os.environ | more) as it:
        servers.wait_ready(it, "/health")
        yield f"http://{HERE}:{port}"


def test_a_training_is_registered_once_and_found_again(
    trained: Trained, mlflow_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["register", "latest", "--runs", str(trained.runs), "--tracking-uri", mlflow_server]
    assert cli.main([*words, "--name", "my/digits"]) == 0
    first = capsys.readouterr()
    assert "my-digits/1: registered" in first.out
    assert "called 'my-digits' there" in first.err
    assert cli.main([*words, "--name", "my-digits"]) == 0
    assert "my-digits/1: is registered already" in capsys.readouterr().out
    with registry.registry(mlflow_server) as client:
        version = client.get_model_version("my-digits", "1")
        seal = source.find("latest", trained.runs).lineage.seal_sha256
        assert version.tags["proving_ground.seal_sha256"] == seal
        assert version.tags["proving_ground.world_size"] == "2"
        run = client.get_run(str(version.run_id))
        assert run.info.status == "FINISHED"
        assert sum(name.endswith("/step_s") for name in run.data.metrics) == 2
    with registry.fetched("my-digits", mlflow_server) as (folder, version_name):
        assert version_name == "my-digits/1"
        assert np.array_equal(answer_of(folder), answer_of(trained.model))
        assert "seal_sha256" in (folder / "MLmodel").read_text()
    assert not folder.exists()
    for name, said in (("nothing", "neither a folder nor a model"), ("my-digits/7", "has no version 7; it has 1")):
        assert cli.main(["serve", name, "--tracking-uri", mlflow_server]) == 2
        assert said in capsys.readouterr().err


def test_mlflow_away_is_one_line(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["register", str(trained.checkpoints), "--name", "digits", "--tracking-uri", "http://127.0.0.1:1"]
    assert cli.main(words) == 1
    assert capsys.readouterr().err.startswith("serving: http://127.0.0.1:1 does not answer")


def test_names_that_mlflow_refuses_are_changed_and_told() -> None:
    told: list[str] = []
    assert registry.named("a/b:c", told.append) == "a-b-c"
    assert registry.metric_names({"val/acc@1": 0.5, "loss": 1.0}, told.append) == {"val/acc_1": 0.5, "loss": 1.0}
    assert len(told) == 2
    with pytest.raises(FailedError, match="both be called"):
        registry.metric_names({"acc@1": 0.5, "acc_1": 0.6}, told.append)
    with pytest.raises(ServingError, match="letter or digit"):
        registry.named("//", told.append)


@pytest.mark.filterwarnings("ignore")  # SQLAlchemy's, of MLflow's own tables
def test_a_full_disk_is_one_line_and_leaves_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        pytest.skip("a small file system of its own takes root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        monkeypatch.setattr("tempfile.tempdir", str(small))
        words = [
            "register",
            str(trained.checkpoints),
            "--name",
            "digits",
            "--tracking-uri",
            f"sqlite:///{tmp_path}/m.db",
        ]
        assert cli.main(words) == 1
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(shutil.which("haproxy") is None and not Path("/usr/sbin/haproxy").exists(), reason="needs HAProxy")
def test_load_finds_figures_and_a_killed_replica_costs_what_was_in_flight(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "DYING_S", 30.0)  # where something else has the cores
    words = ["load", str(trained.model), "--users", "1,4", "--seconds", "4", "--repeats", "1"]
    begun = time.time()
    assert cli.main([*words, "--replicas", "2", "--kill", "--runs", str(tmp_path)]) == 0, capsys.readouterr()
    run = RunDir((tmp_path / "load" / "latest").resolve())
    assert run.report.exists()
    made = run.read("results")
    found = {it["name"]: it["median"] for it in made["figures"]}
    assert found["in_flight_at_kill"] >= 1
    dying = len(figures.while_dying(figures.read(run)))
    assert found["in_flight_at_kill"] + dying >= found["lost_at_kill"]
    assert {it["check"]: it["verdict"] for it in made["verdicts"]} == {"errors": "pass", "lost_requests": "pass"}
    assert run.read("kill")["before_s"] > begun
    assert not servers.answers(run.read("load")["orders"]["urls"][0].replace("/score", "/"))
