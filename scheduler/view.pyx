"""What operators see of single requests, pages and prefixes: read from the scheduler's records, on demand, never on a step.

Rows and prefixes cost time in the number of live requests; a page's owners in the number of pages they hold. Changes
nothing.
"""

from libc.stdint cimport int32_t

from tsd.cache.node_table cimport Node
from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.requests cimport Req

from tsd.cache.pool import STATE_NAMES
from tsd.scheduler.requests import STATE_LABELS

MAX_PAGES = 256


def request_rows(Scheduler s, double now, int limit=1000) -> list:
    """(id, state, age in s, prompt, cached, output, tokens/s, retractions, priority, payload) of live requests."""
    cdef Req* r
    cdef int output
    cdef double took
    rows = []
    for request_id, at in s.by_id.items():
        if len(rows) >= limit:
            break
        r = &s.requests.R[<int>at]
        output = r.num_tokens - r.num_prompt
        took = now - r.first_token if r.first_token >= 0 else 0.0
        rows.append(
            (
                request_id,
                STATE_LABELS[r.state],
                now - r.arrival,
                r.num_prompt,
                max(0, r.cached),
                output,
                (output - 1) / took if took > 0 and output > 1 else 0.0,
                r.retractions,
                r.priority,
                s.requests.payloads[<int>at],
            )
        )
    return rows


def hot_prefixes(Scheduler s, int limit=16) -> list:
    """The longest prefix that each running request shares with another, by references: {key, tokens, refs, hits, tier}.

    References fall along a chain, so the end of the shared part is found by bisection.
    """
    cdef Req* r
    cdef int32_t* chain
    cdef int low, high, middle, n
    cdef Node* node
    found = set()
    for at in s.by_id.values():
        r = &s.requests.R[<int>at]
        if r.slot < 0 or r.num_nodes == 0:
            continue
        chain = s.nodes + <size_t>r.slot * s.max_pages
        low, high = 0, r.num_nodes
        while low < high:
            middle = (low + high) // 2
            if chain[middle] >= 0 and s.index.nodes[chain[middle]].refs >= 2:
                low = middle + 1
            else:
                high = middle
        if low:
            found.add(chain[low - 1])
    rows = []
    for n in found:
        node = &s.index.nodes[n]
        rows.append(
            {
                "key": s.index.key_of(n).hex(),
                "tokens": node.depth * s.page_size,
                "refs": node.refs,
                "hits": node.hits,
                "tier": "device" if node.dev >= 0 else "host",
            }
        )
    rows.sort(key=lambda row: (-row["refs"], -row["hits"], row["key"]))
    return rows[:limit]


def page_detail(Scheduler s, int page_bin) -> dict:
    """The first MAX_PAGES pages of a bin of the page map: {page, state, owners, key, refs, hits}.

    Raises ValueError for a bin that does not exist.
    """
    cdef Req* r
    cdef int width, first, last, page, k, n
    width = s.pool.bins()[0]
    first = page_bin * width
    if page_bin < 0 or first >= s.pool.num_pages:
        raise ValueError(f"there is no bin {page_bin}")
    last = min(first + width, s.pool.num_pages)
    owners = {}
    for request_id, at in s.by_id.items():
        r = &s.requests.R[<int>at]
        if r.slot < 0:
            continue
        for k in range(r.num_pages):
            page = s.table[<size_t>r.slot * s.max_pages + k]
            if first <= page < last:
                owners.setdefault(page, []).append(request_id)
    pages = []
    for page in range(first, min(last, first + MAX_PAGES)):
        n = s.pool.node[page]
        pages.append(
            {
                "page": page,
                "state": STATE_NAMES[s.pool.state[page]],
                "owners": owners.get(page, []),
                "key": s.index.key_of(n).hex() if n >= 0 else None,
                "refs": s.index.nodes[n].refs if n >= 0 else len(owners.get(page, [])),
                "hits": s.index.nodes[n].hits if n >= 0 else 0,
            }
        )
    return {"bin": page_bin, "bin_pages": width, "pages": pages}
