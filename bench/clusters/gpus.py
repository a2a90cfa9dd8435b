"""The memory of this machine's GPUs, which all nodes share. Called by the local cluster and the probe."""

from __future__ import annotations

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
