from collections.abc import Callable

from tsd.scheduler.core import Scheduler
from tsd.scheduler.simulation.knobs import Knobs
from tsd.scheduler.simulation.subscriber import Subscriber

class World:
    scheduler: Scheduler
    subscriber: Subscriber
    step: int
    deaths: int
    counters: dict[str, int]
    tokens_checked: int
    def __init__(self, start: Callable[[], Scheduler], seed: int, knobs: Knobs, disk: dict[bytes, bytes]) -> None: ...
    def run(self, steps: int) -> None: ...
    def drain(self) -> None: ...
    def close(self) -> dict[str, int]: ...
