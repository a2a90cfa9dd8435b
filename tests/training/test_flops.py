"""A sample's operations, against what is published of the networks; and what counting may not touch."""

from __future__ import annotations

import pytest
import torch

from proving_ground.training.config import from_dict
from proving_ground.training.device import flops
from proving_ground.training.models.task import Task, task_of

from .own_task import Line

MULTIPLY_ADDS = {"resnet50": 4.09e9, "resnet152": 11.51e9, "vit": 17.56e9}
"""Of one forward: torchvision's model tables."""
GPT2 = 3 * 2 * (124_439_808 - 786_432) * 1024 + 12 * 12 * 768 * 1024**2
"""Of 1,024 tokens: 6 for each parameter that multiplies, and attention (Chowdhery et al., 2022, appendix B)."""


def task(model: str, size: str = "full") -> Task:
    return task_of(model)(from_dict({"model": model, "size": size}))


@pytest.mark.parametrize("model", MULTIPLY_ADDS)
def test_operations_are_three_times_the_published_forward(model: str) -> None:
    assert flops.per_sample(task(model)) == pytest.approx(6 * MULTIPLY_ADDS[model], rel=0.02)


def test_operations_of_gpt_2_are_those_of_the_formula() -> None:
    pytest.importorskip("transformers", reason="needs the extra `frameworks`")
    assert flops.per_sample(task("gpt2")) == pytest.approx(GPT2, rel=0.01)


def test_counting_draws_no_random_number_and_changes_no_weight() -> None:
    digits = task("digits", "tiny")
    torch.manual_seed(3)
    weights = [it.clone() for it in digits.model().parameters()]
    before = torch.get_rng_state()
    assert flops.per_sample(digits)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(3)
    assert all(map(torch.equal, weights, digits.model().parameters()))


class Looks(Line):
    """A network that looks at its values has no number of operations of its own."""

    def loss(self, model: torch.nn.Module, batch: object) -> torch.Tensor:
        """Squared error, twice where it is large."""
        found = super().loss(model, batch)  # type: ignore[arg-type]
        return found * 2 if float(found) > 1 else found


class Prints(Line):
    """A network whose loss is printed, as it is written in many a training."""

    def loss(self, model: torch.nn.Module, batch: object) -> torch.Tensor:
        """Squared error."""
        found = super().loss(model, batch)  # type: ignore[arg-type]
        self.said = f"{found:.3f}"
        return found


@pytest.mark.parametrize(("kind", "works"), [(Line, True), (Looks, False), (Prints, False)])
def test_what_cannot_be_counted_is_not_told(kind: type[Line], works: bool) -> None:  # noqa: FBT001 - a parameter
    found = flops.told(from_dict({"peak_tflops": 0.5}), kind(from_dict({})), torch.device("cpu"))
    assert ("flops_per_sample" in found) == works
    assert found["peak_tflops"] == 0.5


def test_of_a_cpu_no_peak_is_known() -> None:
    assert flops.told(from_dict({}), Line(from_dict({})), torch.device("cpu")) == {
        "flops_per_sample": 4.0
    }  # weight: forward, backward


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla V100-PCIE-16GB", None),
        ("NVIDIA A1000", None),
    ],
)
def test_a_peak_is_known_of_whole_gpus_of_the_fast_version(
    monkeypatch: pytest.MonkeyPatch, name: str, bf16: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    device = torch.device("cuda")
    assert flops.peak_tflops(device, "bf16") == bf16
    assert flops.peak_tflops(device, "fp32") is None  # convolutions may be computed in TF32
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert (flops.peak_tflops(device, "fp32") is None) == (bf16 is None)
