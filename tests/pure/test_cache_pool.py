"""The page pool and the prefix index as Hypothesis state machines against plain dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tsd.cache.hashing import PageHasher
from tsd.cache.pool import PagePool, PoolError
from tsd.cache.probe import IndexProbe

PAGE = 2
SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)


class PoolMachine(RuleBasedStateMachine):
    """Pages out are distinct; a page comes back once."""

    @initialize(size=st.integers(0, 9))
    def start(self, size: int) -> None:
        self.size = size
        self.pool = PagePool(size)
        self.out: set[int] = set()

    @rule()
    def allocate(self) -> None:
        page = self.pool.allocate()
        if len(self.out) == self.size:
            assert page == -1
        else:
            assert 0 <= page < self.size and page not in self.out
            self.out.add(page)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.out:
            page = data.draw(st.sampled_from(sorted(self.out)))
            self.out.remove(page)
            self.pool.release(page)

    @rule(page=st.integers(-2, 11))
    def release_wrongly(self, page: int) -> None:
        if page not in self.out:
            with pytest.raises(PoolError):
                self.pool.release(page)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.free == self.size - len(self.out)
            count = self.pool.count()
            assert count["free"] == self.pool.free and count["active"] == len(self.out)
            self.pool.integrity()


class IndexMachine(RuleBasedStateMachine):
    """Users walk a chain, take what is cached, compute the rest, and leave. The model knows who holds what, and when
    each unheld page was last held."""

    @initialize(size=st.integers(3, 12))
    def start(self, size: int) -> None:
        self.size = size
        self.probe = IndexProbe(PageHasher(PAGE, b"test"), size)
        self.users: list[tuple[tuple[int, ...], list[int]]] = []
        self.cached: dict[tuple[int, ...], int] = {}
        """Path of page contents -> when it was last released (or -1 while held)."""
        self.clock = 0

    def path(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [tokens[: PAGE * (i + 1)] for i in range(len(tokens) // PAGE)]

    def held(self, path: tuple[int, ...]) -> bool:
        return any(path in self.path(tokens)[: len(nodes)] for tokens, nodes in self.users)

    def evict_one(self) -> None:
        """The model's eviction: the page released longest ago; ties never occur."""
        path = min((at, path) for path, at in self.cached.items() if not self.held(path))[1]
        assert not any(other[: len(path)] == path and other != path for other in self.cached), "a child outlived it"
        del self.cached[path]

    @precondition(lambda self: len(self.users) < 4)
    @rule(pages=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def arrive(self, pages: list[int]) -> None:
        tokens = tuple(token for page in pages for token in (page, page + 10))
        paths = self.path(tokens)
        hit = 0
        while hit < len(paths) and paths[hit] in self.cached:
            hit += 1
        nodes = self.probe.match(np.array(tokens, np.int32))
        assert len(nodes) == hit
        self.users.append((tokens, nodes))
        free = self.size - len(self.cached)
        evictable = sum(not self.held(path) for path in self.cached)
        for k in range(hit, len(paths)):
            if free == 0 and evictable == 0:
                assert not self.probe.extend(nodes, np.array(tokens, np.int32))
                break
            if free == 0:
                self.evict_one()
                evictable -= 1
                free += 1
            assert self.probe.extend(nodes, np.array(tokens, np.int32))
            free -= 1
            self.cached[paths[k]] = -1

    @precondition(lambda self: bool(self.users))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.users) - 1))
        tokens, nodes = self.users.pop(at)
        self.probe.release(nodes)
        for path in reversed(self.path(tokens)[: len(nodes)]):
            if not self.held(path):
                self.clock += 1
                self.cached[path] = self.clock

    @rule()
    def flush(self) -> None:
        gone = [path for path in self.cached if not self.held(path)]
        assert self.probe.flush() == len(gone)
        for path in gone:
            del self.cached[path]

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "probe"):
            self.probe.integrity()
            assert self.probe.num_nodes == len(self.cached)
            assert self.probe.free == self.size - len(self.cached)


PoolMachine.TestCase.settings = SETTINGS
IndexMachine.TestCase.settings = SETTINGS
TestPool = PoolMachine.TestCase
TestIndex = IndexMachine.TestCase


def test_bins_show_each_bins_most_used_state() -> None:
    pool = PagePool(10)
    for _ in range(3):
        pool.allocate()
    width, states = pool.bins(5)
    assert width == 2 and len(states) == 5
    assert states[0] == 2 and states[2:] == bytes(3)
    assert PagePool(0).bins() == (1, b"")
    width, states = PagePool(1_000_003).bins()
    assert len(states) <= 4096 and width * len(states) >= 1_000_003
