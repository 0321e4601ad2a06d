"""The thin side of the C kernels: takes addresses out of torch tensors, checks shapes, releases the GIL.

Knows tensors and layouts; the arithmetic is in the C files beside it, described in `ops.h`.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint16_t, uintptr_t
from libc.stdlib cimport free, malloc

import torch

from tsd.kernels.cpu.pack import pack


cdef extern from "ops.h" nogil:
    enum:
        TSD_F32
        TSD_BF16
        TSD_F16
        TSD_DENSE
        TSD_Q4
        TSD_Q8
        TSD_INT8
        TSD_PLAIN
        TSD_AVX2
        TSD_AVX512

    ctypedef struct tsd_linear:
        const void *x
        int xtype
        int silu_mul
        const void *norm
        int ntype
        float eps
        int method
        const void *qs
        const uint16_t *scales
        const float *row_scales
        int wtype
        const void *bias
        const void *residual
        void *y
        long T
        long K
        long N

    ctypedef struct tsd_rope:
        const void *qkv
        void *q
        void *k_cache
        void *v_cache
        const int32_t *positions
        const int32_t *slots
        const float *cos_sin
        const void *q_norm
        const void *k_norm
        float eps
        int xtype
        int kvtype
        int ntype
        long T
        long Hq
        long Hkv
        long D
        long R

    ctypedef struct tsd_attention:
        const void *q
        void *out
        const void *k_cache
        const void *v_cache
        const int32_t *positions
        const int32_t *query_start
        const int32_t *page_table
        int xtype
        int kvtype
        long rows
        long table_width
        long page_size
        long Hq
        long Hkv
        long D
        long largest
        long tile
        const int64_t *items
        float scale

    ctypedef struct tsd_norm:
        const void *x
        const void *weight
        void *y
        int xtype
        int wtype
        long T
        long K
        float eps

    ctypedef struct tsd_lookup:
        const void *ids
        int wide_ids
        const void *qs
        const uint16_t *scales
        const float *row_scales
        int method
        int wtype
        int ytype
        void *y
        long T
        long K
        long N

    ctypedef struct tsd_draw:
        const float *logits
        const float *temperature
        const float *top_p
        const float *min_p
        const int32_t *top_k
        const int64_t *seeds
        const int64_t *token_index
        int32_t *tokens
        long S
        long vocab
        int filtered

    int tsd_best_isa()
    int tsd_run_draw(tsd_draw *a, int isa)
    int tsd_run_linear(tsd_linear *a, int isa)
    int tsd_run_rope(tsd_rope *a, int isa)
    int tsd_run_attention(tsd_attention *a, long items, int isa)
    int tsd_run_norm(tsd_norm *a, int isa)
    int tsd_run_lookup(tsd_lookup *a, int isa)
    int tsd_set_threads(int threads)
    int tsd_get_threads()


cdef dict _TYPES = {torch.float32: TSD_F32, torch.bfloat16: TSD_BF16, torch.float16: TSD_F16}
cdef dict _METHODS = {"dense": TSD_DENSE, "q4_1": TSD_Q4, "q8_0": TSD_Q8, "int8": TSD_INT8}
cdef object _int32 = torch.int32
cdef object _int64 = torch.int64
cdef object _float32 = torch.float32
cdef object _empty = torch.empty

ISAS = ("plain", "avx2", "avx512")


def best_isa() -> str:
    """The widest instruction set of ISAS that this machine has."""
    return ISAS[tsd_best_isa()]


def set_threads(int threads) -> int:
    """How many threads, the caller's included, the kernels may use; returns how many they got."""
    return tsd_set_threads(threads)


def get_threads() -> int:
    return tsd_get_threads()


cdef class Packed:
    """The addresses of a weight in the grouped layout; keeps the tensors alive."""

    cdef readonly object weight
    cdef int method
    cdef int wtype
    cdef long N
    cdef long K
    cdef const void *qs
    cdef const uint16_t *scales
    cdef const float *row_scales

    def __init__(self, weight):
        """`weight` is a Weight in layout `x16` (see pack.py)."""
        self.weight = weight
        self.method = _METHODS[weight.method]
        self.N, self.K = weight.shape
        qs = weight.tensors["qs"]
        self.wtype = _TYPES[qs.dtype] if self.method == TSD_DENSE else 0
        self.qs = <const void *><uintptr_t>qs.data_ptr()
        self.scales = NULL
        self.row_scales = NULL
        if self.method == TSD_INT8:
            self.row_scales = <const float *><uintptr_t>weight.tensors["scales"].data_ptr()
        elif self.method != TSD_DENSE:
            self.scales = <const uint16_t *><uintptr_t>weight.tensors["scales"].data_ptr()


def prepare(weight):
    """`weight` in the grouped layout; asked again, the same tensors, so that a tied table is held once."""
    return _packed(weight).weight


cdef Packed _packed(weight):
    handle = weight.handle
    if type(handle) is not Packed:
        grouped = pack(weight)
        handle = Packed(grouped)
        grouped.handle = handle
        weight.handle = handle
    return <Packed>handle


cdef inline int _isa(isa) except -2:
    return -1 if isa is None else ISAS.index(isa)


cdef inline int _type(tensor) except -1:
    kind = _TYPES.get(tensor.dtype)
    if kind is None:
        raise TypeError(f"no CPU kernel for {tensor.dtype}")
    return kind


cdef inline const void *_address(tensor):
    return <const void *><uintptr_t>tensor.data_ptr()


cdef inline const int32_t *_words(tensor) except? NULL:
    if tensor.dtype is not _int32 or not tensor.is_contiguous():
        raise TypeError(f"batch tensors are contiguous int32, not {tensor.dtype}")
    return <const int32_t *><uintptr_t>tensor.data_ptr()


cdef int _done(int code) except -1:
    if code == -1:
        raise ValueError("this machine lacks that instruction set")
    if code == -2:
        raise IndexError("a token id is outside the embedding table")
    return 0


def linear(x, weight, *, bias=None, norm=None, double eps=0.0, act=None, residual=None, isa=None):
    """y [T, N]; see `gemm.reference.linear`. `isa` forces one of ISAS."""
    cdef Packed packed = _packed(weight)
    cdef tsd_linear a
    cdef int code, chosen = _isa(isa)
    if not x.is_contiguous():
        x = x.contiguous()
    a.xtype = _type(x)
    a.T, a.K, a.N = x.size(0), packed.K, packed.N
    a.silu_mul = act is not None
    if act is not None and act != "silu_mul":
        raise ValueError(f"unknown activation {act!r}")
    if x.dim() != 2 or x.size(1) != (2 * a.K if a.silu_mul else a.K):
        raise ValueError(f"x is {list(x.shape)} for a weight of {a.K} columns")
    a.x = _address(x)
    a.norm = NULL
    a.ntype = 0
    a.eps = eps
    if norm is not None:
        if norm.numel() != a.K or not norm.is_contiguous():
            raise ValueError(f"norm has {norm.numel()} values for {a.K} columns")
        a.norm = _address(norm)
        a.ntype = _type(norm)
    a.bias = NULL
    if bias is not None:
        if bias.numel() != a.N or bias.dtype is not x.dtype or not bias.is_contiguous():
            raise ValueError(f"bias is {bias.dtype} {list(bias.shape)} for {x.dtype} and {a.N} rows")
        a.bias = _address(bias)
    a.residual = NULL
    if residual is not None:
        if residual.numel() != a.T * a.N or residual.dtype is not x.dtype:
            raise ValueError(f"residual is {residual.dtype} {list(residual.shape)} for {x.dtype} [{a.T}, {a.N}]")
        if not residual.is_contiguous():
            residual = residual.contiguous()
        a.residual = _address(residual)
    y = _empty((a.T, a.N), dtype=x.dtype)
    a.y = <void *>_address(y)
    a.method = packed.method
    a.wtype = packed.wtype
    a.qs = packed.qs
    a.scales = packed.scales
    a.row_scales = packed.row_scales
    with nogil:
        code = tsd_run_linear(&a, chosen)
    _done(code)
    return y


def rms(x, weight, double eps, *, isa=None):
    """RMS norm of x [..., K]; see `norm.reference.rms`."""
    cdef tsd_norm a
    cdef int code, chosen = _isa(isa)
    if not x.is_contiguous():
        x = x.contiguous()
    a.K = x.size(x.dim() - 1)
    a.T = x.numel() // a.K if a.K else 0
    if weight.numel() != a.K or not weight.is_contiguous():
        raise ValueError(f"norm has {weight.numel()} values for {a.K} columns")
    y = torch.empty_like(x)
    a.x = _address(x)
    a.weight = _address(weight)
    a.y = <void *>_address(y)
    a.xtype = _type(x)
    a.wtype = _type(weight)
    a.eps = eps
    with nogil:
        code = tsd_run_norm(&a, chosen)
    _done(code)
    return y


def lookup(ids, weight, *, dtype=torch.float32, isa=None):
    """Rows of the table at ids [T]; see `embedding.reference.lookup`. Raises IndexError for an id outside it."""
    cdef tsd_lookup a
    cdef int code, chosen = _isa(isa)
    cdef Packed packed = _packed(weight)
    if ids.dtype is not _int32 and ids.dtype is not _int64:
        raise TypeError(f"ids are int32 or int64, not {ids.dtype}")
    if not ids.is_contiguous():
        ids = ids.contiguous()
    a.method = packed.method
    a.wtype = packed.wtype
    if a.method == TSD_DENSE:
        dtype = packed.weight.tensors["qs"].dtype
    a.ids = _address(ids)
    a.wide_ids = ids.dtype is _int64
    a.qs = packed.qs
    a.scales = packed.scales
    a.row_scales = packed.row_scales
    a.T, a.K, a.N = ids.numel(), packed.K, packed.N
    y = _empty((a.T, a.K), dtype=dtype)
    a.y = <void *>_address(y)
    a.ytype = _type(y)
    with nogil:
        code = tsd_run_lookup(&a, chosen)
    _done(code)
    return y


def rope_write(
    qkv, k_cache, v_cache, batch, cos_sin, *, long num_q, long num_kv, long head_dim,
    q_norm=None, k_norm=None, double eps=0.0, isa=None
):
    """Ropes q and k, writes K and V, returns q [T, num_q, head_dim]; see `attention.reference.rope_write`."""
    cdef tsd_rope a
    cdef int code, chosen = _isa(isa)
    if not qkv.is_contiguous():
        qkv = qkv.contiguous()
    a.T, a.Hq, a.Hkv, a.D, a.R = qkv.size(0), num_q, num_kv, head_dim, cos_sin.size(1)
    if qkv.size(1) != (num_q + 2 * num_kv) * head_dim or head_dim > 512 or a.R > head_dim:
        raise ValueError(f"qkv is {list(qkv.shape)} for {num_q} + 2 * {num_kv} heads of {head_dim}")
    if k_cache.size(2) != num_kv or k_cache.size(3) != head_dim or k_cache.dtype is not v_cache.dtype:
        raise ValueError(f"the cache is {list(k_cache.shape)} for {num_kv} heads of {head_dim}")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous() and cos_sin.is_contiguous()):
        raise ValueError("the caches and the rope table must be contiguous")
    if cos_sin.dtype is not _float32 or batch.positions.numel() < a.T or batch.kv_slots.numel() < a.T:
        raise ValueError("the rope table must be float32 and the batch at least as long as qkv")
    q = _empty((a.T, a.Hq, a.D), dtype=qkv.dtype)
    a.qkv = _address(qkv)
    a.q = <void *>_address(q)
    a.k_cache = <void *>_address(k_cache)
    a.v_cache = <void *>_address(v_cache)
    a.positions = _words(batch.positions)
    a.slots = _words(batch.kv_slots)
    a.cos_sin = <const float *>_address(cos_sin)
    a.q_norm = NULL
    a.k_norm = NULL
    a.ntype = 0
    for norm in (q_norm, k_norm):
        if norm is not None:
            if norm.numel() != head_dim or not norm.is_contiguous():
                raise ValueError(f"a head norm has {norm.numel()} values for heads of {head_dim}")
            a.ntype = _type(norm)
    if q_norm is not None:
        a.q_norm = _address(q_norm)
    if k_norm is not None:
        a.k_norm = _address(k_norm)
    a.eps = eps
    a.xtype = _type(qkv)
    a.kvtype = _type(k_cache)
    with nogil:
        code = tsd_run_rope(&a, chosen)
    _done(code)
    return q


def paged(q, k_cache, v_cache, batch, double scale, *, isa=None):
    """Causal attention over the paged cache -> [T, Hq * D]; see `attention.reference.paged`."""
    cdef tsd_attention a
    cdef int code, chosen = _isa(isa)
    cdef long row, first, length, count = 0, most, rows = batch.num_rows
    cdef int64_t *items
    if not q.is_contiguous():
        q = q.contiguous()
    a.Hq, a.D = q.size(1), q.size(2)
    a.page_size, a.Hkv = k_cache.size(1), k_cache.size(2)
    if k_cache.size(3) != a.D or a.Hq % a.Hkv or k_cache.dtype is not v_cache.dtype:
        raise ValueError(f"queries {list(q.shape)} do not fit a cache of {list(k_cache.shape)}")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("the caches must be contiguous")
    if batch.query_start.numel() <= rows or batch.page_table.size(0) < rows:
        raise ValueError("the batch has fewer rows than it says")
    out = _empty((q.size(0), a.Hq * a.D), dtype=q.dtype)
    a.q = _address(q)
    a.out = <void *>_address(out)
    a.k_cache = _address(k_cache)
    a.v_cache = _address(v_cache)
    a.positions = _words(batch.positions)
    a.query_start = _words(batch.query_start)
    a.page_table = _words(batch.page_table)
    a.xtype = _type(q)
    a.kvtype = _type(k_cache)
    a.rows = rows
    a.table_width = batch.page_table.size(1)
    a.scale = scale
    a.largest = 0
    a.tile = 48 // (a.Hq // a.Hkv)
    if a.tile < 1:
        a.tile = 1
    most = q.size(0) // a.tile + rows + 1
    if a.query_start[rows] > q.size(0):
        raise ValueError("the batch has more tokens than there are queries")
    if a.query_start[rows] < q.size(0):
        out[a.query_start[rows]:].zero_()
    items = <int64_t *>malloc(2 * most * sizeof(int64_t))
    if items is NULL:
        raise MemoryError
    with nogil:
        for row in range(rows):
            first = a.query_start[row]
            length = a.query_start[row + 1] - first
            if length > a.largest:
                a.largest = length
            while first < a.query_start[row + 1]:
                items[2 * count] = row
                items[2 * count + 1] = first
                count += 1
                first += a.tile
        a.items = items
        code = tsd_run_attention(&a, count, chosen)
        free(items)
    _done(code)
    return out


cdef const void *_row_values(tensor, dtype, long rows) except? NULL:
    if tensor.dtype is not dtype or tensor.numel() != rows or not tensor.is_contiguous():
        raise ValueError(f"a sampling parameter is {tensor.dtype} {list(tensor.shape)}, not {dtype} [{rows}]")
    return _address(tensor)


def draw(scores, state, *, isa=None):
    """Token ids [S] int32 for float32 scores [S, V] that carry their edits already; see `sampling.reference`."""
    cdef tsd_draw a
    cdef int code, chosen = _isa(isa)
    if scores.dtype is not _float32 or scores.dim() != 2 or scores.size(1) == 0:
        raise ValueError(f"scores are float32 [S, V], not {scores.dtype} {list(scores.shape)}")
    if not scores.is_contiguous():
        scores = scores.contiguous()
    a.S, a.vocab = scores.size(0), scores.size(1)
    tokens = _empty((a.S,), dtype=_int32)
    a.logits = <const float *>_address(scores)
    a.temperature = <const float *>_row_values(state.temperature, _float32, a.S)
    a.top_p = <const float *>_row_values(state.top_p, _float32, a.S)
    a.min_p = <const float *>_row_values(state.min_p, _float32, a.S)
    a.top_k = <const int32_t *>_row_values(state.top_k, _int32, a.S)
    a.seeds = <const int64_t *>_row_values(state.seeds, _int64, a.S)
    a.token_index = <const int64_t *>_row_values(state.token_index, _int64, a.S)
    a.tokens = <int32_t *>_address(tokens)
    a.filtered = bool(state.filtered)
    with nogil:
        code = tsd_run_draw(&a, chosen)
    _done(code)
    return tokens
