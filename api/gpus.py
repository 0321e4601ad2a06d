"""What NVML says of the machine's GPUs. Without a driver or the library the list is empty."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("tsd.api.gpus")


class GpuReader:
    """Blocking calls: run them in a thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] | None = None

    def read(self) -> list[dict[str, Any]]:
        if self._handles is None:
            self._handles = self._open()
        return [self._one(index, handle) for index, handle in enumerate(self._handles)]

    def _open(self) -> list[Any]:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except Exception as error:  # no library, no driver: NVML raises its own kinds
            log.debug("no GPU figures: %s", error)
            return []

    def _one(self, index: int, handle: Any) -> dict[str, Any]:
        nvml = self._nvml

        def ask(call: Any, *arguments: Any) -> Any:
            try:
                return call(handle, *arguments)
            except nvml.NVMLError:
                return None

        memory = ask(nvml.nvmlDeviceGetMemoryInfo)
        rates = ask(nvml.nvmlDeviceGetUtilizationRates)
        power = ask(nvml.nvmlDeviceGetPowerUsage)
        limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
        name = ask(nvml.nvmlDeviceGetName)
        return {
            "index": index,
            "name": name.decode() if isinstance(name, bytes) else name,
            "util": rates.gpu / 100 if rates else None,
            "mem_used": memory.used if memory else None,
            "mem_total": memory.total if memory else None,
            "power_w": power / 1e3 if power is not None else None,
            "power_limit_w": limit / 1e3 if limit is not None else None,
            "temp_c": ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            "sm_mhz": ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            "mem_mhz": ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        }
