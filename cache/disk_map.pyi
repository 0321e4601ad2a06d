class DiskMap:
    capacity: int
    used: int
    storing: int
    def integrity(self) -> None: ...
