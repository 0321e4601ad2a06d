"""Conversations that clients keep here, item by item, for `/v1/responses`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tsd.api.errors import InvalidRequest, NotFound
from tsd.api.kept import KeptStore

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


class ConversationStore(KeptStore[KeptConversation]):
    def __init__(self, fronts: int = 1) -> None:
        """One of `fronts` stores that share the bounds."""
        super().__init__("conversation", MAX_CONVERSATIONS // fronts, MAX_BYTES // fronts)

    def put(self, kept: KeptConversation, items: list[dict[str, Any]]) -> None:
        kept.items += items
        self.keep(kept.id, kept, _size(kept.metadata) + sum(map(_size, items)))

    @staticmethod
    def check_room(kept: KeptConversation, count: int) -> None:
        """Raises InvalidRequest when `count` more items would be too many."""
        if len(kept.items) + count > MAX_ITEMS:
            raise InvalidRequest(f"a conversation holds at most {MAX_ITEMS} items", param="items", code="too_many")

    def add(self, kept: KeptConversation, items: list[dict[str, Any]]) -> None:
        """Unless it was deleted meanwhile."""
        if kept.id in self:
            kept.items += items
            self.grow(kept.id, sum(map(_size, items)))

    def describe(self, kept: KeptConversation, metadata: dict[str, Any]) -> None:
        self.grow(kept.id, _size(metadata) - _size(kept.metadata))
        kept.metadata = metadata

    def remove_item(self, kept: KeptConversation, name: str) -> None:
        item = self.item(kept, name)
        kept.items.remove(item)
        self.grow(kept.id, -_size(item))

    @staticmethod
    def item(kept: KeptConversation, name: str) -> dict[str, Any]:
        found = next((item for item in kept.items if item["id"] == name), None)
        if found is None:
            raise NotFound("there is no such item", param="item_id", code="item_not_found")
        return found


def _size(item: dict[str, Any]) -> int:
    return len(msgspec.json.encode(item))
