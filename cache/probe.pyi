from tsd.cache.hashing import PageHasher
from tsd.cache.pool import PagePool

def match_and_evict(hasher: PageHasher, pool: PagePool, pages: int, rounds: int) -> dict[str, float]: ...
