"""Lists that are read a page at a time: `order`, `after` and `limit` of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsd.api.errors import InvalidRequest
from tsd.api.wire.responses import ItemList

MAX_PAGE = 100


def page_of(items: list[dict[str, Any]], query: Mapping[str, str]) -> ItemList:
    """Newest first unless `order=asc`; 20 unless `limit` says another number, up to 100."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 6 and 1 <= int(limit) <= MAX_PAGE):
        raise InvalidRequest(f"limit must be at least 1 and at most {MAX_PAGE}", param="limit", code="out_of_range")
    ordered = items if order == "asc" else items[::-1]
    after = query.get("after")
    if after:
        place = next((place for place, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise InvalidRequest("after names no item of this list", param="after")
        ordered = ordered[place + 1 :]
    page = ordered[: int(limit)]
    return ItemList(page, page[0]["id"] if page else None, page[-1]["id"] if page else None, len(ordered) > len(page))
