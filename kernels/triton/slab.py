"""Some rows (2 to 128) times a weight matrix, y[M,N] = x[M,K] · W[N,K]ᵀ, its weights on their way before x is there.

As in `skinny.py` the weights are the tall operand of `wgmma`, and SPLIT programs may share BN rows along K. What is
different is who moves the data: copies into shared memory are issued by hand, so that a program's first STAGES tiles
of W are asked for before it waits for the kernel that writes x. Where those are all of its tiles, it multiplies them in
one go once x has come. Gated, half of a tile's rows are of the gate and half of up, and meet in the end.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from tsd.kernels.triton.pdl import gdc_launch_dependents, gdc_wait

copy_tile = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
meet = getattr(gl, "barrier", None) or gl.thread_barrier
"""Their names in later releases of Triton, and in earlier ones."""


@gluon.jit(do_not_specialize=["M"])
def slab_kernel(
    x,
    w,
    bias,
    residual,
    y,
    partial,
    arrivals,
    M,
    N,
    K: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    BIAS: gl.constexpr,
    RESIDUAL: gl.constexpr,
    GATED: gl.constexpr,
    LEAVE: gl.constexpr,
    PDL: gl.constexpr,
):
    """x [M,K], w [N,K] (GATED: [2N,K] = gate rows then up rows), y [M,N]; K divides by BK * SPLIT. BN = 16 * num_warps.

    Programs are blocks of W by parts of K by blocks of BM rows of x. partial float32 [row blocks, SPLIT, blocks, BM,
    BN]; arrivals int32 [row blocks, blocks], zero before and after. With LEAVE the sums stay in `partial`, for
    `merge_kernel`.
    """
    if PDL:
        gdc_launch_dependents()
    WARPS: gl.constexpr = BN // 16
    SPAN: gl.constexpr = K // SPLIT
    STEPS: gl.constexpr = SPAN // BK
    COLUMNS: gl.constexpr = BN // 2 if GATED else BN
    kind: gl.constexpr = w.dtype.element_ty
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BK, BK // 8], [WARPS, 1], [1, 0])
    tiles: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], kind)
    inputs: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], kind)
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BM, 16])

    block = gl.program_id(0)
    part = gl.program_id(1)
    blocks = gl.num_programs(0)
    first = gl.program_id(2) * BM
    w_tiles = gl.allocate_shared_memory(kind, [STAGES, BN, BK], tiles)
    x_tiles = gl.allocate_shared_memory(kind, [STAGES, BM, BK], inputs)

    r = gl.arange(0, BN, gl.SliceLayout(1, copied))
    k = part * SPAN + gl.arange(0, BK, gl.SliceLayout(0, copied))
    m = first + gl.arange(0, BM, gl.SliceLayout(1, copied))
    n = block * COLUMNS + r % COLUMNS
    n = gl.where(n < N, n, 0) + gl.where(r < COLUMNS, 0, N)
    rows = w + n.to(gl.int64)[:, None] * K + k[None, :]
    columns = x + gl.where(m < M, m, 0).to(gl.int64)[:, None] * K + k[None, :]

    for stage in gl.static_range(STAGES):
        if stage < STEPS:
            copy_tile(w_tiles.index(stage), rows + stage * BK, eviction_policy="evict_first")
    async_copy.commit_group()
    if PDL:
        gdc_wait()
    for stage in gl.static_range(STAGES):
        if stage < STEPS:
            copy_tile(x_tiles.index(stage), columns + stage * BK)
        async_copy.commit_group()

    total = gl.zeros([BN, BM], gl.float32, sums)
    if STEPS <= STAGES:
        async_copy.wait_group(0)
        fence_async_shared()
        meet()
        for stage in gl.static_range(STEPS):
            total = warpgroup_mma(w_tiles.index(stage), x_tiles.index(stage).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(0, [total])
    else:
        for step in range(STEPS):
            turn = step % STAGES
            async_copy.wait_group(STAGES - 2)
            fence_async_shared()
            meet()  # all copies of this tile are there, and all warps are done with the tile before
            running = warpgroup_mma(w_tiles.index(turn), x_tiles.index(turn).permute((1, 0)), total, is_async=True)
            later = step - 1 + STAGES
            if step > 0 and later < STEPS:
                free = (step - 1) % STAGES
                copy_tile(w_tiles.index(free), rows + later * BK, eviction_policy="evict_first")
                copy_tile(x_tiles.index(free), columns + later * BK)
            async_copy.commit_group()
            total = warpgroup_mma_wait(0, [running])

    out_r = gl.arange(0, BN, gl.SliceLayout(1, sums))
    out_m = gl.arange(0, BM, gl.SliceLayout(0, sums))
    cell = out_r[:, None] + out_m[None, :] * BN
    group = gl.program_id(2) * SPLIT
    here = partial + ((group + part) * blocks + block) * (BM * BN)
    last = True
    if LEAVE:
        gl.store(here + cell, total)
    elif SPLIT > 1:
        gl.store(here + cell, total)
        meet()
        arrived = arrivals + gl.program_id(2) * blocks + block
        last = gl.atomic_add(arrived, 1, sem="acq_rel") == SPLIT - 1
        if last:
            total = gl.zeros([BN, BM], gl.float32, sums)
            for other in gl.static_range(SPLIT):
                total += gl.load(partial + ((group + other) * blocks + block) * (BM * BN) + cell, cache_modifier=".cg")
            gl.store(arrived, 0)
    if not LEAVE and last:
        if GATED:
            pairs: gl.constexpr = gl.BlockedLayout([1, 1, 2], [32, 1, 1], [1, WARPS, 1], [2, 0, 1])
            halves = gl.convert_layout(total.reshape([2, COLUMNS, BM]).permute((1, 2, 0)), pairs)
            gate, up = gl.split(halves)
            flat: gl.constexpr = gl.SliceLayout(2, pairs)
            spot = block * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(1, flat))
            to = first + gl.arange(0, BM, gl.SliceLayout(0, flat))
            live = (spot < N)[:, None] & (to < M)[None, :]
            value = gate / (1.0 + gl.exp(-gate)) * up
            gl.store(y + to[None, :] * N + spot[:, None], value.to(y.dtype.element_ty), mask=live)
        else:
            spot = block * BN + out_r
            live_n = spot < N
            to = first + out_m
            live = live_n[:, None] & (to < M)[None, :]
            cells = to[None, :] * N + spot[:, None]
            if BIAS:
                total += gl.load(bias + spot, mask=live_n, other=0.0).to(gl.float32)[:, None]
            if RESIDUAL:
                total += gl.load(residual + cells, mask=live, other=0.0).to(gl.float32)
            gl.store(y + cells, total.to(y.dtype.element_ty), mask=live)
