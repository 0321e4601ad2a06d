/* Rope with KV write, and causal attention over the paged cache.
 *
 * Attention takes the cache in blocks of TSD_KV_BLOCK positions counted from 0, so the order of a query's sums is a
 * function of its position only: not of its batch, its chunk, or its pages. Positions past a query get weight 0,
 * which leaves every sum bit for bit as it was.
 */

/* one head of D values, normed if asked, roped, as float32 */
INL void turn(const void *x, const void *norm_weight, const tsd_rope *a, const float *cos_sin, float *out) {
    long D = a->D, half = a->R / 2;
    float head[512];
    for (long i = 0; i < D; i += TSD_LANES) store_part(head, i, load_part(x, i, D - i, a->xtype), D - i, TSD_F32);
    if (norm_weight) {
        vf inverse = vf_set1(inverse_rms(head, D, TSD_F32, a->eps));
        for (long i = 0; i < D; i += TSD_LANES) {
            vf v = round_to(vf_mul(load_part(head, i, D - i, TSD_F32), inverse), a->xtype);
            v = round_to(vf_mul(v, load_part(norm_weight, i, D - i, a->ntype)), a->xtype);
            store_part(head, i, v, D - i, TSD_F32);
        }
    }
    for (long i = 0; i < half; i += TSD_LANES) {
        long n = half - i;
        vf cosine = load_part(cos_sin, i, n, TSD_F32), sine = load_part(cos_sin, half + i, n, TSD_F32);
        vf first = load_part(head, i, n, TSD_F32), second = load_part(head, half + i, n, TSD_F32);
        store_part(out, i, vf_sub(vf_mul(first, cosine), vf_mul(second, sine)), n, TSD_F32);
        store_part(out, half + i, vf_add(vf_mul(second, cosine), vf_mul(first, sine)), n, TSD_F32);
    }
    for (long i = 2 * half; i < D; i++) out[i] = head[i];
}

INL void put_head(const float *head, void *to, long at, long D, int through, int type) {
    for (long i = 0; i < D; i += TSD_LANES)
        store_part(to, at + i, round_to(load_part(head, i, D - i, TSD_F32), through), D - i, type);
}

TGT static void rope(const tsd_rope *a, long begin, long end) {
    long D = a->D, heads = a->Hq + 2 * a->Hkv;
    size_t width = a->xtype == TSD_F32 ? 4 : 2;
    float head[512];
    for (long t = begin; t < end; t++) {
        const char *x = (const char *)a->qkv + t * heads * D * width;
        const float *cos_sin = a->cos_sin + (long)a->positions[t] * a->R;
        long slot = a->slots[t];
        for (long h = 0; h < a->Hq; h++) {
            turn(x + h * D * width, a->q_norm, a, cos_sin, head);
            put_head(head, a->q, (t * a->Hq + h) * D, D, TSD_F32, a->xtype);
        }
        if (slot < 0) continue;
        for (long h = 0; h < a->Hkv; h++) {
            const char *k = x + (a->Hq + h) * D * width, *v = x + (a->Hq + a->Hkv + h) * D * width;
            long at = (slot * a->Hkv + h) * D;
            turn(k, a->k_norm, a, cos_sin, head);
            put_head(head, a->k_cache, at, D, a->xtype, a->kvtype);
            for (long i = 0; i < D; i += TSD_LANES)
                store_part(a->v_cache, at + i, load_part(v, i, D - i, a->xtype), D - i, a->kvtype);
        }
    }
}

/* Where a block's positions lie, head 0 of them. */
typedef struct {
    const char *keys[TSD_KV_BLOCK], *values[TSD_KV_BLOCK];
    long count;
} block_rows;

/* The next block of one head, asked for line by line between pieces of arithmetic: the processor keeps some two dozen
 * requests in flight, waits when asked for more, and guesses neither the pages nor the stride between heads. */
typedef struct {
    const block_rows *rows;
    long row, line, from, bytes; /* of a head: where in a row, how much */
} ahead;

INL void fetch(ahead *next) {
    if (next->row >= next->rows->count) return;
    __builtin_prefetch(next->rows->keys[next->row] + next->from + next->line, 0, 2);
    __builtin_prefetch(next->rows->values[next->row] + next->from + next->line, 0, 2);
    next->line += 64;
    if (next->line >= next->bytes) next->line = 0, next->row++;
}

/* scores[n][TSD_KV_BLOCK] = q[n][D] . columns[D][TSD_KV_BLOCK] */
INL void scores_of(const float *q, const float *columns, float *scores, long D, ahead *next, const int n) {
    vf low[TILE_QUERIES], high[TILE_QUERIES];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) low[i] = vf_zero(), high[i] = vf_zero();
    for (long d = 0; d < D; d++) {
        vf a = vf_load(columns + d * TSD_KV_BLOCK), b = vf_load(columns + d * TSD_KV_BLOCK + 16);
        if (d % 2) fetch(next);
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            vf value = vf_set1(q[i * D + d]);
            low[i] = vf_fma(value, a, low[i]);
            high[i] = vf_fma(value, b, high[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        vf_store(scores + i * TSD_KV_BLOCK, low[i]);
        vf_store(scores + i * TSD_KV_BLOCK + 16, high[i]);
    }
}

/* sums[n][D] = sums * decay[n] + weights[n][count] . values; `width` vectors of 16 dimensions from d on */
INL void values_of(const float *weights, const float *decay, const float *const *values, float *sums, long D, long d,
                   long count, ahead *next, const int n, const int width) {
    vf sum[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int j = 0; j < width; j++)
            sum[i][j] = vf_mul(vf_load(sums + i * D + d + 16 * j), vf_set1(decay[i]));
    for (long p = 0; p < count; p++) {
        const float *row = values[p] + d;
        vf v[4];
        fetch(next);
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) v[j] = vf_load(row + 16 * j);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            vf weight = vf_set1(weights[i * TSD_KV_BLOCK + p]);
#pragma GCC unroll 4
            for (int j = 0; j < width; j++) sum[i][j] = vf_fma(weight, v[j], sum[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) vf_store(sums + i * D + d + 16 * j, sum[i][j]);
}

INL void values_for(const float *weights, const float *decay, const float *const *values, float *sums, long D,
                    long count, ahead *next, const int n) {
    long d = 0;
    for (; d + 64 <= D; d += 64) values_of(weights, decay, values, sums, D, d, count, next, n, 4);
    for (; d < D; d += 16) values_of(weights, decay, values, sums, D, d, count, next, n, 1);
}

/* scores of queries [from, to), TILE_QUERIES at a time */
TGT static void all_scores(const float *q, const float *columns, float *scores, long D, ahead *next, long from,
                           long to) {
    for (; to - from >= TILE_QUERIES; from += TILE_QUERIES)
        scores_of(q + from * D, columns, scores + from * TSD_KV_BLOCK, D, next, TILE_QUERIES);
    const float *rest = q + from * D;
    float *place = scores + from * TSD_KV_BLOCK;
    switch (to - from) {
#if TILE_QUERIES > 4
    case 7: scores_of(rest, columns, place, D, next, 7); break;
    case 6: scores_of(rest, columns, place, D, next, 6); break;
    case 5: scores_of(rest, columns, place, D, next, 5); break;
    case 4: scores_of(rest, columns, place, D, next, 4); break;
#endif
    case 3: scores_of(rest, columns, place, D, next, 3); break;
    case 2: scores_of(rest, columns, place, D, next, 2); break;
    case 1: scores_of(rest, columns, place, D, next, 1); break;
    default: break;
    }
}

TGT static void all_values(const float *weights, const float *decay, const float *const *values, float *sums, long D,
                           long count, ahead *next, long from, long to) {
    for (; to - from >= 4; from += 4)
        values_for(weights + from * TSD_KV_BLOCK, decay + from, values, sums + from * D, D, count, next, 4);
    weights += from * TSD_KV_BLOCK, decay += from, sums += from * D;
    switch (to - from) {
    case 3: values_for(weights, decay, values, sums, D, count, next, 3); break;
    case 2: values_for(weights, decay, values, sums, D, count, next, 2); break;
    case 1: values_for(weights, decay, values, sums, D, count, next, 1); break;
    default: break;
    }
}

/* the softmax step of one query over one block: scores become weights; `seen` positions count */
INL void soften(float *scores, long seen, float *top, float *total, float *decay) {
    vf low = vf_load(scores), high = vf_load(scores + 16), never = vf_set1(-__builtin_inff());
    if (seen < TSD_KV_BLOCK) low = vf_first(low, never, seen), high = vf_first(high, never, seen - 16);
    float best = vf_top(vf_max(low, high));
    if (!(best > *top)) best = *top;
    float lanes[16];
    vf_store(lanes, vf_exp2(vf_set1(*top - best)));
    low = vf_exp2(vf_sub(low, vf_set1(best)));
    high = vf_exp2(vf_sub(high, vf_set1(best)));
    vf_store(scores, low);
    vf_store(scores + 16, high);
    *decay = lanes[0];
    *total = *total * lanes[0] + vf_sum(vf_add(low, high));
    *top = best;
}

/* `tokens` tokens of a row from `first` (in T) on, for KV heads [head, head + heads). Query i of a head is token
 * i / group, query head i % group of its group. Heads are padded with zeros to whole vectors: `D` is that width. */
typedef struct {
    long real, D, group, queries, first, last, tokens, head, heads;
    long bytes; /* of a head of the cache */
    int direct; /* values are read where they lie */
    const int32_t *pages;
    float *q, *sums, *scores, *top, *total, *decay; /* by head, then query */
    float *columns, *copies;                        /* one block of one head */
} attend_state;

/* where the block of positions from `base` on lies; none past the last */
TGT static void find_rows(const tsd_attention *a, const attend_state *w, long base, block_rows *rows) {
    long left = w->last + 1 - base, page = base / a->page_size, offset = base % a->page_size;
    rows->count = left < 0 ? 0 : left < TSD_KV_BLOCK ? left : TSD_KV_BLOCK;
    for (long j = 0; j < rows->count; j++) {
        long at = ((w->pages[page] * a->page_size + offset) * a->Hkv + w->head) * w->bytes;
        rows->keys[j] = (const char *)a->k_cache + at;
        rows->values[j] = (const char *)a->v_cache + at;
        if (++offset == a->page_size) offset = 0, page++;
    }
}

TGT static void attend_block(const tsd_attention *a, const attend_state *w, const block_rows *block,
                             const block_rows *after, long base, long start, long h) {
    long real = w->real, D = w->D, count = block->count, from_head = h * w->bytes;
    const char *keys[TSD_KV_BLOCK];
    const float *values[TSD_KV_BLOCK];
    ahead next = {.rows = after, .from = from_head, .bytes = w->bytes};
    for (long j = 0; j < count; j++) {
        keys[j] = block->keys[j] + from_head;
        if (w->direct) values[j] = (const float *)(block->values[j] + from_head);
        else {
            for (long d = 0; d < D; d += TSD_LANES)
                vf_store(w->copies + j * D + d, load_part(block->values[j] + from_head, d, real - d, a->kvtype));
            values[j] = w->copies + j * D;
        }
    }
    for (long j = count; j < TSD_KV_BLOCK; j++) keys[j] = keys[0]; /* masked in soften */
    for (long j = 0; j < TSD_KV_BLOCK; j += TSD_LANES)
        for (long d = 0; d < D; d += TSD_LANES) {
            vf rows[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) rows[i] = load_part(keys[j + i], d, real - d, a->kvtype);
            for (int i = 0; i < 6; i++) fetch(&next);
            vf_transpose(rows, w->columns + d * TSD_KV_BLOCK + j, TSD_KV_BLOCK);
        }
    long from = start * w->group, own = h * w->queries;
    float *scores = w->scores + own * TSD_KV_BLOCK, *sums = w->sums + own * D;
    all_scores(w->q + own * D, w->columns, scores, D, &next, from, w->queries);
    for (long i = from; i < w->queries; i++) {
        long seen = a->positions[w->first + i / w->group] + 1 - base;
        for (int k = 0; k < 4; k++) fetch(&next);
        soften(scores + i * TSD_KV_BLOCK, seen, w->top + own + i, w->total + own + i, w->decay + own + i);
    }
    all_values(scores, w->decay + own, values, sums, D, count, &next, from, w->queries);
}

TGT static void attend(const tsd_attention *a, long row, long first, long tokens, long head, long heads) {
    long real = a->D, D = (real + TSD_LANES - 1) & ~(long)(TSD_LANES - 1), group = a->Hq / a->Hkv;
    long queries = tokens * group, all = heads * queries;
    attend_state w = {.real = real, .D = D, .group = group, .queries = queries, .first = first, .tokens = tokens,
                      .head = head, .heads = heads, .last = a->positions[first + tokens - 1],
                      .bytes = real * (a->kvtype == TSD_F32 ? 4 : 2), .direct = a->kvtype == TSD_F32 && D == real,
                      .pages = a->page_table + row * a->table_width};
    w.q = (float *)tsd_scratch(2, (all * (2 * D + TSD_KV_BLOCK + 3) + 2 * TSD_KV_BLOCK * D) * sizeof(float));
    w.sums = w.q + all * D, w.columns = w.sums + all * D, w.copies = w.columns + TSD_KV_BLOCK * D;
    w.scores = w.copies + TSD_KV_BLOCK * D, w.top = w.scores + all * TSD_KV_BLOCK;
    w.total = w.top + all, w.decay = w.total + all;
    vf scale = vf_set1(a->scale * 1.4426950409f); /* exp(x) = 2^(x log2 e) */
    for (long i = 0; i < all; i++) {
        long h = i / queries, t = i % queries / group, g = i % group;
        long from = ((first + t) * a->Hq + (head + h) * group + g) * real;
        for (long d = 0; d < D; d += TSD_LANES) {
            vf_store(w.q + i * D + d, vf_mul(load_part(a->q, from + d, real - d, a->xtype), scale));
            vf_store(w.sums + i * D + d, vf_zero());
        }
        w.top[i] = -__builtin_inff();
        w.total[i] = 0.0f;
    }
    long start = 0; /* the first token that sees the block */
    block_rows blocks[2];
    find_rows(a, &w, 0, &blocks[0]);
    for (long base = 0, n = 0; base <= w.last; base += TSD_KV_BLOCK, n ^= 1) {
        while (a->positions[first + start] < base) start++;
        find_rows(a, &w, base + TSD_KV_BLOCK, &blocks[n ^ 1]);
        for (long h = 0; h < heads; h++) attend_block(a, &w, &blocks[n], &blocks[n ^ 1], base, start, h);
    }
    for (long i = 0; i < all; i++) {
        long h = i / queries, t = i % queries / group, g = i % group;
        long to = ((first + t) * a->Hq + (head + h) * group + g) * real;
        for (long d = 0; d < D; d += TSD_LANES) {
            vf out = vf_div(vf_load(w.sums + i * D + d), vf_set1(w.total[i]));
            store_part(a->out, to + d, out, real - d, a->xtype);
        }
    }
}

/* An item is a tile of tokens, for every KV head at once where `together` (the cache is then read as it lies) or
 * for one of them (more items to share out). */
TGT static void attention(const tsd_attention *a, long begin, long end) {
    for (long item = begin; item < end; item++) {
        long tile = a->together ? item : item / a->Hkv;
        long row = a->items[2 * tile], first = a->items[2 * tile + 1], left = a->query_start[row + 1] - first;
        long tokens = left < a->tile ? left : a->tile;
        if (a->together) attend(a, row, first, tokens, 0, a->Hkv);
        else attend(a, row, first, tokens, item % a->Hkv, 1);
    }
}
