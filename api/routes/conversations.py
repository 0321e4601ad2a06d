"""`/v1/conversations`: items that clients keep here between responses."""

from __future__ import annotations

from aiohttp import web

from tsd.api.auth import CALLER
from tsd.api.body import read_json
from tsd.api.conversations import ConversationStore, KeptConversation
from tsd.api.front import front_of
from tsd.api.limits import check_count
from tsd.api.paging import page_of
from tsd.api.respond import json_response
from tsd.api.response_input import chat_messages, stored_items
from tsd.api.wire.conversations import (
    Conversation,
    ConversationRequest,
    ConversationUpdate,
    DeletedConversation,
    ItemsRequest,
)
from tsd.api.wire.responses import InputItem, ItemList

MOST_AT_ONCE = 20
"""Items that one request may add, as documented."""


def _kept(request: web.Request) -> tuple[ConversationStore, KeptConversation]:
    store = front_of(request).conversations
    return store, store.get(request.match_info["id"], request[CALLER].owner)


def _object(kept: KeptConversation) -> Conversation:
    return Conversation(kept.id, kept.created_at, kept.metadata)


def _checked(items: list[InputItem] | None) -> list[InputItem]:
    check_count("items", len(items or ()), MOST_AT_ONCE)
    chat_messages(items or [], "items")  # what could never be answered is refused now
    return items or []


async def create(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    body = await read_json(request, ConversationRequest, front.options.limits)
    items = stored_items(_checked(body.items))
    kept = KeptConversation(front.new_id("conv_"), request[CALLER].owner, body.metadata or {})
    front.conversations.put(kept, items)
    return json_response(_object(kept))


async def get(request: web.Request) -> web.StreamResponse:
    return json_response(_object(_kept(request)[1]))


async def update(request: web.Request) -> web.StreamResponse:
    store, kept = _kept(request)
    body = await read_json(request, ConversationUpdate, front_of(request).options.limits)
    store.describe(kept, body.metadata)
    return json_response(_object(kept))


async def delete(request: web.Request) -> web.StreamResponse:
    store, kept = _kept(request)
    store.delete(kept.id, kept.owner)
    return json_response(DeletedConversation(kept.id))


async def add_items(request: web.Request) -> web.StreamResponse:
    store, kept = _kept(request)
    body = await read_json(request, ItemsRequest, front_of(request).options.limits)
    items = stored_items(_checked(body.items))
    store.check_room(kept, len(items))
    store.add(kept, items)
    return json_response(ItemList(items, items[0]["id"] if items else None, items[-1]["id"] if items else None))


async def items(request: web.Request) -> web.StreamResponse:
    return json_response(page_of(_kept(request)[1].items, request.query))


async def get_item(request: web.Request) -> web.StreamResponse:
    store, kept = _kept(request)
    return json_response(store.item(kept, request.match_info["item"]))


async def delete_item(request: web.Request) -> web.StreamResponse:
    store, kept = _kept(request)
    store.remove_item(kept, request.match_info["item"])
    return json_response(_object(kept))
