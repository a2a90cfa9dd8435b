"""A model cut over the ranks learns what the whole one learns, and its checkpoints are worth as much."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.fsdp import FSDPModule

from proving_ground.training import loop
from proving_ground.training.config import ConfigError, from_dict
from proving_ground.training.exchange import sharded
from proving_ground.training.exchange.sharded import ShardedExchange
from proving_ground.training.timing import Spans

from .own_blocks import LAYERS, WIDTH, Blocks
from .ranks import Ranks, sets, start
from .test_loop_record import recorded

STEPS = 8
KEYS: dict[str, Any] = {
    "model": "tests.training.own_blocks:Blocks", "steps": STEPS, "global_batch": 30, "optimizer": "adamw", "lr": 0.01,
    "base_batch": 30, "clip_norm": 0.5, "eval_every": -1, "ledger": True,
}  # fmt: skip
SHARDED = KEYS | {"parallel": "fsdp"}


def bound(steps: int, samples: int, unit: float = 2.0**-24) -> float:
    """How far losses may be apart, relatively, for the order of sums alone.

    A gradient is a sum over samples, each of a chain of sums over the layers' widths. An order of n additions differs
    from another by n·u of what is added up (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2),
    and so do the weights of the next step: differences add up over the steps, since rates are too small to amplify.
    """
    return steps * (samples + (LAYERS + 2) * WIDTH) * unit


def losses(job: Ranks) -> list[float]:
    """Every step's, once all ranks have ended well with the same weights."""
    assert job.wait() == [0] * len(job.processes), [job.printed(rank) for rank in range(len(job.processes))]
    ends = [job.events(rank, "end")[0]["parameters_sha256"] for rank in range(len(job.processes))]
    assert len(set(ends)) == 1
    return [it["loss"] for it in job.events(0, "step")]


@pytest.mark.parametrize(
    ("size", "keys"),
    [
        (2, {"optimizer": "sgd"}),
        (4, {"accumulate": 3, "global_batch": 41}),  # 150 rows: the last batch of an epoch has 27
        (3, {"activation_checkpointing": True, "global_batch": 74}),  # the last has 2: a rank has none
        (4, {"replicas": 2, "optimizer": "sgd"}),
        (4, {"replicas": 2, "accumulate": 3, "global_batch": 41}),
        (6, {"replicas": 3}),
        (2, {"replicas": 2}),  # nothing is cut
    ],
)
def test_it_learns_what_the_whole_learns(tmp_path: Path, size: int, keys: dict[str, Any]) -> None:
    _, alone = recorded(tmp_path, **KEYS | keys | {"replicas": 1})
    job = start(tmp_path / "n", size, sets(**SHARDED | keys))
    allowed = bound(STEPS, keys.get("global_batch", 30))
    assert losses(job) == pytest.approx([it["loss"] for it in alone], rel=allowed)
    its = [it["grad_norm"] for it in job.events(0, "step")]
    assert its == pytest.approx([it["grad_norm"] for it in alone], rel=10 * allowed)
    learned = [
        sorted(row for rank in range(size) for row in job.events(rank, "step")[at]["rows"]) for at in range(STEPS)
    ]
    assert learned == [sorted(it["rows"]) for it in alone]
    if size == 2 and "replicas" not in keys:
        assert sum(it["shard_s"] for it in job.events(0, "step")) > 0


def test_gpt2_and_evaluation(tmp_path: Path) -> None:
    """A real network with weights that two layers share; its test set is judged by all ranks together."""
    keys = {
        "model": "gpt2",
        "steps": 3,
        "global_batch": 4,
        "optimizer": "adamw",
        "lr": 0.002,
        "data": small_text(tmp_path),
    }
    config, alone = recorded(tmp_path, **keys, eval_every=3)
    judged = evaluated(tmp_path / "events.jsonl")
    job = start(tmp_path / "n", 2, sets(**keys, parallel="fsdp", eval_every=3))
    width = 2 * 64 * 6 + config.global_batch * 64
    assert losses(job) == pytest.approx([it["loss"] for it in alone], rel=3 * width * 2.0**-24)
    found = evaluated(job.folder / "0.jsonl")
    assert list(found) == list(judged) == ["accuracy", "loss"]
    assert found["loss"] == pytest.approx(judged["loss"], rel=3 * width * 2.0**-24)
    assert found["accuracy"] == pytest.approx(judged["accuracy"], abs=2 / 1_900)  # two tokens that were close to a tie


def evaluated(file: Path) -> dict[str, float]:
    """The figures of a job's evaluation."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return {it["metric"]: it["value"] for it in events if it["event"] == "eval"}


@pytest.mark.parametrize(("mutant", "same"), [("", True), ("judges_alone", False)])
def test_an_evaluation_is_that_of_all_ranks(tmp_path: Path, mutant: str, *, same: bool) -> None:
    """31 test samples on 2 ranks, 2 at once: one rank has a piece less."""
    keys = {"global_batch": 12, "micro_batch": 2, "steps": 2, "eval_every": 1}
    recorded(tmp_path, **KEYS | keys)
    job = start(tmp_path / "n", 2, sets(**SHARDED | keys), mutant=mutant)
    losses(job)
    judged = evaluated(tmp_path / "events.jsonl")["loss"]
    assert (evaluated(job.folder / "0.jsonl")["loss"] == pytest.approx(judged, rel=bound(2, 31))) == same


@pytest.mark.parametrize(
    ("keys", "most"), [({"micro_batch": 1}, 1), ({"micro_batch": 2}, 2), ({"accumulate": 3}, 1), ({}, 3)]
)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_all_ranks_take_as_many_pieces_and_none_a_larger_one(keys: dict[str, int], most: int, batch: int) -> None:
    exchange = ShardedExchange(
        None, casting=False, micro_batches=keys.get("accumulate", 1), micro_batch=keys.get("micro_batch", 0)
    )
    cuts = [exchange.cut(np.arange(batch), rank, 2) for rank in (0, 1)]
    assert len(cuts[0]) == len(cuts[1]) > 0
    pieces = [rows for cut in cuts for _, rows in cut]
    assert max(map(len, pieces)) <= most
    assert np.concatenate(pieces).tolist() == list(range(batch))


def test_as_many_are_judged_at_once_as_are_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sums = Blocks.sums

    def counted(self: Blocks, model: Any, batch: Any) -> Any:
        sizes.append(len(batch.rows))
        return sums(self, model, batch)

    monkeypatch.setattr(Blocks, "sums", counted)
    keys = KEYS | {"steps": 1, "eval_every": 1, "global_batch": 6}
    for more, most in (({"parallel": "fsdp"}, 6), ({"parallel": "fsdp", "micro_batch": 2}, 2), ({"micro_batch": 2}, 2)):
        sizes.clear()
        recorded(tmp_path, **keys | more)
        assert sum(sizes) == 31
        assert max(sizes) <= most


def test_a_step_is_charged_no_exchange_of_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rank is alone nothing is exchanged: each forward stands for an exchange."""
    left: list[float] = []
    spans: list[Spans] = []
    learn, made, loss = loop.learn, sharded.exchanging, Blocks.loss

    def exchanging(*given: Any) -> Any:
        model, exchange = made(*given)
        spans.append(exchange.spans)
        return model, exchange

    def timed(self: Blocks, model: Any, batch: Any) -> Any:
        with spans[-1].span():
            return loss(self, model, batch)

    def watched(job: Any, *, wish: bool) -> Any:
        left.append(job.exchange.spans.take())
        return learn(job, wish=wish)

    monkeypatch.setattr(loop, "learn", watched)
    monkeypatch.setattr(sharded, "exchanging", exchanging)
    monkeypatch.setattr(Blocks, "loss", timed)
    recorded(tmp_path, **SHARDED | {"steps": 3, "eval_every": 1})
    assert left == [0.0] * 3


def test_gradients_of_micro_batches_add_up_as_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that sums after the last alone holds those of the whole model until then."""
    whole: list[bool] = []
    loss = Blocks.loss

    def looked(self: Blocks, model: Any, batch: Any) -> Any:
        states = [it for part in model.modules() if isinstance(part, FSDPModule) for it in [part._get_fsdp_state()]]
        groups = [it._fsdp_param_group for it in states if it._fsdp_param_group]
        parameters = [getattr(it, "_unsharded_param", None) for group in groups for it in group.fsdp_params]
        whole.append(any(it is not None and it.grad is not None for it in parameters))
        return loss(self, model, batch)

    monkeypatch.setattr(Blocks, "loss", looked)
    recorded(tmp_path, **SHARDED | {"steps": 1, "accumulate": 3})
    assert whole == [False] * 4


def small_text(folder: Path) -> str:
    """A text whose evaluation takes no time."""
    from proving_ground.training.data.mapped import write  # noqa: PLC0415 - beside its use

    words = {"token": np.arange(2000, dtype=np.uint8) % 61}
    write(folder / "text", {"name": "x", "source": "x", "vocabulary": 61}, {"train": [words], "test": [words]})
    return str(folder / "text")


@pytest.mark.parametrize(
    ("mutant", "clip_norm"), [("mean_of_ranks", 0.0), ("clips_its_part", 0.5), ("first_block_alone", 0.0)]
)
def test_gradients_that_are_not_the_whole_s_are_seen(tmp_path: Path, mutant: str, clip_norm: float) -> None:
    """Clipping would hide a factor."""
    keys = {"optimizer": "sgd", "clip_norm": clip_norm}
    _, alone = recorded(tmp_path, **KEYS | keys)
    found = losses(start(tmp_path / "n", 2, sets(**SHARDED | keys), mutant=mutant))
    assert found != pytest.approx([it["loss"] for it in alone], rel=10 * bound(STEPS, 30))


def test_replicas_that_do_not_add_up_their_gradients_are_seen(tmp_path: Path) -> None:
    keys = {"optimizer": "sgd", "clip_norm": 0.0, "replicas": 2}
    _, alone = recorded(tmp_path, **KEYS | keys | {"replicas": 1})
    job = start(tmp_path / "n", 4, sets(**SHARDED | keys), mutant="replicas_apart")
    assert job.wait() == [0] * 4
    found = [it["loss"] for it in job.events(0, "step")]
    assert found != pytest.approx([it["loss"] for it in alone], rel=10 * bound(STEPS, 30))
    assert len({job.events(rank, "end")[0]["parameters_sha256"] for rank in range(4)}) == 2


def test_ranks_that_are_no_whole_replicas_are_refused(tmp_path: Path) -> None:
    job = start(tmp_path, 3, sets(**SHARDED | {"replicas": 2}))
    assert job.wait() == [2] * 3
    assert "replicas = 2 does not divide 3 ranks" in job.printed()


def test_bf16_is_near_the_whole_s_and_not_fp32(tmp_path: Path) -> None:
    """Parameters are gathered with 8 bits: each of so few products is rounded by 2⁻⁹, in the whole model's order."""
    _, alone = recorded(tmp_path, **KEYS | {"precision": "bf16", "steps": 4})
    job = start(tmp_path / "n", 2, sets(**SHARDED | {"precision": "bf16", "steps": 4}))
    found, its = losses(job), [it["loss"] for it in alone]
    assert found == pytest.approx(its, rel=4 * LAYERS * 2.0**-9)
    (tmp_path / "full").mkdir()
    _, full = recorded(tmp_path / "full", **KEYS | {"steps": 4})
    assert found != pytest.approx([it["loss"] for it in full], rel=bound(4, 30))


def test_an_fp16_overflow_is_skipped_by_all(tmp_path: Path) -> None:
    keys = SHARDED | {"precision": "fp16", "loss_scale": 2.0**26, "steps": 16, "fingerprint_every": 1}
    job = start(tmp_path, 2, sets(**keys))
    losses(job)
    scales = [[(it["loss_scale"], it["skipped"]) for it in job.events(rank, "step")] for rank in (0, 1)]
    assert scales[0] == scales[1]
    assert sum(skipped for _, skipped in scales[0]) > 2
    assert not scales[0][-1][1]


SAVED = SHARDED | {"steps": 24, "checkpoint_every": 4, "fingerprint_every": 4, "dropout": 0.0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Four ranks that nobody disturbs."""
    return undisturbed(tmp_path_factory.mktemp("whole"))


def undisturbed(folder: Path, **keys: int) -> Ranks:
    job = start(folder, 4, sets(**SAVED | {"checkpoint_every": 0} | keys))
    losses(job)
    return job


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks have saved that were killed."""
    return saved_until_killed(tmp_path_factory.mktemp("killed"))


def saved_until_killed(folder: Path, **keys: int) -> Path:
    job = start(folder / "run", 4, sets(**SAVED | {"steps": 10_000, "checkpoint_dir": folder / "saved"} | keys))
    job.until(13)
    job.until(8, name="checkpoint")  # a write that takes long leaves others out
    assert job.kill() == [-signal.SIGKILL] * 4
    return folder / "saved"


def again(tmp_path: Path, killed: Path, size: int, mutant: str = "", **keys: int) -> Ranks:
    shutil.copytree(killed, tmp_path / "saved")
    asked = SAVED | {"checkpoint_dir": tmp_path / "saved"} | keys
    return start(tmp_path / "again", size, sets(**asked), mutant=mutant)


def sums(job: Ranks) -> list[tuple[int, str, str, str]]:
    names = ("step", "parameters_sha256", "optimizer_sha256", "random_sha256")
    return [tuple(it[name] for name in names) for it in job.events(0, "fingerprint")]


@pytest.mark.parametrize(("mutant", "same"), [("", True), ("part_not_restored", False), ("optimizer_lost", False)])
def test_a_killed_job_goes_on_to_the_same_bits(
    tmp_path: Path, whole: Ranks, killed: Path, mutant: str, *, same: bool
) -> None:
    job = again(tmp_path, killed, 4, mutant)
    losses(job)
    resumed = job.events(0, "resume")[0]["step"]
    assert resumed >= 8
    assert (sums(job) == [it for it in sums(whole) if it[0] > resumed]) == same
    assert (job.events(2, "end")[0]["parameters_sha256"] == whole.events(0, "end")[0]["parameters_sha256"]) == same


@pytest.mark.parametrize("size", [1, 2, 8])
def test_it_goes_on_at_another_size(tmp_path: Path, whole: Ranks, killed: Path, size: int) -> None:
    job = again(tmp_path, killed, size)
    found = losses(job)
    assert found == pytest.approx(losses(whole)[-len(found) :], rel=bound(24, 30))
    assert job.events(0, "resume")[0]["step"] == 24 - len(found)
    assert job.events(0, "checkpoint")[-1]["step"] == 24


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ranks, Path]:
    """Two replicas of two ranks that nobody disturbs, and what such ranks have saved that were killed."""
    folder = tmp_path_factory.mktemp("hybrid")
    return undisturbed(folder / "calm", replicas=2), saved_until_killed(folder, replicas=2)


def test_of_replicas_the_first_is_saved(hybrid: tuple[Ranks, Path]) -> None:
    files = sorted(it.name for it in newest(hybrid[1]).glob("*.pt"))
    assert files == ["shard-00000-of-00002.pt", "shard-00001-of-00002.pt", "training.pt"]


@pytest.mark.parametrize("mutant", ["", "part_not_restored"])
def test_killed_replicas_go_on_to_the_same_bits(tmp_path: Path, hybrid: tuple[Ranks, Path], mutant: str) -> None:
    calm, saved = hybrid
    job = again(tmp_path, saved, 4, mutant, replicas=2)
    assert job.wait() == [0] * 4
    resumed = job.events(0, "resume")[0]["step"]
    assert resumed >= 8
    assert (sums(job) == [it for it in sums(calm) if it[0] > resumed]) == (not mutant)


@pytest.mark.parametrize(("size", "replicas"), [(2, 1), (2, 2), (4, 1), (6, 3)])
def test_replicas_go_on_as_others_and_at_another_size(
    tmp_path: Path, hybrid: tuple[Ranks, Path], size: int, replicas: int
) -> None:
    calm, saved = hybrid
    job = again(tmp_path, saved, size, replicas=replicas)
    found = losses(job)
    assert found == pytest.approx(losses(calm)[-len(found) :], rel=bound(24, 30))
    assert 0 < len(found) <= 16


def newest(saved: Path) -> Path:
    return max(saved.glob("step-*"))


def test_a_damaged_part_makes_all_take_the_one_before(tmp_path: Path, whole: Ranks, killed: Path) -> None:
    shutil.copytree(killed, tmp_path / "damaged")
    bad = newest(tmp_path / "damaged")
    file = bad / "shard-00002-of-00004.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    job = again(tmp_path, tmp_path / "damaged", 4)
    losses(job)
    (told,) = job.events(0, "quarantine")
    assert f"{bad.name}: {file.name}" in told["why"]
    assert sums(job)[-1] == sums(whole)[-1]
    assert (tmp_path / "saved" / "quarantine" / bad.name).is_dir()


def test_one_of_a_whole_model_is_refused(tmp_path: Path, killed: Path) -> None:
    shutil.copytree(killed, tmp_path / "saved")
    job = start(tmp_path / "ddp", 1, sets(**SAVED | {"parallel": "ddp", "checkpoint_dir": tmp_path / "saved"}))
    assert job.wait() == [1]
    assert "parallel = 'fsdp' there, 'ddp' here" in job.printed()


def test_a_disk_that_one_rank_cannot_write_to_is_survived(tmp_path: Path) -> None:
    """No checkpoint, an event of rank 0 that names the other, and training goes on."""
    job = start(
        tmp_path / "run", 2, sets(**SHARDED | {"checkpoint_dir": tmp_path / "saved"}), mutant="full_on_rank_1"
    )  # fmt: skip
    losses(job)
    (told,) = job.events(0, "error")
    assert "rank 1: No space left on device; training goes on" in told["message"]
    assert not job.events(1, "error")
    assert not list((tmp_path / "saved").glob("*step-*"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "digits"}, "parallel = 'fsdp' needs a model with blocks, not 'digits': resnet50"),
        ({"reduction": "exact", "global_batch": 48}, "needs reduction = 'float', not 'exact'"),
        ({"updates": "diloco"}, "needs updates = 'every_step', not 'diloco': a rank that holds a part"),
        ({"compression": "fp16"}, "needs compression = 'none'"),
        ({"norm": "batch"}, "needs norm = 'group'"),
        ({"compile": True}, "needs compile = False"),
        ({"fit_memory": True}, "needs fit_memory = False, not True: it tries a whole model"),
        ({"parallel": "ddp", "replicas": 2}, "replicas = 2 needs parallel = 'fsdp': otherwise every rank is one"),
    ],
)
def test_what_cannot_be_cut_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict({"model": "gpt2", "parallel": "fsdp"} | keys)
    assert words in str(error.value)


def test_a_task_without_blocks_is_refused(tmp_path: Path) -> None:
    job = start(tmp_path, 1, sets(model="tests.training.own_task:Line", parallel="fsdp", steps=1))
    assert job.wait() == [2]
    assert job.printed() == "training rank 0: parallel = 'fsdp' needs a method `blocks` of Line\n"


def test_who_holds_whole_models_imports_none_of_it() -> None:
    script = "import sys, json; from proving_ground.training import load, train; train(load(None, sets=['steps=1', 'eval_every=-1']), tell=str); print(json.dumps([it for it in sys.modules if it.startswith('proving_ground.training.exchange.sharded')]))"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
