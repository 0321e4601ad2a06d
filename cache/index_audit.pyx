"""The full check of the prefix index: every count, list and relation is looked at again. Changes nothing."""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from tsd.cache.index cimport PrefixIndex
from tsd.cache.node_table cimport NODE_LOOSE, Node
from tsd.cache.pool cimport PAGE_FREE

from tsd.cache.node_table import IndexFault


def audit(PrefixIndex index, bint thorough=True) -> None:
    """Raises IndexFault on any contradiction. O(the most nodes there ever were)."""
    cdef int i, n, count = 0, steps = 0
    cdef int32_t* children = <int32_t*>calloc(index.high + 1, sizeof(int32_t))
    cdef int32_t* hosts = <int32_t*>calloc(index.high + 1, sizeof(int32_t))
    cdef Node* node
    try:
        for i in range(index.high):
            node = &index.nodes[i]
            if not node.used:
                continue
            count += 1
            if not (node.dev >= 0 or node.host >= 0 or node.disk or node.refs or node.pins or node.children):
                raise IndexFault(f"node {i} stands for nothing")
            if node.used == NODE_LOOSE and (node.parent >= 0 or node.dev >= 0 or node.host >= 0 or node.children):
                raise IndexFault(f"node {i} has relatives or pages and is not known")
            if thorough and index.seek(node.key, index.tokens + <size_t>i * index.page_size) != i:
                raise IndexFault(f"node {i} cannot be found by its key")
            if node.parent >= 0:
                if not index.nodes[node.parent].used:
                    raise IndexFault(f"node {i} outlived its parent {node.parent}")
                children[node.parent] += 1
                if node.host >= 0:
                    hosts[node.parent] += 1
                if node.dev >= 0 and index.nodes[node.parent].dev < 0:
                    raise IndexFault(f"node {i} is on the device, its parent {node.parent} is not")
                if node.refs > 0 and index.nodes[node.parent].refs == 0:
                    raise IndexFault(f"node {i} is referenced, its parent {node.parent} is not")
            if node.refs < 0 or node.pins < 0:
                raise IndexFault(f"node {i} has a negative count")
            if node.dev >= 0 and (index.device.node[node.dev] != i or index.device.state[node.dev] == PAGE_FREE):
                raise IndexFault(f"device page {node.dev} does not belong to its node {i}")
            if node.host >= 0 and (index.host.node[node.host] != i or index.host.state[node.host] == PAGE_FREE):
                raise IndexFault(f"host page {node.host} does not belong to its node {i}")
        for i in range(index.high):
            if index.nodes[i].used and children[i] != index.nodes[i].children:
                raise IndexFault(f"node {i} counts {index.nodes[i].children} children and has {children[i]}")
            if index.nodes[i].used and hosts[i] != index.nodes[i].host_children:
                raise IndexFault(f"node {i} counts {index.nodes[i].host_children} host children, has {hosts[i]}")
        if count != index.num_nodes:
            raise IndexFault(f"{count} nodes are in use, {index.num_nodes} counted")
        n = index.dhead
        while n >= 0:
            if index.nodes[n].refs or index.nodes[n].dev < 0 or steps > index.capacity:
                raise IndexFault(f"node {n} is on the eviction list wrongly")
            steps += 1
            n = index.nodes[n].dnext
        if steps != index.evictable:
            raise IndexFault(f"{steps} nodes are evictable, {index.evictable} counted")
        steps = 0
        n = index.hhead
        while n >= 0:
            if index.nodes[n].pins or index.nodes[n].host < 0 or steps > index.capacity:
                raise IndexFault(f"node {n} is on the host eviction list wrongly")
            steps += 1
            n = index.nodes[n].hnext
        if steps != index.host_evictable:
            raise IndexFault(f"{steps} host pages are evictable, {index.host_evictable} counted")
    finally:
        free(children)
        free(hosts)
