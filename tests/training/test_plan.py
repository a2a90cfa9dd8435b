"""A plan says what a rank needs: counted and measured; what does not fit is refused, and fits where it is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proving_ground.training.__main__ import main
from proving_ground.training.config import ConfigError, from_dict
from proving_ground.training.device.plan import GIB, KEPT, MIB, Need, look_at, memory_of, need, plan, refuse

from .ranks import sets, start

LARGE: dict[str, Any] = {
    "model": "tests.training.own_blocks:Large", "optimizer": "adamw", "lr": 0.0001, "global_batch": 8, "steps": 3,
    "eval_every": -1,
}  # fmt: skip
CUT = LARGE | {"parallel": "fsdp"}
TEN_BILLION: dict[str, Any] = {
    "model": "tests.training.own_gpt2:TenBillion", "optimizer": "adamw", "device": "cuda", "global_batch": 64,
    "parallel": "fsdp",
}  # fmt: skip


def needed(ranks: int, **keys: Any) -> Need:
    config = from_dict(keys)
    return need(look_at(config), config, ranks)


def test_ten_billion_parameters_are_planned_in_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = sets(**TEN_BILLION)
    assert main(["plan", *words, "--ranks", "64", "--memory", "80GiB"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("tests.training.own_gpt2:TenBillion: 10331 million parameters, 64 ranks")
    assert said.endswith("fits into 80 GiB\n")
    assert main(["plan", *words, "--ranks", "1", "--memory", "80GiB", "--set", "activation_checkpointing=true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("training: does not fit: a rank needs ")
    assert said.endswith(" GiB of 80 GiB; 3 ranks would do\n")


WIDE: dict[str, Any] = {"model": "tests.training.own_blocks:Wide", "global_batch": 16384}


KEPT_LEAST = 0.3
"""Of activations, where the next step's happen to fit into what the last left: see `training.device.plan.KEPT`."""


def assert_within(share: float, folder: Path, ranks: int, keys: dict[str, Any]) -> None:
    """Resident memory of each rank at its peak, less what it had before the model was there."""
    job = start(folder, ranks, sets(**keys), mutant="watched")
    assert job.wait() == [0] * ranks, job.printed()
    found = needed(ranks, **keys)
    lucky = (KEPT - KEPT_LEAST) * found.activations if found.kept else 0
    for rank in range(ranks):
        before, peak = map(int, (folder / f"{rank}.memory").read_text().split())
        assert (1 - share) * found.training - lucky <= peak - before <= (1 + share) * found.training


@pytest.mark.parametrize(
    ("ranks", "keys"),
    [
        (2, CUT),
        (4, CUT),
        (4, CUT | {"micro_batch": 1}),
        (2, CUT | {"fingerprint_every": 1, "steps": 2}),  # the whole model, on every rank
        (2, CUT | {"precision": "bf16"}),
    ],
)
def test_the_peak_of_a_real_training_is_within_a_tenth(tmp_path: Path, ranks: int, keys: dict[str, Any]) -> None:
    assert_within(0.1, tmp_path, ranks, keys)


@pytest.mark.parametrize(
    ("ranks", "keys"),
    [(2, CUT | WIDE), (1, LARGE), (2, LARGE | WIDE | {"steps": 2})],
)
def test_the_peak_is_within_a_sixth(tmp_path: Path, ranks: int, keys: dict[str, Any]) -> None:
    """Gradients of activations are not counted; and of a whole model the C library keeps what is freed, in pieces."""
    assert_within(1 / 6, tmp_path, ranks, keys)


def test_what_one_process_cannot_hold_four_train(tmp_path: Path) -> None:
    """The kernel's limit is between what the plan says of one and of four."""
    limit, keys = 600, LARGE | {"model": "tests.training.own_blocks:Larger", "steps": 2}
    cut = keys | {"parallel": "fsdp"}
    assert needed(4, **cut).training < limit * MIB < needed(1, **keys).training
    alone = start(tmp_path / "1", 1, sets(**keys), mutant=f"limited:{limit}")
    assert alone.wait() == [1]
    assert alone.events(0, "error")[-1]["kind"] == "OutOfMemoryError"
    four = start(tmp_path / "4", 4, sets(**cut), mutant=f"limited:{limit}")
    assert four.wait() == [0] * 4, [four.printed(rank) for rank in range(4)]
    assert [it["step"] for it in four.events(3, "step")] == [1, 2]


def test_what_a_rank_holds_is_counted_from_shapes() -> None:
    """37 rows over 4 ranks: the first has 10 of them."""
    small = {"model": "tests.training.own_blocks:Blocks", "parallel": "fsdp", "optimizer": "adamw"}
    model = look_at(from_dict(small))
    layer = 10 * 37 + 3 * 10
    assert model.values(4) == (10 * 6 + 10) + 3 * layer + (2 * 37 + 2) + 1
    found = needed(4, **small)
    assert (found.gradients, found.optimizer, found.copy) == (found.parameters, 2 * found.parameters, 0)
    saved = needed(4, **small, checkpoint_dir="x")
    assert (saved.copy, saved.pinned) == (3 * found.parameters, 0)
    assert saved.training == found.training + saved.copy


def test_a_rank_of_a_replica_holds_what_one_of_so_many_ranks_does(capsys: pytest.CaptureFixture[str]) -> None:
    hybrid, two, four = needed(4, **CUT, replicas=2), needed(2, **CUT), needed(4, **CUT)
    assert (hybrid.parameters, hybrid.optimizer) == (two.parameters, two.optimizer) > (four.parameters, four.optimizer)
    assert hybrid.activations == four.activations  # the batch is everybody's
    words = sets(**TEN_BILLION | {"replicas": 4})
    assert main(["plan", *words, "--ranks", "4", "--memory", "80GiB", "--set", "activation_checkpointing=true"]) == 2
    assert capsys.readouterr().err.endswith(" GiB of 80 GiB; 12 ranks would do\n")
    assert main(["plan", *words, "--ranks", "6"]) == 2
    assert "replicas = 4 does not divide 6 ranks" in capsys.readouterr().err


def test_gradients_of_a_whole_model_s_micro_batches_add_up_beside_ddp_s_buckets() -> None:
    once, twice = needed(2, **LARGE), needed(2, **LARGE, accumulate=2)
    assert twice.gradients == 2 * once.gradients
    assert once.training >= once.parameters + once.gradients + once.optimizer + once.activations


def test_beside_a_gpu_the_copy_of_a_checkpoint_is_the_host_s() -> None:
    keys = CUT | {"device": "cuda"}
    saved, without = needed(2, **keys, checkpoint_dir="x"), needed(2, **keys)
    assert (saved.copy, saved.pinned) == (0, 3 * saved.parameters)
    assert saved.training == without.training


def test_parameters_that_are_gathered_as_bf16_are_no_activations() -> None:
    """Autocast keeps a copy of FP32 ones; of those that come as BF16 it makes none."""
    full, half = needed(2, **CUT).activations, needed(2, **CUT, precision="bf16").activations
    assert half <= full


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_no_rank_takes_more_at_once_than_it_is_told(parallel: str) -> None:
    """5 samples of 2 ranks one by one: the plan counts one, and so many the ranks take."""
    keys = {"model": "tests.training.own_blocks:Blocks", "parallel": parallel, "global_batch": 5, "micro_batch": 1}
    config = from_dict(keys)
    assert need(look_at(config), config, 2).activations == look_at(config).activations(1)


def test_less_is_kept_where_activations_are_computed_again() -> None:
    keys = {"model": "vit", "parallel": "fsdp", "global_batch": 64}
    every, again = needed(2, **keys).activations, needed(2, **keys, activation_checkpointing=True).activations
    pieces = needed(2, **keys, micro_batch=8).activations
    assert again < every / 2
    assert pieces == pytest.approx(every / 4, rel=0.01)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "does not fit: a rank needs 0.471 GiB of 0.2 GiB; no number of ranks does: parallel = 'fsdp'"),
        ({"parallel": "fsdp"}, "GiB of 0.0195 GiB; no number of ranks does: try activation_checkpointing = true"),
    ],
)
def test_what_no_number_of_ranks_makes_fit_is_told(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(from_dict(LARGE | keys), 2, "20MiB" if keys else "0.2GiB", lambda _: None)
    assert words in str(error.value)


@pytest.mark.parametrize("text", ["", "16", "16 parsecs", "-1GiB", "0GiB", "GiB", "nanGiB"])
def test_a_memory_is_a_size(text: str) -> None:
    if text == "16":
        assert memory_of(text) == 16
        return
    with pytest.raises(ConfigError, match="must be a size above 0 such as 16GiB"):
        memory_of(text)


def test_sizes_have_units() -> None:
    assert [memory_of(text) for text in ("16GiB", "1.5 GB", "512MiB")] == [16 * GIB, 1_500_000_000, 512 * MIB]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "0"], "training: --ranks 0: must be at least 1\n"),
        (["--memory", "much"], "training: --memory much: must be a size above 0 such as 16GiB, 80GB or 512MiB\n"),
        (
            ["--set", "model=paced", "--set", "profile=resnet50-cpu"],
            "computes nothing, so there is no memory to plan\n",
        ),
        (
            ["--set", "model=tests.training.own_task:Line", "--set", "parallel=fsdp"],
            "needs a method `blocks` of Line\n",
        ),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    problem = capsys.readouterr().err
    assert problem.endswith(said)
    assert problem.count("\n") == 1


UNCUTTABLE = [("Tied", "2.0.weight|1.0.weight"), ("Scalar", "temperature")]


@pytest.mark.parametrize(("kind", "parameter"), UNCUTTABLE)
def test_what_torch_cannot_cut_is_refused_by_the_plan_and_by_the_training(
    tmp_path: Path, kind: str, parameter: str
) -> None:
    keys = {"model": f"tests.training.own_blocks:{kind}", "parallel": "fsdp", "steps": 1, "eval_every": -1}
    with pytest.raises(ConfigError, match=rf"parameter ({parameter}) of {kind} (belongs to more|is a scalar)"):
        look_at(from_dict(keys))
    job = start(tmp_path, 1, sets(**keys))
    assert job.wait() == [2], job.printed()
    assert job.printed().count("\n") == 1
    look_at(from_dict(keys | {"parallel": "ddp"}))


def test_the_optimizer_is_the_task_s() -> None:
    keys = {"model": "tests.training.own_blocks:Adamed"}
    found = needed(1, **keys, optimizer="sgd")
    assert found.optimizer == 3 * found.parameters
    for optimizer, momentum, moments in (("sgd", 0.0, 0), ("sgd", 0.9, 1), ("adamw", 0.9, 2)):
        own: dict[str, Any] = {
            "model": "tests.training.own_blocks:Blocks",
            "optimizer": optimizer,
            "momentum": momentum,
        }
        assert needed(1, **own).optimizer == moments * needed(1, **own).parameters


def test_the_fewest_ranks_that_do_are_told() -> None:
    """Three, which is no power of two; one fewer does not."""
    config = from_dict(CUT)
    model = look_at(config)
    memory = need(model, config, 3).training
    assert need(model, config, 2).training > memory
    with pytest.raises(ConfigError, match="; 3 ranks would do"):
        refuse(model, from_dict(CUT | {"device": "cuda"}), 1, memory)
