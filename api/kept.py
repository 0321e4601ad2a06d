"""What clients leave here between requests, by name: bounded in number and in bytes. Knows not what it is."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from tsd.api.errors import NotFound


class Owned(Protocol):
    @property
    def owner(self) -> str: ...


T = TypeVar("T", bound=Owned)


class KeptStore(Generic[T]):
    """The one that was longest unused goes first; one that alone is over the bytes goes itself. Only its owner sees
    one."""

    def __init__(self, kind: str, most: int, most_bytes: int) -> None:
        """`kind` is its name in errors, as in `there is no such response`."""
        self.kind = kind
        self.held = 0
        """Bytes."""
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, name: str, kept: T, size: int) -> None:
        """A new one, or another in the place of one."""
        self._forget(name)
        self._kept[name] = kept
        self._sizes[name] = 0
        self.grow(name, size)

    def grow(self, name: str, change: int) -> None:
        """By `change` bytes, which may be negative; of no effect on one that is no longer kept."""
        if name not in self._kept:
            return
        self._kept.move_to_end(name)
        self._sizes[name] += change
        self.held += change
        if self._sizes[name] > self._most_bytes:
            self._forget(name)
        while len(self._kept) > self._most or self.held > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def get(self, name: str, owner: str, param: str | None = None) -> T:
        """Raises NotFound for one that is not kept, or another's."""
        found = self._kept.get(name)
        if found is None or found.owner != owner:
            param, code = param or f"{self.kind}_id", f"{self.kind}_not_found"
            raise NotFound(f"there is no such {self.kind}", param=param, code=code)
        self._kept.move_to_end(name)
        return found

    def delete(self, name: str, owner: str) -> T:
        """Raises NotFound, as `get`."""
        found = self.get(name, owner)
        self._forget(name)
        return found

    def _forget(self, name: str) -> None:
        if name in self._kept:
            del self._kept[name]
            self.held -= self._sizes.pop(name)
