"""Public ids, which say what front made them: `chatcmpl-02…` lives in front 2. Knows no request."""

from __future__ import annotations

import secrets

MAX_FRONTS = 256
_HEX = 32


def new_id(prefix: str, front: int) -> str:
    """`prefix`, two hexadecimal digits for the front, thirty that nobody can guess."""
    return f"{prefix}{front:02x}{secrets.token_hex(_HEX // 2 - 1)}"


def front_of_id(name: str) -> int | None:
    """The front that an id names; None for what is not an id of ours."""
    digits = name[-_HEX:]
    if len(digits) < _HEX or not all(digit in "0123456789abcdef" for digit in digits):
        return None
    return int(digits[:2], 16)
