"""The GPUs of the exporter's machine, through NVIDIA's management library (nvidia-ml-py); nothing where there is none.

Called by `monitoring.exporter`. Tested with a double of the library; untried on hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from proving_ground.monitoring.board import Board

SAMPLED: dict[str, tuple[str, float]] = {
    "utilisation": ("gpu_utilization_ratio", 0.01),
    "memory_used": ("gpu_memory_used_bytes", 1),
    "memory_total": ("gpu_memory_total_bytes", 1),
    "temperature_c": ("gpu_temperature_celsius", 1),
    "power_w": ("gpu_power_watts", 1),
    "sm_mhz": ("gpu_sm_clock_hertz", 1e6),
}
"""Field of a sample, as in `machine` events → metric, and what it is multiplied by."""

XID_WAIT_MS = 0


def put_gpu(board: Board, node: str, sample: Mapping[str, Any]) -> None:
    """Put one GPU's sample on the board; what its driver does not tell is a gap, not a zero."""
    for name, (metric, factor) in SAMPLED.items():
        if name in sample:
            board.set(metric, (node, str(sample["index"])), float(sample[name]) * factor)


class Gpus:
    """Reads every GPU at each scrape, and takes note of the critical errors that the driver reports."""

    def __init__(self, board: Board, node: str, nvml: Any = None) -> None:  # noqa: ANN401 - a module without types
        self._board, self._node = board, node
        self._nvml, self._devices, self._events = nvml or library(), [], None
        if self._nvml:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlInit()
                count = self._nvml.nvmlDeviceGetCount()
                self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
                self._listen()

    def __len__(self) -> int:
        return len(self._devices)

    def read(self) -> None:
        """Put what all GPUs tell now on the board."""
        for index, device in enumerate(self._devices):
            sample: dict[str, Any] = {"index": index}
            for name, ask in asked_of(self._nvml, device).items():
                with contextlib.suppress(self._nvml.NVMLError):  # not every GPU has every sensor
                    sample[name] = ask()
            put_gpu(self._board, self._node, sample)
            self._errors(index, device)
        self._xids()

    def _errors(self, index: int, device: Any) -> None:  # noqa: ANN401 - a handle without a type
        nvml = self._nvml
        kinds = {"true": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "false": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
        for corrected, kind in kinds.items():
            with contextlib.suppress(nvml.NVMLError):
                count = nvml.nvmlDeviceGetTotalEccErrors(device, kind, nvml.NVML_VOLATILE_ECC)
                self._board.set("gpu_ecc_errors_total", (self._node, str(index), corrected), float(count))

    def _listen(self) -> None:
        """Ask the driver to tell of critical errors; not every driver does."""
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        for device in self._devices:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
        self._events = events

    def _xids(self) -> None:
        """Take note of what the driver told since the last time; a time-out is its way to say: nothing."""
        if self._events is None:
            return
        with contextlib.suppress(self._nvml.NVMLError):
            while True:
                told = self._nvml.nvmlEventSetWait_v2(self._events, XID_WAIT_MS)
                index = self._nvml.nvmlDeviceGetIndex(told.device)
                self._board.add("gpu_xid_errors_total", (self._node, str(index), str(told.eventData)))


def library() -> Any:  # noqa: ANN401 - a module without types
    """nvidia-ml-py, or None where it is not installed."""
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: PLC0415 - it may be missing

        return pynvml
    return None


def asked_of(nvml: Any, device: Any) -> dict[str, Callable[[], float]]:  # noqa: ANN401 - a module without types
    """Field of a sample → how the driver is asked for it: %, bytes, °C, W, MHz."""
    return {
        "utilisation": lambda: float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
        "memory_used": lambda: float(nvml.nvmlDeviceGetMemoryInfo(device).used),
        "memory_total": lambda: float(nvml.nvmlDeviceGetMemoryInfo(device).total),
        "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        "sm_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
    }
