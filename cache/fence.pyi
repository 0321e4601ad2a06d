from tsd.cache.pool import PagePool

class Fence:
    def __init__(self, pool: PagePool) -> None: ...
