"""What clients leave in a front is bounded in number and in bytes, and one rule says what goes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from tsd.api import conversations, response_store
from tsd.api.conversations import ConversationStore, KeptConversation
from tsd.api.errors import NotFound
from tsd.api.kept import KeptStore
from tsd.api.response_store import ResponseStore, Stored


class Thing(NamedTuple):
    owner: str


MINE, OTHERS = Thing("me"), Thing("other")


def names(store: KeptStore[Thing]) -> str:
    """Of those that are kept; looking at them does not count as use."""
    return "".join(name for name in "abcdefgh" if name in store)


def test_the_longest_unused_goes_first() -> None:
    store: KeptStore[Thing] = KeptStore("thing", 3, 100)
    for name in "abc":
        store.keep(name, MINE, 10)
    assert store.get("a", "me") is MINE
    store.keep("d", MINE, 10)
    assert names(store) == "acd"
    store.grow("c", 5)
    store.keep("e", MINE, 10)
    assert names(store) == "cde" and store.held == 35 and len(store) == 3


def test_bytes_are_bounded_too() -> None:
    store: KeptStore[Thing] = KeptStore("thing", 100, 100)
    for name in "abc":
        store.keep(name, MINE, 30)
    store.keep("d", MINE, 70)
    assert names(store) == "cd" and store.held == 100
    store.grow("c", 1)
    assert names(store) == "c" and store.held == 31
    store.grow("c", -11)
    store.keep("e", MINE, 80)
    assert names(store) == "ce" and store.held == 100


def test_one_that_is_too_large_goes_itself() -> None:
    store: KeptStore[Thing] = KeptStore("thing", 100, 100)
    store.keep("a", MINE, 60)
    store.keep("b", MINE, 101)
    assert names(store) == "a"
    store.keep("b", MINE, 40)
    store.grow("a", 41)
    assert names(store) == "b" and store.held == 40
    store.keep("b", MINE, 101)
    assert names(store) == "" and store.held == 0
    store.grow("b", 5)
    assert store.held == 0


def test_another_in_its_place_is_counted_once() -> None:
    store: KeptStore[Thing] = KeptStore("thing", 2, 100)
    store.keep("a", MINE, 60)
    store.keep("b", MINE, 10)
    store.keep("a", OTHERS, 80)
    assert names(store) == "ab" and store.held == 90
    assert store.get("a", "other") is OTHERS


def test_only_its_owner_sees_one() -> None:
    store: KeptStore[Thing] = KeptStore("thing", 2, 100)
    store.keep("a", MINE, 60)
    for call in (store.get, store.delete):
        for name, owner in (("a", "other"), ("b", "me")):
            with pytest.raises(NotFound) as caught:
                call(name, owner)
            assert (caught.value.param, caught.value.code) == ("thing_id", "thing_not_found")
    assert store.delete("a", "me") is MINE
    assert store.held == 0 and names(store) == ""


def test_a_look_by_a_stranger_is_no_use() -> None:
    store: KeptStore[Thing] = KeptStore("thing", 2, 100)
    store.keep("a", MINE, 1)
    store.keep("b", MINE, 1)
    with pytest.raises(NotFound):
        store.get("a", "other")
    store.keep("c", MINE, 1)
    assert names(store) == "bc"


def test_conversations_count_their_items_and_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_BYTES", 2000)
    store = ConversationStore(2)
    first, second = (KeptConversation(name, "me", {"k": "v" * 100}) for name in ("conv_1", "conv_2"))
    items = [{"id": f"msg_{number}", "content": "x" * 100} for number in range(3)]

    def size(*parts: object) -> int:
        return sum(len(msgspec.json.encode(part)) for part in parts)

    store.put(first, items)
    assert store.held == size(first.metadata, *items)
    store.put(second, [])
    store.remove_item(first, "msg_1")
    store.describe(first, {})
    assert store.held == size(second.metadata, {}, items[0], items[2])
    store.describe(first, {"k": "v" * 1000})
    assert first.id not in store and second.id in store
    store.add(first, items)
    assert first.items == [items[0], items[2]]


def test_a_response_that_grew_too_large_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not left behind as it was while it ran."""
    monkeypatch.setattr(response_store, "MAX_BYTES", 1000)
    store = ResponseStore()
    store.put("resp_0", Stored("me", b"", [], [], 200))
    store.put("resp_1", Stored("me", b"", [], [], 100, background=True))
    store.put("resp_1", Stored("me", b"", [], [], 1001, background=True))
    assert "resp_1" not in store and "resp_0" in store
