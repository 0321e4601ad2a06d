"""OpenAI's `/v1/conversations`: requests and objects."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.wire.responses import InputItem


class ConversationRequest(msgspec.Struct, kw_only=True):
    items: list[InputItem] | None = None
    metadata: dict[str, Any] | None = None


class ConversationUpdate(msgspec.Struct, kw_only=True):
    metadata: dict[str, Any]


class ItemsRequest(msgspec.Struct, kw_only=True):
    items: list[InputItem]


class Conversation(msgspec.Struct):
    id: str
    created_at: int
    metadata: dict[str, Any]
    object: str = "conversation"


class DeletedConversation(msgspec.Struct):
    id: str
    deleted: bool = True
    object: str = "conversation.deleted"
