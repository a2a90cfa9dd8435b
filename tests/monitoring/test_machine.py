"""The machine and its GPUs: /proc as it is and as it may be, NVIDIA's library as a double."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.monitoring.board import Board
from proving_ground.monitoring.gpu import Gpus
from proving_ground.monitoring.node import put_node

PROC = {
    "stat": "cpu  100 0 50 1000 20 0 5 7 0 0\ncpu0 50 0 25 500 10 0 2 3 0 0\ncpu1 50 0 25 500 10 0 3 4 0 0\nintr 1\n",
    "meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n",
    "loadavg": "1.50 1.0 0.5 2/300 4711\n",
    "vmstat": "pgfault 12\noom_kill 3\n",
    "diskstats": "254 0 vda 10 0 200 0 5 0 40 0 0 0\n254 1 vda1 9 0 190 0 5 0 40 0 0 0\n7 0 loop0 1 0 8 0 0 0 0 0\n",
    "net/dev": "Inter-|x\n face |x\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: 700 5 0 0 0 0 0 0 300 4\n",
}


def made(folder: Path, without: str = "") -> Path:
    for name, text in PROC.items():
        if name != without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def test_proc_becomes_series(tmp_path: Path) -> None:
    board = Board()
    put_node(board, "h", tmp_path, made(tmp_path / "proc"))
    assert board.get("node_cores", ("h",)) == 2
    assert board.get("node_load1", ("h",)) == 1.5
    assert board.get("node_memory_total_bytes", ("h",)) == 2048 * 1024
    assert board.get("node_memory_available_bytes", ("h",)) == 1024 * 1024
    assert board.get("node_oom_kills_total", ("h",)) == 3
    assert board.values["node_disk_read_bytes_total"] == {("h", "vda"): 200 * 512}
    assert board.values["node_disk_written_bytes_total"] == {("h", "vda"): 40 * 512}
    assert board.values["node_network_receive_bytes_total"] == {("h", "eth0"): 700}
    assert board.values["node_network_transmit_bytes_total"] == {("h", "eth0"): 300}
    cpu = board.values["pg_node_cpu_seconds_total"]
    assert cpu["h", "user"] / cpu["h", "system"] == 2
    assert cpu["h", "steal"] < cpu["h", "idle"]
    assert (board.get("node_disk_free_bytes", ("h", str(tmp_path))) or 0) > 0


@pytest.mark.parametrize("name", PROC)
def test_what_cannot_be_read_is_a_gap_and_the_rest_is_there(name: str, tmp_path: Path) -> None:
    board = Board()
    put_node(board, "h", tmp_path, made(tmp_path / "proc", without=name))
    told = {metric for metric, held in board.values.items() if held} - {"exporter_series_refused_total"}
    whole = Board()
    put_node(whole, "h", tmp_path, made(tmp_path / "whole"))
    assert told < {metric for metric, held in whole.values.items() if held}
    assert len(told) >= 7


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_machine_tells(tmp_path: Path) -> None:
    board = Board()
    put_node(board, "h", tmp_path)
    assert (board.get("node_memory_total_bytes", ("h",)) or 0) > 10**8
    assert (board.get("node_cores", ("h",)) or 0) >= 1


class NvmlError(Exception):
    """What the library raises."""


class Nvml:
    """NVIDIA's library with two GPUs; the second has no sensor for power, and one Xid is told."""

    NVMLError = NvmlError
    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - its name

    def __init__(self) -> None:
        self.told = [SimpleNamespace(device=1, eventData=79)]

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetIndex": lambda device: device,
            "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=40 + device),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3, total=4),
            "nvmlDeviceGetTemperature": lambda device, _: 70 + device,
            "nvmlDeviceGetClockInfo": lambda _, __: 1410,
            "nvmlDeviceGetTotalEccErrors": lambda _, kind, __: 5 - kind,
            "nvmlEventSetCreate": object,
            "nvmlDeviceRegisterEvents": lambda *_: None,
        }
        return answers[name]

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802 - its name
        if device:
            raise NvmlError
        return 250_000

    def nvmlEventSetWait_v2(self, *_: object) -> SimpleNamespace:  # noqa: N802 - its name
        if not self.told:
            raise NvmlError  # its way to say: nothing yet
        return self.told.pop()


def test_gpus_become_series() -> None:
    board = Board()
    gpus = Gpus(board, "h", Nvml())
    assert len(gpus) == 2
    gpus.read()
    gpus.read()
    assert board.get("gpu_utilization_ratio", ("h", "1")) == pytest.approx(0.41)
    assert board.get("gpu_memory_used_bytes", ("h", "0")) == 3
    assert board.get("gpu_temperature_celsius", ("h", "0")) == 70
    assert board.values["gpu_power_watts"] == {("h", "0"): 250}  # a gap, not a zero
    assert board.get("gpu_sm_clock_hertz", ("h", "0")) == 1.41e9
    assert board.get("gpu_ecc_errors_total", ("h", "0", "true")) == 5
    assert board.get("gpu_ecc_errors_total", ("h", "0", "false")) == 4
    assert board.values["gpu_xid_errors_total"] == {("h", "1", "79"): 1}


def test_without_a_driver_there_is_nothing() -> None:
    class Absent(Nvml):
        def nvmlInit(self) -> None:  # noqa: N802 - its name
            raise NvmlError

    board = Board()
    gpus = Gpus(board, "h", Absent())
    gpus.read()
    assert len(gpus) == 0
    assert [name for name in board.values if name.startswith("gpu_")] == []
