"""How fast steps go: step times and the gaps in which the device had nothing queued, over a short window."""

from __future__ import annotations

from collections import deque

import numpy as np

WINDOW = 512


class Pace:
    """A ring of the last steps. `launched` and `landed` cost well under a microsecond each."""

    def __init__(self) -> None:
        self.steps = 0
        self._step_ms: deque[float] = deque(maxlen=WINDOW)
        self._gap_us: deque[float] = deque(maxlen=WINDOW)
        self._last_landed = 0.0
        self._idle_since = 0.0

    def launched(self, now: float) -> None:
        if self._idle_since:
            self._gap_us.append((now - self._idle_since) * 1e6)
            self._idle_since = 0.0

    def landed(self, now: float, device_s: float, another_queued: bool) -> None:
        self.steps += 1
        if device_s:
            self._step_ms.append(device_s * 1e3)
        elif self._last_landed:
            self._step_ms.append((now - self._last_landed) * 1e3)
        self._last_landed = now
        if another_queued:
            self._gap_us.append(0.0)
        else:
            self._idle_since = now

    def rest(self) -> None:
        """Nothing is left to run: the time until the next arrival is no gap."""
        self._idle_since = 0.0

    def percentiles(self) -> dict[str, dict[str, float]]:
        def of(values: deque[float]) -> dict[str, float]:
            if not values:
                return {}
            low, high = np.percentile(np.fromiter(values, float), (50, 99))
            return {"p50": round(float(low), 4), "p99": round(float(high), 4)}

        return {"step_ms": of(self._step_ms), "host_gap_us": of(self._gap_us)}
