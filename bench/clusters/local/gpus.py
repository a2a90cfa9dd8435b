"""The machine's GPUs, which all nodes share: memory, load, clocks. Called by the local cluster and the probe.

Read through NVIDIA's management library (nvidia-ml-py). Tested with a double of that; untried on hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


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
