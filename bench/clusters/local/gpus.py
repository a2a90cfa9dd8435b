"""The machine's GPUs: which node uses which, and their memory, load and clocks. Called by the local cluster.

The latter are read through NVIDIA's management library (nvidia-ml-py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proving_ground.bench.agent.machine import GPUS_VARIABLE, usable_gpus
from proving_ground.bench.agent.orders import SHARING
from proving_ground.bench.protocols import ProcessSpec
from proving_ground.bench.shell import counted


@dataclass(frozen=True)
class Allotment:
    """The machine's GPUs by node: the same number each, none if there are fewer GPUs than nodes. None: unknown.

    NCCL refuses two ranks on one GPU. So what chooses its device by itself computes on CPUs where nodes would share,
    unless it says that it shares.
    """

    usable: Sequence[str] | None = ()
    own: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[str], without: Sequence[int] = ()) -> Allotment:
        """Of the GPUs that the harness may use; nodes at the positions `without` need none."""
        usable = usable_gpus()
        computing = [name for at, name in enumerate(nodes) if at not in without]
        each = len(usable or ()) // len(computing)
        own = {name: (usable or ())[at * each : (at + 1) * each] for at, name in enumerate(computing)}
        return cls(usable, own)

    def variables(self, process: ProcessSpec) -> dict[str, str]:
        """What tells CUDA which GPUs a process may use; nothing where the machine has none, or one node all."""
        own = self.own.get(process.node, ())
        if (self.usable is not None and not self.usable) or len(self.own) == 1:
            return {}
        if own or not SHARING.items() <= process.env.items():
            return {GPUS_VARIABLE: ",".join(own)}
        if not self.usable or process.node not in self.own:
            return {}
        first = list(self.own).index(process.node) % len(self.usable)
        return {GPUS_VARIABLE: ",".join([*self.usable[first:], *self.usable[:first]])}

    def count(self, node: str) -> int | None:
        """GPUs that are the node's own; None: unknown, and all are."""
        return None if self.usable is None and len(self.own) == 1 else len(self.own.get(node, ()))

    @property
    def shared(self) -> int:
        """GPUs that ranks of several nodes may be on; where they cannot be counted, one."""
        return 1 if self.usable is None else len(self.usable)

    @property
    def withheld(self) -> str:
        """What a person has to know who expected training on GPUs; empty where nothing is withheld."""
        if not self.usable or any(self.own.values()):
            return ""
        few, many = counted(len(self.usable), "GPU"), counted(len(self.own), "node")
        return f"{few} for {many}: they compute on CPUs, unless device = 'cuda' and backend = 'gloo' let them share"


def states() -> list[dict[str, Any]]:
    """Name, `free_bytes` and `total_bytes` of every NVIDIA GPU, as the driver tells.

    Raises:
        OSError: there is none, or no driver for it.
        ImportError: nvidia-ml-py is not installed.
    """
    import pynvml  # noqa: PLC0415 - it may be missing

    try:
        pynvml.nvmlInit()
        try:
            return [_state(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise OSError(f"no NVIDIA GPU: {error}") from None


def _state(pynvml: Any, index: int) -> dict[str, Any]:  # noqa: ANN401 - a module without types
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    return {"name": str(pynvml.nvmlDeviceGetName(device)), "free_bytes": memory.free, "total_bytes": memory.total}


class Watcher:
    """Samples every GPU for `machine` events; where there is none, or no driver, there is nothing to sample."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        with contextlib.suppress(ImportError):
            import pynvml  # noqa: PLC0415 - it may be missing

            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._nvml = pynvml
                self._devices = [pynvml.nvmlDeviceGetHandleByIndex(it) for it in range(pynvml.nvmlDeviceGetCount())]

    def sample(self) -> dict[str, Any]:
        """`{"gpus": [one for each]}` with what its driver tells (`fields_of`); empty without GPUs."""
        if not self._devices:
            return {}
        return {"gpus": [{"index": index, **self._one(device)} for index, device in enumerate(self._devices)]}

    def _one(self, device: Any) -> dict[str, float]:  # noqa: ANN401 - a handle without a type
        found = {}
        for name, read in fields_of(self._nvml, device).items():
            with contextlib.suppress(self._nvml.NVMLError):  # not every GPU has every sensor: a gap, not a zero
                found[name] = read()
        return found

    def close(self) -> None:
        """Let go of the library; safe to call twice."""
        nvml, self._nvml, self._devices = self._nvml, None, []
        if nvml:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def fields_of(nvml: Any, device: Any) -> dict[str, Callable[[], float]]:  # noqa: ANN401 - a module without types
    """What is read of a GPU: time in which a kernel ran (%), bytes, W, °C, MHz, why clocks are held (bits)."""
    return {
        "utilisation": lambda: float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
        "memory_used": lambda: float(nvml.nvmlDeviceGetMemoryInfo(device).used),
        "memory_total": lambda: float(nvml.nvmlDeviceGetMemoryInfo(device).total),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
        "sm_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
        "memory_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM)),
        "throttle_reasons": lambda: float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)),
    }
