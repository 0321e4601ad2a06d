"""Host and disk tiers: hits on each, copies that fail, and the reservations that must not wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import (
    ExecutionPlan,
    FinishedRequest,
    LayersLanded,
    Move,
    MoveDone,
    RequestSpec,
    SchedulerConfig,
    SchedulerFault,
    StepLanded,
)

PAGE = 4
WRONG = 99
"""The token of a step that read what a failed copy did not bring."""


class Tiered:
    """A scheduler with an executor that knows only what a page's content must be: the ids it holds, per tier."""

    def __init__(self, **sizes: Any) -> None:
        settings_ = {
            "max_num_seqs": 4,
            "max_model_len": 64,
            "num_pages": 16,
            "page_size": PAGE,
            "disk_threshold_pages": 1,
        }
        self.config = SchedulerConfig(**{**settings_, "hash_secret": b"fixed", **sizes})
        self.scheduler = Scheduler(self.config)
        self.device = np.zeros((self.config.num_pages, PAGE), np.int64)
        self.host = np.zeros((max(1, self.config.host_pages), PAGE), np.int64)
        self.disk: dict[bytes, np.ndarray] = {}
        self.table: dict[tuple[int, int], int] = {}
        self.moves: list[Move] = []
        self.log: list[str] = []
        self.cached: dict[int, int] = {}
        self.histories: dict[int, list[int]] = {}
        self.owner: dict[int, int] = {}
        self.ends: dict[int, FinishedRequest] = {}
        self.landing: list[tuple[ExecutionPlan, np.ndarray]] = []
        self.begun: dict[int, bool] = {}
        """Load-backs whose first layers are in place, and whether the rest will come."""
        self.tainted: set[int] = set()
        """Requests with steps launched that waited for a copy that will fail."""

    def submit(self, request_id: int, prompt: np.ndarray, max_tokens: int = 1) -> None:
        self.histories[request_id] = prompt.tolist()
        self.scheduler.submit(RequestSpec(request_id, prompt, max_tokens), 0.0)

    def launch(self, plan: ExecutionPlan) -> None:
        for slot, index, page in zip(plan.table_slots, plan.table_index, plan.table_pages, strict=True):
            self.table[int(slot), int(index)] = int(page)
        for admission in plan.admitted:
            self.tainted.discard(admission.request_id)
            self.cached[admission.request_id] = admission.num_cached
            self.owner[admission.slot] = admission.request_id
        self.moves += plan.moves
        self.log += [move.kind for move in plan.moves]
        for move in self.moves:
            # A step that waits runs when the copy has ended: what it will bring is there by then.
            if move.move_id in plan.waits and self.begun[move.move_id]:
                self.device[move.targets] = self.host[move.sources]
        doomed = any(not self.begun[move_id] for move_id in plan.waits)
        wrong = np.zeros(plan.num_rows, bool)
        for row in range(plan.num_rows):
            slot, start, count = int(plan.slots[row]), int(plan.starts[row]), int(plan.counts[row])
            owner = self.owner[slot]
            prompt = self.histories[owner]
            if doomed or owner in self.tainted:
                self.tainted.add(owner)
                wrong[row] = True
                continue
            for position in range(start + count):
                want = prompt[position] if position < len(prompt) else 3
                cell = self.table[slot, position // PAGE], position % PAGE
                if position >= start:
                    self.device[cell] = want
                assert self.device[cell] == want
        self.landing.append((plan, np.where(wrong, WRONG, 3).astype(np.int32)))

    def land(self) -> None:
        plan, tokens = self.landing.pop(0)
        outcome = self.scheduler.advance(StepLanded(plan.step, tokens), 0.0)
        assert outcome is not None and set(outcome.tokens.tolist()) <= {3}
        self.take()

    def take(self) -> None:
        for end in self.scheduler.take_finished():
            assert end.request_id not in self.ends
            self.ends[end.request_id] = end

    @property
    def blocked(self) -> bool:
        """Whether the next step to land waits for a copy."""
        return bool(self.landing) and any(move.move_id in self.landing[0][0].waits for move in self.moves)

    def begin(self, at: int = 0, ok: bool = True) -> None:
        """The first layers of the load-back at this place are in place; the rest will come if `ok`."""
        move = self.moves[at]
        assert move.kind == "load_back"
        self.begun[move.move_id] = ok
        self.scheduler.advance(LayersLanded(move.move_id), 0.0)

    def finish(self, at: int = 0, ok: bool = True) -> None:
        """Ends the copy at this place in the list of those on their way; what was begun ends as it was to."""
        move = self.moves.pop(at)
        ok = self.begun.pop(move.move_id, ok)
        good = -1
        pairs = list(zip(move.sources.tolist(), move.targets.tolist(), strict=True))
        if move.kind == "prefetch":
            good = 0
            while ok and good < len(pairs) and move.keys[good] in self.disk:
                self.host[pairs[good][1]] = self.disk[move.keys[good]]
                good += 1
            ok = good == len(pairs)
        elif move.kind == "discard":
            for key in move.keys:
                self.disk.pop(key, None)
        elif ok:
            for place, (source, target) in enumerate(pairs):
                if move.kind == "write_back":
                    self.host[target] = self.device[source]
                elif move.kind == "load_back":
                    self.device[target] = self.host[source]
                else:
                    self.disk[move.keys[place]] = self.host[source].copy()
        self.scheduler.advance(MoveDone(move.move_id, ok, good), 0.0)

    def settle(self, limit: int = 500) -> None:
        """Runs everything to its end, copies included."""
        for _ in range(limit):
            plan = self.scheduler.next_plan(0.0)
            if plan is not None:
                self.launch(plan)
            if self.landing and not self.blocked:
                self.land()
            elif self.moves:
                self.finish()
            elif plan is None:
                break
            self.scheduler.integrity()
        assert not self.scheduler.has_work


def ids(length: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + length, dtype=np.int32)


@pytest.mark.parametrize("length", [3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 1])
def test_cold_device_host_and_disk_runs_cache_the_same_tokens(length: int) -> None:
    one = Tiered(host_pages=40, disk_blocks=64)
    want = (length - 1) // PAGE * PAGE
    one.submit(1, ids(length))
    one.settle()
    one.submit(2, ids(length))
    one.settle()
    assert (one.cached[1], one.cached[2]) == (0, want)
    one.submit(3, ids(63, 1000))  # All 16 pages: pushes the others off the device.
    one.settle()
    one.submit(4, ids(length))
    one.settle()
    assert one.cached[4] == want and "load_back" in one.log
    again = Tiered(host_pages=40, disk_blocks=64)
    again.disk = one.disk
    again.scheduler.adopt_disk(list(one.disk))
    again.submit(5, ids(length))
    again.settle()
    assert again.cached[5] == want and again.log[:2] == ["prefetch", "load_back"]
    assert again.scheduler.counters["hit_disk"] == want == again.scheduler.counters["hit_host"]
    assert {end.reason for end in (*one.ends.values(), *again.ends.values())} == {"length"}


def test_two_host_hits_that_do_not_fit_together_both_finish() -> None:
    one = Tiered(num_pages=12, host_pages=40)
    for request_id, first in ((1, 0), (2, 1000)):
        one.submit(request_id, ids(36, first))
        one.settle()
    one.submit(3, ids(44, 5000))
    one.settle()
    one.submit(4, ids(36, 0), 8)
    one.submit(5, ids(36, 1000), 8)
    one.settle()
    assert one.ends[4].reason == one.ends[5].reason == "length"
    assert one.cached[4] == one.cached[5] == 32


def test_a_failed_load_is_recomputed_and_the_copy_not_trusted_again() -> None:
    one = Tiered(host_pages=40)
    one.submit(1, ids(13))
    one.settle()
    one.submit(2, ids(63, 1000))
    one.settle()
    one.submit(3, ids(13))
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None and plan.num_rows == 0 and [move.kind for move in plan.moves] == ["load_back"]
    assert one.scheduler.state_of(3) == "prefetching"
    one.launch(plan)
    one.finish(ok=False)
    one.settle()
    assert one.cached[3] == 0 and one.ends[3].reason == "length"
    assert one.scheduler.counters["hit_host"] == 0


def on_host(length: int = 13, **sizes: Any) -> Tiered:
    """A prompt of `length` tokens is in the host tier only."""
    one = Tiered(host_pages=40, **sizes)
    one.submit(1, ids(length))
    one.settle()
    for i in range(1 + (one.config.num_pages > 16)):
        one.submit(100 + i, ids(63, 1000 * (i + 1)))
        one.settle()
    one.log.clear()
    return one


def loading(one: Tiered, request_id: int, max_tokens: int = 4) -> int:
    """Submits the prompt on the host and has its copy ordered; its number."""
    one.submit(request_id, ids(13), max_tokens)
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None and [move.kind for move in plan.moves] == ["load_back"]
    one.launch(plan)
    one.land()
    return one.moves[-1].move_id


def test_a_prefill_starts_with_the_first_layers_and_its_step_waits_for_the_others() -> None:
    one = on_host()
    move = loading(one, 3)
    assert one.scheduler.next_plan(0.0) is None
    one.begin()
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None and plan.waits == (move,) and plan.starts.tolist() == [3 * PAGE]
    one.launch(plan)
    one.scheduler.integrity()
    behind = one.scheduler.next_plan(0.0)
    assert behind is not None and behind.num_decode == 1 and behind.waits == ()
    one.launch(behind)
    one.finish()
    one.scheduler.integrity()
    one.settle()
    assert one.ends[3].num_cached == 3 * PAGE == one.scheduler.counters["hit_host"]
    assert one.ends[3].num_output == 4 and one.ends[3].retractions == 0


@pytest.mark.parametrize("launched", [0, 1, 2])
def test_layers_that_fail_after_the_prefill_began_cost_what_it_computed_and_nothing_else(launched: int) -> None:
    one = on_host(max_in_flight=3)
    loading(one, 3)
    one.begin(ok=False)
    for _ in range(launched):
        plan = one.scheduler.next_plan(0.0)
        assert plan is not None and plan.num_rows == 1
        one.launch(plan)
    one.finish()
    one.scheduler.integrity()
    one.settle()
    assert one.ends[3].num_output == 4 and one.ends[3].reason == "length"
    assert one.ends[3].num_cached == 0 == one.scheduler.counters["hit_host"]
    assert one.ends[3].retractions == (launched > 0)
    assert one.scheduler.counters["dropped_tokens"] == launched
    one.submit(4, ids(13))
    one.settle()
    assert one.cached[4] == 3 * PAGE


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("launched", [0, 1, 2])
def test_abort_while_a_begun_prefill_waits_for_layers(launched: int, ok: bool) -> None:
    one = on_host(max_in_flight=3)
    loading(one, 3)
    one.begin(ok=ok)
    for _ in range(launched):
        plan = one.scheduler.next_plan(0.0)
        assert plan is not None
        one.launch(plan)
    assert one.scheduler.abort(3, 0.0)
    one.take()
    assert one.ends[3].reason == "abort"
    one.scheduler.integrity()
    one.finish()
    one.scheduler.integrity()
    one.settle()
    one.scheduler.flush_cache()
    tiers = one.scheduler.snapshot()["tiers"]
    assert tiers["device"]["free"] == 16 and tiers["host"]["free"] == 40


@pytest.mark.parametrize("ok", [True, False])
def test_a_begun_prefill_that_is_pushed_out_keeps_its_pages_until_its_copy_is_done(ok: bool) -> None:
    one = on_host(num_pages=20, max_in_flight=3)
    one.submit(9, ids(5, 5000), 30)
    move = loading(one, 3)
    assert one.scheduler.state_of(9) is not None
    one.begin()
    one.begun[move] = ok
    one.scheduler.debug_retract(1)
    plan = one.scheduler.next_plan(0.0)
    one.scheduler.debug_retract(0)
    assert one.scheduler.state_of(3) == "retracting"
    if plan is not None:
        one.launch(plan)
    one.scheduler.integrity()
    one.finish()
    one.scheduler.integrity()
    assert one.scheduler.state_of(3) == "retracted"
    one.settle()
    assert one.ends[3].num_output == 4 and one.ends[9].num_output == 30


def test_nobody_waits_for_the_layers_of_another() -> None:
    one = on_host(num_pages=32)
    one.submit(9, ids(5, 5000), 12)
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None and plan.num_rows == 1
    one.launch(plan)
    one.land()
    one.submit(3, ids(13), 4)
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None and plan.num_decode == 1
    one.launch(plan)
    one.begin()
    for _ in range(3):
        plan = one.scheduler.next_plan(0.0)
        assert plan is not None and plan.num_rows == plan.num_decode == 1 and plan.waits == ()
        one.launch(plan)
        one.land()
    one.finish()
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None and plan.num_rows == 2 and plan.waits == ()
    one.launch(plan)
    one.settle()
    assert one.ends[3].num_cached == 3 * PAGE


def test_a_step_may_not_land_before_the_copy_it_waits_for() -> None:
    one = on_host()
    loading(one, 3)
    one.begin()
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None
    one.launch(plan)
    with pytest.raises(SchedulerFault, match="before load-back"):
        one.land()


def test_rotten_disk_pages_are_a_miss_from_the_first_one_on() -> None:
    one = Tiered(host_pages=40, disk_blocks=64)
    one.submit(1, ids(17))
    one.settle()
    again = Tiered(host_pages=40, disk_blocks=64)
    again.scheduler.adopt_disk(list(one.disk))
    again.disk = dict(one.disk)
    chain = sorted(one.disk, key=lambda key: one.disk[key][0])
    del again.disk[chain[2]]
    again.submit(2, ids(17))
    again.settle()
    assert again.cached[2] == 2 * PAGE and again.ends[2].reason == "length"


def test_too_few_disk_pages_are_not_fetched() -> None:
    one = Tiered(host_pages=40, disk_blocks=64)
    one.submit(1, ids(9))
    one.settle()
    again = Tiered(host_pages=40, disk_blocks=64, disk_threshold_pages=3)
    again.scheduler.adopt_disk(list(one.disk))
    again.submit(2, ids(9))
    again.settle()
    assert again.cached[2] == 0 and "prefetch" not in again.log


@pytest.mark.parametrize("kind", ["load_back", "prefetch"])
def test_abort_while_copies_are_on_their_way_frees_everything_when_they_land(kind: str) -> None:
    one = Tiered(host_pages=40, disk_blocks=64)
    one.submit(1, ids(13))
    one.settle()
    if kind == "load_back":
        one.submit(2, ids(63, 1000))
        one.settle()
    else:
        disk = one.disk
        one = Tiered(host_pages=40, disk_blocks=64)
        one.disk = disk
        one.scheduler.adopt_disk(list(disk))
    one.submit(3, ids(13), 5)
    plan = one.scheduler.next_plan(0.0)
    assert plan is not None
    one.launch(plan)
    assert one.log[-1] == kind
    assert one.scheduler.abort(3, 0.0)
    assert not one.scheduler.abort(3, 0.0)
    one.take()
    assert one.ends[3].reason == "abort"
    one.scheduler.integrity()
    one.settle()
    one.scheduler.flush_cache()
    tiers = one.scheduler.snapshot()["tiers"]
    assert tiers["device"]["free"] == 16 and tiers["host"]["free"] == 40


def test_no_host_tier_without_a_prefix_cache() -> None:
    one = Tiered(host_pages=40, disk_blocks=8, prefix_cache=False)
    one.submit(1, ids(13))
    one.settle()
    one.submit(2, ids(13))
    one.settle()
    assert one.log == [] and one.cached == {1: 0, 2: 0}
    assert one.scheduler.snapshot()["tiers"]["host"] is None


class TierMachine(RuleBasedStateMachine):
    """Requests, steps and copies in any order; the books balance after each and everything ends."""

    @initialize(pages=st.integers(8, 20), host=st.integers(0, 12), blocks=st.integers(0, 12), flights=st.integers(1, 3))
    def start(self, pages: int, host: int, blocks: int, flights: int) -> None:
        self.one = Tiered(
            num_pages=pages,
            host_pages=host,
            disk_blocks=blocks,
            max_in_flight=flights,
            max_model_len=30,
            max_num_seqs=3,
        )
        self.pages = pages
        self.next_id = 1

    @rule(family=st.integers(0, 2), length=st.integers(1, 24), max_tokens=st.integers(1, 8))
    def submit(self, family: int, length: int, max_tokens: int) -> None:
        self.one.submit(self.next_id, ids(length, family * 100), max_tokens)
        self.next_id += 1

    @rule()
    def plan(self) -> None:
        plan = self.one.scheduler.next_plan(0.0)
        if plan is not None:
            self.one.launch(plan)

    @precondition(lambda self: bool(self.one.landing) and not self.one.blocked)
    @rule()
    def land(self) -> None:
        self.one.land()

    @precondition(lambda self: bool(self.one.moves))
    @rule(data=st.data(), ok=st.sampled_from([True, True, False]))
    def finish(self, data: st.DataObject, ok: bool) -> None:
        self.one.finish(data.draw(st.integers(0, len(self.one.moves) - 1)), ok)

    @rule(ok=st.sampled_from([True, True, False]))
    def begin(self, ok: bool) -> None:
        for at, move in enumerate(self.one.moves):
            if move.kind == "load_back" and move.move_id not in self.one.begun:
                self.one.begin(at, ok)
                return

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(1, self.next_id))
        live = request_id < self.next_id and request_id not in self.one.ends
        assert self.one.scheduler.abort(request_id, 0.0) == live
        self.one.take()

    @rule()
    def flush(self) -> None:
        self.one.scheduler.flush_cache()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "one"):
            self.one.scheduler.integrity()

    def teardown(self) -> None:
        if hasattr(self, "one"):
            self.one.settle()
            assert set(self.one.ends) == set(range(1, self.next_id))
            self.one.scheduler.flush_cache()
            assert self.one.scheduler.snapshot()["tiers"]["device"]["free"] == self.pages


TierMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestTiers = TierMachine.TestCase
