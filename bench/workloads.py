"""The four fixed workloads that every result of this project is quoted on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """`sessions` of `turns` requests each, `concurrency` sessions at a time; lengths in tokens."""

    name: str
    dataset: str
    sessions: int
    concurrency: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    turns: int = 1

    @property
    def summary(self) -> str:
        if self.dataset == "agentic":
            return (
                f"{self.sessions} sessions × {self.turns} turns, {self.concurrency} at a time: "
                f"{self.prefix_len:,} tokens shared, +{self.input_len} new and {self.output_len} out a turn, "
                "history resent"
            )
        count = f"{self.sessions} requests, {self.concurrency} at a time"
        return f"{count}: {self.input_len:,} tokens in, {self.output_len} out"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("solo", "random", sessions=4, concurrency=1, input_len=128, output_len=256),
        Workload("steady", "random", sessions=64, concurrency=32, input_len=1024, output_len=128),
        Workload("agentic", "agentic", 64, 32, input_len=200, output_len=64, prefix_len=3000, turns=4),
        Workload("crowd", "random", sessions=512, concurrency=256, input_len=512, output_len=128),
    )
}
