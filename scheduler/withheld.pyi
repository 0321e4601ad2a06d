from tsd.cache.index import PrefixIndex

class Withheld:
    def __init__(self, index: PrefixIndex) -> None: ...
