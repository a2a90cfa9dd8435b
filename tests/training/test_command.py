"""The command line: helpful, and one line with the right exit status when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proving_ground.training import loop
from proving_ground.training.__main__ import in_words, main
from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.stores import Folder
from proving_ground.training.config import KEYS, from_dict
from proving_ground.training.events import EVENTS_VARIABLE


def run(*arguments: str) -> int:
    return main(["run", *(part for argument in arguments for part in ("--set", argument))])


def test_help_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    printed = capsys.readouterr().out
    assert [name for name in KEYS if f"\n  {name} " not in printed] == []
    assert "torchrun" in printed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["lr=0"], "lr = 0.0: must be above 0"),
        (["data=/nowhere"], "data = '/nowhere': no such folder; shipped data sets: digits, moby-dick, sp500"),
        (["data=sp500"], "no column 'image', which this model learns from"),
        (["model=paced", "profile=none"], "profile = 'none': no such file; shipped: resnet152-h200, resnet18-cpu"),
        (["backend=nccl", "device=cpu"], "backend = 'nccl' needs device = 'cuda'; use gloo or auto"),
    ],
)
def test_the_caller_s_mistakes_are_one_line_and_status_2(
    settings: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*settings) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plam"], "training: unknown command 'plam'; allowed: run, plan, "),
        (["x" * 9000], "training: unknown command 'xxxx"),
        (["plan", "--rank", "2", "--memori", "1"], "training plan: unknown option '--memori'; allowed: --help, "),
        (["--memori", "1", "plan"], "training: unknown option '--memori'; allowed: --help, --version; help: "),
        (["--version-of", "plan"], "training: unknown option '--version-of'; allowed: --help, --version; did you mean"),
        (["plan", "9" * 9000], "training: too many words: 9999"),
    ],
)
def test_a_word_that_nobody_knows_is_one_too(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert told.count("\n") == 1
    assert len(told) <= 400


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2: must be whole numbers with 0 <= RANK < WORLD_SIZE"),
        ({"RANK": "x"}, "RANK=x, WORLD_SIZE=None"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE=2 needs MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_a_launcher_s_mistake_is_one_too(
    environ: dict[str, str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert run("steps=1") == 2
    assert words in capsys.readouterr().err


def test_a_training_that_diverges_is_an_error_event_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "e.jsonl"))
    assert run("model=stocks", "steps=50", "lr=1e15") == 1
    assert "RuntimeError: the loss of step" in capsys.readouterr().err
    last = json.loads((tmp_path / "e.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["fatal"]) == ("error", True)
    assert "a smaller lr or clip_norm may help" in last["message"]


def test_a_full_disk_is_told_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_part", full)
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "e.jsonl"))
    assert run("model=stocks", "steps=2", f"checkpoint_dir={tmp_path}") == 0
    assert "checkpoint of step 2 not saved" in capsys.readouterr().err
    events = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [event["fatal"] for event in events if event["event"] == "error"] == [False]
    assert events[-1]["event"] == "end"


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = f"checkpoint_dir={tmp_path}"
    assert run("model=stocks", "steps=2", saved) == 0
    assert run("model=stocks", "steps=2", saved, "global_batch=32") == 1
    assert (
        "of another training (global_batch = 64 there, 32 here); resume = false starts again" in capsys.readouterr().err
    )


def test_best_metric_and_gradient_norm_are_kept(tmp_path: Path) -> None:
    keys = {"model": "stocks", "steps": 6, "eval_every": 2, "checkpoint_dir": str(tmp_path), "clip_norm": 0.5}
    result = loop.train(from_dict(keys), tell=lambda _line: None)
    store = Folder(tmp_path)
    state = checkpoint.load(store, checkpoint.newest_first(store)[0]).parts["training"]
    assert state["step"] == result.step == 6
    assert state["best"] <= result.metrics["rmse_log_return"]
    assert state["config"]["clip_norm"] == 0.5


def test_data_can_be_made_again(tmp_path: Path) -> None:
    pytest.importorskip("arch", reason="needs the extras `data`")
    code = (
        "import sys; from proving_ground.training.__main__ import main; sys.exit(main(['data', '--out', sys.argv[1]]))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, tmp_path], check=False, stdout=subprocess.DEVNULL).returncode == 0
    )
    shipped = Path(loop.__file__).parent / "data_sets"
    for name in ("digits", "sp500"):
        assert (tmp_path / name / "manifest.json").read_text() == (shipped / name / "manifest.json").read_text()


def test_warm_imports_leave_one_thread_and_nothing_to_import() -> None:
    """What a fork server imports must be safe to fork, and all that a first step needs."""
    code = """
import os, sys, proving_ground.training.warm
assert len(os.listdir('/proc/self/task')) == 1
before = set(sys.modules)
from proving_ground.training import load, train
train(load(None, {}, ['steps=1', 'model=stocks']), tell=lambda line: None)
late = {name.partition('.')[0] for name in set(sys.modules) - before}
assert not late & {'sympy', 'triton', 'torchvision', 'numpy'}, late
assert len(set(sys.modules) - before) < 10
"""
    if not Path("/proc/self/task").exists():
        pytest.skip("counts threads in /proc")
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0


LATE = """
import atexit, os
from proving_ground.training.__main__ import leave
class Held:
    def __del__(self):
        os.abort()
held = Held()
atexit.register(print, "told")
leave({status})
"""


@pytest.mark.parametrize(("status", "told"), [(0, "told\n"), (2, "told\n"), (1, "")])
def test_what_is_let_go_of_while_the_interpreter_ends_does_not_end_a_rank_by_a_signal(status: int, told: str) -> None:
    """As a thread of Gloo's may with a tensor."""
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(status=status)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, told), done.stderr


def test_a_reader_that_has_seen_enough_costs_no_traceback() -> None:
    told = "from proving_ground.training.__main__ import leave; print('x'); leave(0)"
    ours, theirs = os.pipe()
    os.close(ours)
    kept = {**os.environ, "PYTHONUNBUFFERED": ""}  # so that it is written at the end
    done = subprocess.run([sys.executable, "-c", told], stdout=theirs, stderr=subprocess.PIPE, check=False, env=kept)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_operation_that_a_gpu_cannot_repeat_is_named_with_what_asks_for_it() -> None:
    told = RuntimeError(
        "sieve_cuda does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation"
    )
    assert in_words(told) == (
        "sieve_cuda does not have a deterministic implementation, which exact sums need, and fingerprints without "
        "deterministic = false (docs/gpu.md)"
    )
    assert in_words(RuntimeError("a\n b")) == "a b"
