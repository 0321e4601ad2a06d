import numpy as np

from tsd.engine.executor.blocks import StepBlocks
from tsd.engine.executor.wake import Landing
from tsd.scheduler.types import ExecutionPlan

class GreedySteps:
    padded_rows: int
    def __init__(self, blocks: StepBlocks, landing: Landing, likeliest: np.ndarray, page_table: np.ndarray) -> None: ...
    def serve(self, graphs: dict[int, int]) -> None: ...
    def launch(self, plan: ExecutionPlan) -> int: ...
