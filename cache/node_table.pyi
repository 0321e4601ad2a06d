class IndexFault(RuntimeError): ...

class NodeTable:
    page_size: int
    capacity: int
    num_nodes: int
