"""How many floating-point operations a sample takes, from the network itself. Called by `training.loop` for `ready`.

The network is made once more of torch's fake tensors, with which nothing is computed or allocated and no random state
moves, and one forward and backward is counted by torch's FlopCounterMode: products and sums of matrix products,
convolutions and attention. Activations that are computed again are no work of the model, so they do not count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from proving_ground.training.config import Config
    from proving_ground.training.models.task import Task

PEAK_TFLOPS: dict[str, dict[str, float]] = {
    "H100": {"fp32": 67.0, "fp16": 989.0, "bf16": 989.0},
    "H200": {"fp32": 67.0, "fp16": 989.0, "bf16": 989.0},
    "A100": {"fp32": 19.5, "fp16": 312.0, "bf16": 312.0},
    "V100": {"fp32": 15.7, "fp16": 125.0},
}
"""GPU → precision → 10¹² operations a second, dense: NVIDIA's data sheets of the SXM versions. FP32 without TF32."""
OTHERS = re.compile(r"\b(MIG|PCIe|NVL)\b", re.IGNORECASE)
"""Of a name: a part of such a GPU, or a version that is slower."""


def per_sample(task: Task, samples: int = 2) -> float | None:
    """Operations of one sample's forward and backward; None where the network cannot be run without values."""
    if not task.learns:
        return None
    batch = task.batch("train", np.arange(min(samples, task.rows)))
    try:
        with torch.device("meta"):  # where initial values are none: some take values to be made
            model = task.model()
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            model.to_empty(device="cpu")
            batch = batch._replace(inputs=fake.from_tensor(batch.inputs), targets=fake.from_tensor(batch.targets))
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - a network of one's own that looks at its values, in whatever way
        return None
    return float(counter.get_total_flops()) / len(batch.rows)


def peak_tflops(device: torch.device, precision: str) -> float | None:
    """What the device can do in that precision, by its name; None where that is not known, as of a CPU.

    Nor is it of FP32 where torch may compute some of it in TF32, which is faster: convolutions, unless told.
    """
    if device.type != "cuda" or (precision == "fp32" and may_use_tf32()):
        return None
    name = torch.cuda.get_device_name(device)
    if OTHERS.search(name):
        return None
    return next((rates.get(precision) for gpu, rates in PEAK_TFLOPS.items() if re.search(rf"\b{gpu}\b", name)), None)


def may_use_tf32() -> bool:
    """Whether torch was left to compute convolutions or matrix products of FP32 in TF32."""
    return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32


def told(config: Config, task: Task, device: torch.device) -> dict[str, float]:
    """For the `ready` event: `flops_per_sample`, and `peak_tflops` of one device as configured or known."""
    peak = config.peak_tflops or peak_tflops(device, config.precision)
    found = {"flops_per_sample": per_sample(task), "peak_tflops": peak}
    return {name: value for name, value in found.items() if value}
