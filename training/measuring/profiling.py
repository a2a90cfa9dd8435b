"""Profiles of real computation: recorded on a device, read back by `training.models.paced`.

Called by `pg training profile`. A profile says how long forward and the optimizer take, and when in backward
each gradient is ready. README.md, "Profiles", has the format.
"""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

FORMAT = 1
SHIPPED = Path(__file__).parents[1] / "profiles"
MODELS = {"resnet18": 224, "resnet50": 224, "resnet152": 224, "vit_b_16": 224}
"""torchvision models that can be recorded, and the side of their square input in pixels."""


class ProfileError(ValueError):
    """A profile that cannot be used or recorded, in one line. Exit status 2."""


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient: its name, shape, and the second of backward at which it is ready."""

    name: str
    shape: tuple[int, ...]
    ready_s: float


@dataclass(frozen=True)
class Profile:
    """One training step on one device; `backward` in the order in which gradients become ready."""

    model: str
    batch: int
    origin: dict[str, Any]
    forward_s: float
    backward_s: float
    optimizer_s: float
    backward: tuple[Gradient, ...]


def find(name: str) -> Path:
    """The file that a person means: a path, or the name of a shipped profile.

    Raises:
        ProfileError: neither; names the shipped ones.
    """
    for path in (Path(name), SHIPPED / f"{name}.json"):
        if path.is_file():
            return path
    raise ProfileError(
        f"profile = {name!r}: no such file; shipped: {', '.join(sorted(path.stem for path in SHIPPED.glob('*.json')))}"
    )


def read(path: Path) -> Profile:
    """A profile from its file, checked.

    Raises:
        ProfileError: unreadable, another format, or times that cannot be.
    """
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ProfileError(f"{path}: format {document['format']!r}; this version reads format {FORMAT}")
        gradients = tuple(
            Gradient(entry["name"], tuple(entry["shape"]), float(entry["ready_s"])) for entry in document["backward"]
        )
        times = {name: float(document[name]) for name in ("forward_s", "backward_s", "optimizer_s")}
        profile = Profile(
            document["model"], int(document["batch"]), dict(document["origin"]), **times, backward=gradients
        )
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path}: not a profile: {type(error).__name__} {error}") from None
    except ValueError as error:
        raise error if isinstance(error, ProfileError) else ProfileError(f"{path}: not a profile: {error}") from None
    ready = [gradient.ready_s for gradient in gradients]
    if (
        not ready
        or min(ready) < 0
        or ready != sorted(ready)
        or ready[-1] > profile.backward_s
        or min(times.values()) < 0
    ):
        raise ProfileError(
            f"{path}: times must not be negative, `backward` must be in order of ready_s and end by backward_s"
        )
    return profile


def write(profile: Profile, path: Path) -> None:
    """Write a profile for `read`, one gradient a line."""
    document = {"format": FORMAT, **asdict(profile)}
    lines = ",\n  ".join(json.dumps(entry) for entry in document.pop("backward"))
    head = json.dumps(document, indent=1).rstrip("}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "backward": [\n  {lines}\n ]\n}}\n')


def record(
    name: str, batch: int, device: torch.device, *, threads: int, precision: str = "fp32", repeats: int = 7
) -> Profile:  # fmt: skip
    """Run a few real training steps of a torchvision model and keep the fastest: what else runs can only add time.

    Raises:
        ProfileError: a model or batch that cannot be recorded.
    """
    if name not in MODELS or batch < 1:
        wanted = f"the model must be one of {', '.join(MODELS)}, the batch at least 1"
        raise ProfileError(f"model {name!r}, batch {batch}: {wanted}")
    import torch  # noqa: PLC0415 - reading a profile needs no torch
    from torchvision.models import get_model  # noqa: PLC0415 - same

    from proving_ground.training.device.precision import DTYPES  # noqa: PLC0415 - same

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = get_model(name, weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, MODELS[name], MODELS[name], device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)
    recorder = Recorder(model, device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES):
            return torch.nn.functional.cross_entropy(model(images).float(), labels)

    def step() -> dict[str, float]:
        optimizer.zero_grad()
        return recorder.step(loss, optimizer.step)

    for _ in range(2):  # allocations, first-use compilation
        step()
    steps = sorted((step() for _ in range(repeats)), key=lambda times: times["forward_s"] + times["backward_s"])
    shapes = {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}
    origin = {
        "measured": True,
        "device": device_name(device),
        "threads": threads,
        "precision": precision,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "statistic": f"the fastest of {repeats} steps",
        "others_s": [round(times["forward_s"] + times["backward_s"], 4) for times in steps[1:]],
    }
    return assemble(name, batch, origin, shapes, {key: round(value, 6) for key, value in steps[0].items()})


def assemble(
    name: str, batch: int, origin: dict[str, Any], shapes: dict[str, tuple[int, ...]], times: dict[str, float]
) -> Profile:
    """The profile of one recorded step: its gradients in the order in which they became ready."""
    gradients = [Gradient(key, shape, times[key]) for key, shape in shapes.items()]
    gradients.sort(key=lambda gradient: gradient.ready_s)
    backward_s = max(times["backward_s"], gradients[-1].ready_s)  # rounding may have swapped them
    return Profile(name, batch, origin, times["forward_s"], backward_s, times["optimizer_s"], tuple(gradients))


class Recorder:
    """Times one step: forward, the moment each gradient is ready, and the optimizer; on the device's own clock."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        from proving_ground.training.timing import cuda_stamp, read_cpu, read_cuda  # noqa: PLC0415 - reading a profile needs no torch

        on_gpu = device.type == "cuda"
        self._stamp: Callable[[], Any] = cuda_stamp if on_gpu else time.monotonic
        self._read: Callable[[float, list[Any]], list[float]] = read_cuda if on_gpu else read_cpu
        self._ready: dict[str, Any] = {}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        return lambda _parameter: self._ready.__setitem__(name, self._stamp())

    def step(self, forward: Callable[[], torch.Tensor], update: Callable[[], Any]) -> dict[str, float]:
        """Seconds of one step: forward_s, backward_s, optimizer_s, and by parameter's name its offset in backward."""
        self._ready.clear()
        stamps = [self._stamp()]
        loss = forward()
        stamps.append(self._stamp())
        loss.backward()  # type: ignore[no-untyped-call]
        stamps.append(self._stamp())
        update()
        stamps.append(self._stamp())
        begin, forward_end, backward_end, end, *ready = self._read(time.monotonic(), [*stamps, *self._ready.values()])
        offsets = {name: moment - forward_end for name, moment in zip(self._ready, ready, strict=True)}
        spans = {
            "forward_s": forward_end - begin,
            "backward_s": backward_end - forward_end,
            "optimizer_s": end - backward_end,
        }
        return spans | offsets


def device_name(device: torch.device) -> str:
    """The device as its maker calls it."""
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - reading a profile needs no torch

        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
