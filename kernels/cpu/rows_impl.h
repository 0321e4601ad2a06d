/* What works on one row at a time: loads and stores of any float type, exp, norms, embedding. */

INL vf load_any(const void *p, long i, int type) {
    if (type == TSD_F32) return vf_load((const float *)p + i);
    if (type == TSD_BF16) return vf_load_bf16((const uint16_t *)p + i);
    return vf_load_f16((const uint16_t *)p + i);
}

INL void store_any(void *p, long i, vf a, int type) {
    if (type == TSD_F32) vf_store((float *)p + i, a);
    else if (type == TSD_BF16) vf_store_bf16((uint16_t *)p + i, a);
    else vf_store_f16((uint16_t *)p + i, a);
}

/* like load_any, but only n lanes exist; the rest are 0 */
INL vf load_part(const void *p, long i, long n, int type) {
    if (n >= TSD_LANES) return load_any(p, i, type);
    size_t width = type == TSD_F32 ? 4 : 2;
    char buffer[64] = {0};
    __builtin_memcpy(buffer, (const char *)p + i * width, n * width);
    return load_any(buffer, 0, type);
}

INL void store_part(void *p, long i, vf a, long n, int type) {
    if (n >= TSD_LANES) {
        store_any(p, i, a, type);
        return;
    }
    size_t width = type == TSD_F32 ? 4 : 2;
    char buffer[64];
    store_any(buffer, 0, a, type);
    __builtin_memcpy((char *)p + i * width, buffer, n * width);
}

/* what a store to `type` and a load would give */
INL vf round_to(vf a, int type) {
    uint16_t buffer[16];
    if (type == TSD_F32) return a;
    store_any(buffer, 0, a, type);
    return load_any(buffer, 0, type);
}

/* 2^x, relative error under 2e-7; 0 below -126, exactly 1 at 0. Taylor series of exp(r ln 2) for |r| <= 1/2. */
INL vf vf_exp2(vf x) {
    vf clamped = vf_min(vf_max(x, vf_set1(-126.0f)), vf_set1(127.0f));
    vf n = vf_round(clamped);
    vf r = vf_sub(clamped, n);
    vf p = vf_set1(1.5252733804e-5f);
    p = vf_fma(p, r, vf_set1(1.5403530393e-4f));
    p = vf_fma(p, r, vf_set1(1.3333558146e-3f));
    p = vf_fma(p, r, vf_set1(9.6181291076e-3f));
    p = vf_fma(p, r, vf_set1(5.5504108665e-2f));
    p = vf_fma(p, r, vf_set1(2.4022650696e-1f));
    p = vf_fma(p, r, vf_set1(6.9314718056e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_ldexp(p, n, x);
}

INL vf vf_silu(vf x) {
    vf e = vf_exp2(vf_mul(x, vf_set1(-1.4426950409f)));
    return vf_div(x, vf_add(vf_set1(1.0f), e));
}

/* 1 / rms of K values of `type` */
INL float inverse_rms(const void *x, long K, int type, float eps) {
    vf total = vf_zero();
    for (long k = 0; k < K; k += TSD_LANES) {
        vf a = load_part(x, k, K - k, type);
        total = vf_fma(a, a, total);
    }
    return 1.0f / __builtin_sqrtf(vf_sum(total) / (float)K + eps);
}

TGT static void norm(const tsd_norm *a, long begin, long end) {
    size_t width = a->xtype == TSD_F32 ? 4 : 2;
    for (long t = begin; t < end; t++) {
        const char *x = (const char *)a->x + t * a->K * width;
        char *y = (char *)a->y + t * a->K * width;
        vf inverse = vf_set1(inverse_rms(x, a->K, a->xtype, a->eps));
        for (long k = 0; k < a->K; k += TSD_LANES) {
            vf v = round_to(vf_mul(load_part(x, k, a->K - k, a->xtype), inverse), a->xtype);
            v = vf_mul(v, load_part(a->weight, k, a->K - k, a->wtype));
            store_part(y, k, v, a->K - k, a->xtype);
        }
    }
}

/* rows of a table in the grouped layout of tsd_linear */
TGT static void lookup(const tsd_lookup *a, long begin, long end) {
    long blocks = a->K / TSD_BLOCK;
    size_t width = a->ytype == TSD_F32 ? 4 : 2;
    for (long t = begin; t < end; t++) {
        long id = a->wide_ids ? (long)((const int64_t *)a->ids)[t] : ((const int32_t *)a->ids)[t];
        long group = id / TSD_LANES, lane = id % TSD_LANES;
        char *y = (char *)a->y + t * a->K * width;
        float row[TSD_BLOCK];
        uint16_t halves[16] = {0};
        float scales[16];
        if (a->method == TSD_DENSE) {
            size_t step = a->wtype == TSD_F32 ? 4 : 2;
            const char *w = (const char *)a->qs + (group * a->K * TSD_LANES + lane) * step;
            for (long k = 0; k < a->K; k += TSD_LANES) {
                long n = a->K - k < TSD_LANES ? a->K - k : TSD_LANES;
                char part[64] = {0};
                for (long i = 0; i < n; i++)
                    __builtin_memcpy(part + i * step, w + (k + i) * TSD_LANES * step, step);
                store_part(y, k, load_any(part, 0, a->wtype), n, a->ytype);
            }
            continue;
        }
        for (long b = 0; b < blocks; b++) {
            long at = group * blocks + b;
            if (a->method == TSD_Q4) {
                const uint8_t *q = (const uint8_t *)a->qs + at * 256;
                halves[0] = a->scales[at * 32 + lane];
                halves[1] = a->scales[at * 32 + 16 + lane];
                vf_store(scales, vf_load_f16(halves));
                for (int k = 0; k < 16; k++) {
                    int byte = q[(k / 4) * 64 + lane * 4 + k % 4];
                    row[k] = (float)(byte & 15) * scales[0] + scales[1];
                    row[16 + k] = (float)(byte >> 4) * scales[0] + scales[1];
                }
            } else {
                const uint8_t *q = (const uint8_t *)a->qs + at * 512;
                if (a->method == TSD_INT8) scales[0] = a->row_scales[id];
                else {
                    halves[0] = a->scales[at * 16 + lane];
                    vf_store(scales, vf_load_f16(halves));
                }
                for (int k = 0; k < 32; k++)
                    row[k] = (float)((int)q[(k / 4) * 64 + lane * 4 + k % 4] - 128) * scales[0];
            }
            store_any(y, b * TSD_BLOCK, vf_load(row), a->ytype);
            store_any(y, b * TSD_BLOCK + 16, vf_load(row + 16), a->ytype);
        }
    }
}
