"""Recording a profile from a real model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from proving_ground.training.measuring import profiling
from proving_ground.training.measuring.profiling import ProfileError, Recorder


def test_a_recorded_step_has_every_gradient_in_backwards_order() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    recorder = Recorder(model, torch.device("cpu"))
    times = recorder.step(lambda: model(torch.randn(8, 64)).sum(), lambda: None)
    names = [name for name in times if not name.endswith("_s")]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    first = {name.partition(".")[0]: times[name] for name in names}
    assert first["3"] < first["2"] < first["1"] < first["0"] <= times["backward_s"]
    assert all(value >= 0 for value in times.values())


@pytest.mark.parametrize(("model", "batch"), [("resnet51", 1), ("resnet50", 0)])
def test_what_cannot_be_recorded_is_refused(model: str, batch: int) -> None:
    with pytest.raises(ProfileError, match=r"one of resnet18, .*, vit_b_16, the batch at least 1"):
        profiling.record(model, batch, torch.device("cpu"), threads=1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_real_model_is_recorded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setitem(profiling.MODELS, "resnet18", 32)  # small images: the test is about completeness, not speed
    recorded = profiling.record("resnet18", 2, torch.device("cpu"), threads=1, precision=precision, repeats=1)
    profiling.write(recorded, tmp_path / "p.json")
    assert profiling.read(tmp_path / "p.json") == recorded
    assert len(recorded.backward) == 62
    assert recorded.backward[-1].name == "conv1.weight"
    assert recorded.origin["device"]
    assert recorded.origin["precision"] == precision
