/* y = f(x) @ w.T: the prologue makes each row of activations what the inner loops read, the tiles do the products.
 *
 * Activations lie by tiles too: [tile][block][token of the tile][2][32], the high bytes and
 * the low bytes of 16-bit integers (dense: [tile][K][token]), scales alike.
 * A tile is one group of 16 rows of w against up to TILE_TOKENS rows of x. For each of its elements the order of
 * floating-point operations is that of the blocks (or columns) alone, whatever the tile's size.
 */

#define LARGEST 32512.0f      /* 127 * 256: the high byte of no integer leaves int8 */
#define SMALLEST_TOP 1e-30f   /* a block below it counts as zeros: LARGEST / top would overflow */

/* rounds 16 floats to integers 256 h + l, h at q and l at q + 32, both int8; returns the integers' sum */
INL int32_t split(int8_t *q, vf a) {
    vf whole = vf_round(a);
    vf h = vf_round(vf_mul(vf_add(whole, vf_set1(0.25f)), vf_set1(1.0f / 256))); /* the quarter: no ties */
    vf l = vf_fma(h, vf_set1(-256.0f), whole);
    return 256 * vi_sum(vf_quantize(q, h)) + vi_sum(vf_quantize(q + TSD_BLOCK, l));
}

TGT static void prologue(tsd_linear *a, long begin, long end) {
    long K = a->K, blocks = K / TSD_BLOCK;
    size_t width = a->xtype == TSD_F32 ? 4 : 2;
    float *row = (float *)tsd_scratch(1, K * sizeof(float));
    for (long t = begin; t < end; t++) {
        const char *x = (const char *)a->x + t * (a->silu_mul ? 2 * K : K) * width;
        long first = t - t % TILE_TOKENS, tokens = a->T - first < TILE_TOKENS ? a->T - first : TILE_TOKENS;
        long place = t - first;
        /* the effective input in float32 */
        vf total = vf_zero();
        for (long k = 0; k < K; k += TSD_LANES) {
            vf v = load_part(x, k, K - k, a->xtype);
            if (a->silu_mul) v = round_to(vf_mul(vf_silu(v), load_part(x + K * width, k, K - k, a->xtype)), a->xtype);
            total = vf_fma(v, v, total);
            store_part(row, k, v, K - k, TSD_F32);
        }
        if (a->norm) {
            vf inverse = vf_set1(1.0f / __builtin_sqrtf(vf_sum(total) / (float)K + a->eps));
            for (long k = 0; k < K; k += TSD_LANES) {
                vf v = round_to(vf_mul(load_part(row, k, K - k, TSD_F32), inverse), a->xtype);
                v = round_to(vf_mul(v, load_part(a->norm, k, K - k, a->ntype)), a->xtype);
                store_part(row, k, v, K - k, TSD_F32);
            }
        }
        if (a->method == TSD_DENSE) {
            float *to = a->fx + first * K + place;
            for (long k = 0; k < K; k++) to[k * tokens] = row[k];
            continue;
        }
        for (long b = 0; b < blocks; b++) {
            vf low = vf_load(row + b * TSD_BLOCK), high = vf_load(row + b * TSD_BLOCK + 16);
            float top = vf_top(vf_max(vf_abs(low), vf_abs(high)));
            vf inverse = vf_set1(top > SMALLEST_TOP ? LARGEST / top : 0.0f);
            int8_t *q = a->qx + 2 * (first * K + (b * tokens + place) * TSD_BLOCK);
            long at = first * blocks + b * tokens + place;
            int32_t integers = split(q, vf_mul(low, inverse)) + split(q + 16, vf_mul(high, inverse));
            float scale = top / LARGEST;
            a->dx[at] = scale;
            a->sx[at] = scale * (float)integers;
            a->cx[at] = -128 * integers;
        }
    }
}

/* bias, residual and store of a tile's sums [tokens][16], out of line so that the tiles keep their registers */
TGT static __attribute__((noinline)) void finish_rows(const tsd_linear *a, long group, long t0, const float *sums,
                                                      int tokens) {
    long n0 = group * TSD_LANES, left = a->N - n0;
    for (int t = 0; t < tokens; t++) {
        vf sum = vf_load(sums + t * TSD_LANES);
        long at = (t0 + t) * a->N + n0;
        if (a->bias) sum = vf_add(sum, load_part(a->bias, n0, left, a->xtype));
        if (a->residual) sum = vf_add(load_part(a->residual, at, left, a->xtype), sum);
        store_part(a->y, at, sum, left, a->xtype);
    }
}

INL void finish(const tsd_linear *a, long group, long t0, const vf *sum, const int tokens) {
    float sums[TILE_TOKENS * TSD_LANES];
#pragma GCC unroll 16
    for (int t = 0; t < tokens; t++) vf_store(sums + t * TSD_LANES, sum[t]);
    finish_rows(a, group, t0, sums, tokens);
}

/* lane r: row r of a block of weights times one byte plane of its activations; w0 to w3 hold columns 0 to 15, w4 to w7
 * the rest. `wide`: weights use all eight bits. */
INL vi plane_dot(const int8_t *x, int32_t start, vw w0, vw w1, vw w2, vw w3, vw w4, vw w5, vw w6, vw w7,
                 const int wide) {
#define DOT(sum, w, at) (wide ? vw_dot8(sum, w, x + (at)) : vw_dot4(sum, w, x + (at)))
    vi low = DOT(vi_set1(start), w0, 0), high = DOT(vi_zero(), w4, 16);
    low = DOT(low, w1, 4), high = DOT(high, w5, 20);
    low = DOT(low, w2, 8), high = DOT(high, w6, 24);
    low = DOT(low, w3, 12), high = DOT(high, w7, 28);
#undef DOT
    return vi_add(low, high);
}

/* the same with both planes, as float32; `start` is added */
INL vf block_dot(const int8_t *x, int32_t start, vw w0, vw w1, vw w2, vw w3, vw w4, vw w5, vw w6, vw w7,
                 const int wide) {
    vi high = plane_dot(x, 0, w0, w1, w2, w3, w4, w5, w6, w7, wide);
    vi low = plane_dot(x + TSD_BLOCK, start, w0, w1, w2, w3, w4, w5, w6, w7, wide);
    return vi_float(vi_add(vi_times256(high), low));
}

INL void tile_q4(const tsd_linear *a, long group, long t0, const int tokens) {
    long K = a->K, blocks = K / TSD_BLOCK;
    const uint8_t *w = (const uint8_t *)a->qs + group * blocks * 256;
    const uint16_t *s = a->scales + group * blocks * 32;
    const int8_t *x = a->qx + 2 * t0 * K;
    const float *dx = a->dx + t0 * blocks, *sx = a->sx + t0 * blocks;
    vf sum[TILE_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < tokens; t++) sum[t] = vf_zero();
    for (long b = 0; b < blocks; b++, w += 256, s += 32, x += 2 * tokens * TSD_BLOCK) {
        vw p0 = vw_load(w), p1 = vw_load(w + 64), p2 = vw_load(w + 128), p3 = vw_load(w + 192);
        vw l0 = vw_low(p0), l1 = vw_low(p1), l2 = vw_low(p2), l3 = vw_low(p3);
        vw h0 = vw_high(p0), h1 = vw_high(p1), h2 = vw_high(p2), h3 = vw_high(p3);
        vf d = vf_load_f16(s), m = vf_load_f16(s + 16);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; t++) {
            vf dot = block_dot(x + 2 * t * TSD_BLOCK, 0, l0, l1, l2, l3, h0, h1, h2, h3, 0);
            sum[t] = vf_fma(dot, vf_mul(d, vf_set1(dx[b * tokens + t])), sum[t]);
            sum[t] = vf_fma(m, vf_set1(sx[b * tokens + t]), sum[t]);
        }
    }
    finish(a, group, t0, sum, tokens);
}

/* `by_row`: one scale for a whole row, applied at the end, in place of one a block */
INL void tile_q8(const tsd_linear *a, long group, long t0, const int tokens, const int by_row) {
    long K = a->K, blocks = K / TSD_BLOCK;
    const uint8_t *w = (const uint8_t *)a->qs + group * blocks * 512;
    const uint16_t *s = a->scales + group * blocks * 16;
    const int8_t *x = a->qx + 2 * t0 * K;
    const float *dx = a->dx + t0 * blocks;
    const int32_t *cx = a->cx + t0 * blocks;
    vf sum[TILE_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < tokens; t++) sum[t] = vf_zero();
    for (long b = 0; b < blocks; b++, w += 512, s += 16, x += 2 * tokens * TSD_BLOCK) {
        vw w0 = vw_load(w), w1 = vw_load(w + 64), w2 = vw_load(w + 128), w3 = vw_load(w + 192);
        vw w4 = vw_load(w + 256), w5 = vw_load(w + 320), w6 = vw_load(w + 384), w7 = vw_load(w + 448);
        vf d = by_row ? vf_zero() : vf_load_f16(s);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; t++) {
            vf dot = block_dot(x + 2 * t * TSD_BLOCK, cx[b * tokens + t], w0, w1, w2, w3, w4, w5, w6, w7, 1);
            vf scale = vf_set1(dx[b * tokens + t]);
            sum[t] = vf_fma(dot, by_row ? scale : vf_mul(d, scale), sum[t]);
        }
    }
    if (by_row) {
        vf d = vf_load(a->row_scales + group * TSD_LANES);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; t++) sum[t] = vf_mul(sum[t], d);
    }
    finish(a, group, t0, sum, tokens);
}

INL void tile_dense(const tsd_linear *a, long group, long t0, const int tokens, const int wtype) {
    long K = a->K;
    const char *w = (const char *)a->qs + group * K * TSD_LANES * (wtype == TSD_F32 ? 4 : 2);
    const float *x = a->fx + t0 * K;
    vf sum[TILE_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < tokens; t++) sum[t] = vf_zero();
    for (long k = 0; k < K; k++) {
        vf column = load_any(w, k * TSD_LANES, wtype);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; t++) sum[t] = vf_fma(column, vf_set1(x[k * tokens + t]), sum[t]);
    }
    finish(a, group, t0, sum, tokens);
}

INL void tile(const tsd_linear *a, long group, long t0, const int tokens) {
    if (a->method == TSD_Q4) tile_q4(a, group, t0, tokens);
    else if (a->method == TSD_Q8) tile_q8(a, group, t0, tokens, 0);
    else if (a->method == TSD_INT8) tile_q8(a, group, t0, tokens, 1);
    else if (a->wtype == TSD_F32) tile_dense(a, group, t0, tokens, TSD_F32);
    else if (a->wtype == TSD_BF16) tile_dense(a, group, t0, tokens, TSD_BF16);
    else tile_dense(a, group, t0, tokens, TSD_F16);
}

#define TILE(n) \
    TGT static __attribute__((noinline)) void tile_##n(const tsd_linear *a, long group, long t0) { \
        tile(a, group, t0, n); \
    }
typedef void (*tile_function)(const tsd_linear *, long, long);

TILE(1) TILE(2) TILE(3) TILE(4)
#if TILE_TOKENS > 4
TILE(5) TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14) TILE(15) TILE(16)
static const tile_function TILES[] = {NULL,   tile_1, tile_2,  tile_3,  tile_4,  tile_5,  tile_6,  tile_7, tile_8,
                                      tile_9, tile_10, tile_11, tile_12, tile_13, tile_14, tile_15, tile_16};
#else
static const tile_function TILES[] = {NULL, tile_1, tile_2, tile_3, tile_4};
#endif

TGT static void linear(const tsd_linear *a, long begin, long end) {
    for (long group = begin; group < end; group++)
        for (long t = 0; t < a->T; t += TILE_TOKENS)
            TILES[a->T - t < TILE_TOKENS ? a->T - t : TILE_TOKENS](a, group, t);
}
