"""Conversations that clients keep here, item by item, for `/v1/responses`: bounded in number and in bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tsd.api.errors import InvalidRequest, NotFound

MAX_CONVERSATIONS = 2048
MAX_ITEMS = 16_384
MAX_BYTES = 128 * 1024 * 1024


@dataclass
class KeptConversation:
    id: str
    owner: str
    metadata: dict[str, Any]
    created_at: int = field(default_factory=lambda: int(time.time()))
    items: list[dict[str, Any]] = field(default_factory=list)
    """Oldest first; each has an id."""
    size: int = 0


class ConversationStore:
    """The one that was longest unused goes first. Only its owner sees a conversation."""

    def __init__(self, fronts: int = 1) -> None:
        """One of `fronts` stores that share the bounds."""
        self._most = MAX_CONVERSATIONS // fronts
        self._most_bytes = MAX_BYTES // fronts
        self._kept: OrderedDict[str, KeptConversation] = OrderedDict()
        self._bytes = 0

    def put(self, kept: KeptConversation, items: list[dict[str, Any]]) -> None:
        self._kept[kept.id] = kept
        self.add(kept, items)

    def get(self, name: str, owner: str, param: str = "conversation_id") -> KeptConversation:
        """Raises NotFound for one that is not kept, or another's."""
        found = self._kept.get(name)
        if found is None or found.owner != owner:
            raise NotFound("there is no such conversation", param=param, code="conversation_not_found")
        self._kept.move_to_end(name)
        return found

    @staticmethod
    def check_room(kept: KeptConversation, count: int) -> None:
        """Raises InvalidRequest when `count` more items would be too many."""
        if len(kept.items) + count > MAX_ITEMS:
            raise InvalidRequest(f"a conversation holds at most {MAX_ITEMS} items", param="items", code="too_many")

    def add(self, kept: KeptConversation, items: list[dict[str, Any]]) -> None:
        """Unless it was deleted meanwhile."""
        if kept.id not in self._kept:
            return
        kept.items += items
        self._resize(kept, sum(map(_size, items)))
        while len(self._kept) > self._most or (self._bytes > self._most_bytes and self._kept):
            _, old = self._kept.popitem(last=False)
            self._bytes -= old.size

    def remove_item(self, kept: KeptConversation, name: str) -> None:
        item = self.item(kept, name)
        kept.items.remove(item)
        self._resize(kept, -_size(item))

    @staticmethod
    def item(kept: KeptConversation, name: str) -> dict[str, Any]:
        found = next((item for item in kept.items if item["id"] == name), None)
        if found is None:
            raise NotFound("there is no such item", param="item_id", code="item_not_found")
        return found

    def delete(self, name: str, owner: str) -> None:
        self._bytes -= self.get(name, owner).size
        del self._kept[name]

    def _resize(self, kept: KeptConversation, change: int) -> None:
        kept.size += change
        self._bytes += change


def _size(item: dict[str, Any]) -> int:
    return len(msgspec.json.encode(item))
