from tsd.cache.hashing import PageHasher

STATE_LABELS: tuple[str, ...]

class IllegalTransition(RuntimeError): ...

class Requests:
    def __init__(self, size: int, page_size: int, hasher: PageHasher | None = None) -> None: ...
