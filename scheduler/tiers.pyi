from tsd.cache.index import PrefixIndex

class Tiers:
    def __init__(self, index: PrefixIndex, disk_blocks: int, threshold: int) -> None: ...
