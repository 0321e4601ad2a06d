/* Drawing a token: thresholds by bisection in place of a sort, Gumbel noise only where it could win.
 *
 * Noise needs two logarithms a token, but nearly all tokens lose whatever their noise. A token of score h beats the
 * best sum so far, b, only if u > exp(-x) with x = exp(h - b); as exp(-x) >= 1 - x, it must have 1 - u < x. That
 * costs a multiply and a compare; the few that pass are worked out in double precision.
 */
#include <math.h>

#define LOG2E 1.4426950409f

/* first word of Philox4x32-10 with counter (id .. id + 15, index, 0, 0) */
INL vi noise_words(int32_t id, uint32_t index, uint64_t seed) {
    vi c0 = vi_count_up(id), c1 = vi_set1((int32_t)index), c2 = vi_zero(), c3 = vi_zero();
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        vi high0, low0, high1, low1;
        vi_multiply(c0, 0xD2511F53u, &high0, &low0);
        vi_multiply(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = vi_xor(vi_xor(high1, c1), vi_set1((int32_t)k0));
        c1 = low1;
        c2 = vi_xor(vi_xor(high0, c3), vi_set1((int32_t)k1));
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

INL float gumbel_of(uint32_t word) {
    double u = ((double)(word >> 8) + 0.5) * 0x1p-24;
    return (float)-log(-log(u));
}

INL float float_of(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

/* the highest value; its lowest index in *at */
INL float highest(const float *row, long count, long *at) {
    vf best = vf_set1(-__builtin_inff());
    long i = 0;
    for (; i + TSD_LANES <= count; i += TSD_LANES) best = vf_max(vf_load(row + i), best);
    float top = vf_top(best);
    for (; i < count; i++) top = row[i] > top ? row[i] : top;
    vf wanted = vf_set1(top);
    *at = 0;
    for (i = 0; i + TSD_LANES <= count; i += TSD_LANES) {
        unsigned mask = vf_ge(vf_load(row + i), wanted);
        if (mask) {
            *at = i + __builtin_ctz(mask);
            return top;
        }
    }
    for (; i < count; i++)
        if (row[i] >= top) {
            *at = i;
            break;
        }
    return top;
}

INL long count_from(const float *values, long padded, float least) {
    long count = 0;
    vf edge = vf_set1(least);
    for (long i = 0; i < padded; i += TSD_LANES) count += __builtin_popcount(vf_ge(vf_load(values + i), edge));
    return count;
}

INL float mass_from(const float *values, long padded, float least) {
    vf edge = vf_set1(least), sum = vf_zero();
    for (long i = 0; i < padded; i += TSD_LANES) {
        vf v = vf_load(values + i);
        sum = vf_add(sum, vf_where_ge(v, edge, v));
    }
    return vf_sum(sum);
}

/* The k-th largest of `chances` (or a value between it and the next, which keeps the same tokens).
 * Positive floats order as their bits do, so thresholds are found by halving bit patterns. */
INL float kth_chance(const float *chances, long padded, long k) {
    uint32_t low = 0, high = 0x3f800001; /* at least k are >= low; fewer are >= high */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        long count = count_from(chances, padded, float_of(middle));
        if (count >= k) low = middle;
        else high = middle;
        if (count == k) break;
    }
    return float_of(low);
}

/* The largest threshold above which lies the share p of what is at least `cut`. */
INL float nucleus_chance(const float *chances, long padded, float cut, float p) {
    float wanted = p * mass_from(chances, padded, cut);
    uint32_t low = 0, high = 0x3f800001;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (mass_from(chances, padded, float_of(middle)) >= wanted) low = middle;
        else high = middle;
    }
    return float_of(low);
}

TGT static void draw(const tsd_draw *a, long begin, long end) {
    long vocab = a->vocab, padded = (vocab + TSD_LANES - 1) & ~(long)(TSD_LANES - 1);
    float *hot = (float *)tsd_scratch(3, 2 * padded * sizeof(float)), *chances = hot + padded;
    for (long s = begin; s < end; s++) {
        const float *logits = a->logits + s * vocab;
        long best_id;
        float top = highest(logits, vocab, &best_id), temperature = a->temperature[s];
        a->tokens[s] = (int32_t)best_id;
        if (!(temperature > 0)) continue;
        top /= temperature;
        vf divide = vf_set1(temperature), shift = vf_set1(top);
        for (long i = 0; i < padded; i += TSD_LANES) {
            vf h = vf_div(load_part(logits, i, vocab - i, TSD_F32), divide);
            vf e = vf_exp2(vf_mul(vf_sub(h, shift), vf_set1(LOG2E)));
            vf_store(hot + i, h);
            vf_store(chances + i, vf_first(e, vf_zero(), vocab - i));
        }
        float cut = 0.0f;
        if (a->filtered) {
            float nucleus = 0.0f, least = a->min_p[s];
            int32_t k = a->top_k[s];
            if (k > 0 && k < vocab) cut = kth_chance(chances, padded, k);
            if (a->top_p[s] < 1.0f) nucleus = nucleus_chance(chances, padded, cut, a->top_p[s]);
            cut = nucleus > cut ? nucleus : cut;
            cut = least > cut ? least : cut;
        }
        vf edge = vf_set1(cut), one = vf_set1(0x1p-24f), half = vf_set1(0.5f);
        uint32_t words[TSD_LANES], index = (uint32_t)a->token_index[s];
        uint64_t seed = (uint64_t)a->seeds[s];
        vi_store(words, noise_words((int32_t)best_id, index, seed));
        float best = hot[best_id] + gumbel_of(words[0]);
        float room = expf(top - best) * 1.001f; /* a little wide: rounding must not drop a winner */
        for (long i = 0; i < padded; i += TSD_LANES) {
            vf e = vf_load(chances + i);
            e = vf_where_ge(e, edge, e);
            vf x = vf_mul(e, vf_set1(room));
            if (vf_top(x) < 0x1p-25f) continue; /* 1 - u is never less */
            vi drawn = noise_words((int32_t)i, index, seed);
            vf above = vi_float(vi_shift8(vi_xor(drawn, vi_set1(-1)))); /* 2^24 - 1 - (r >> 8) */
            unsigned mask = vf_ge(x, vf_mul(vf_add(above, half), one));
            if (!mask) continue;
            vi_store(words, drawn);
            for (; mask; mask &= mask - 1) {
                int lane = __builtin_ctz(mask);
                float sum = hot[i + lane] + gumbel_of(words[lane]);
                if (sum > best || (sum == best && i + lane < best_id)) {
                    best = sum;
                    best_id = i + lane;
                    room = expf(top - best) * 1.001f;
                }
            }
        }
        a->tokens[s] = (int32_t)best_id;
    }
}
