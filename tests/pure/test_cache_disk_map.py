"""Which nodes have a block on disk: never more than there is room for, the coldest given up first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tsd.cache.probe import DiskProbe


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=60), st.integers(1, 4))
def test_the_map_keeps_to_its_capacity_and_never_gives_up_a_write_on_its_way(
    moves: list[tuple[int, int]], capacity: int
) -> None:
    disk = DiskProbe(capacity)
    order: list[int] = []
    storing: set[int] = set()
    for kind, number in moves:
        readable = [one for one in order if one not in storing]
        if kind == 0:
            evicted = disk.reserve(number)
            if evicted is None:
                assert number in order or len(storing) == capacity
            else:
                assert number not in order and evicted == readable[: len(evicted)]
                order = [one for one in order if one not in evicted] + [number]
                storing.add(number)
        elif kind == 1 and storing:
            done = storing.pop()
            disk.stored(done, number % 2 == 0)
            if number % 2:
                order.remove(done)
        elif kind == 2 and number in readable:
            disk.drop(number)
            order.remove(number)
        elif kind == 3 and number in order:
            disk.touch(number)
            order.remove(number)
            order.append(number)
        elif kind == 4:
            taken = disk.adopt(number)
            assert taken == (number in order or len(order) < capacity)
            if taken and number not in order:
                order.insert(0, number)
        assert [number for number in range(8) if disk.readable(number)] == sorted(set(order) - storing)
        assert disk.storing == len(storing) and disk.used == len(order) <= capacity
        disk.integrity()
    assert disk.clear() == len(order) - len(storing)
    assert disk.num_nodes == disk.used == len(storing)


def test_the_coldest_block_is_given_up() -> None:
    disk = DiskProbe(2)
    for number in (1, 2):
        assert disk.reserve(number) == []
        disk.stored(number, True)
    disk.touch(1)
    assert disk.reserve(3) == [2]
    assert not disk.adopt(9)


def test_blocks_found_at_the_start_are_given_up_oldest_first() -> None:
    disk = DiskProbe(3)
    assert all(disk.adopt(number) for number in (3, 2, 1)), "the last used comes first"
    assert [disk.reserve(number) for number in (4, 5)] == [[1], [2]]
