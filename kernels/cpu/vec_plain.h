/* 16 lanes in plain C, for any machine. The compiler vectorises what it can. */
#include <math.h>
#include <string.h>

#define TGT
#define INL static inline __attribute__((always_inline))

typedef struct { float v[16]; } vf;
typedef struct { int32_t v[16]; } vi;
typedef struct { uint8_t v[64]; } vw; /* 16 rows of 4 */

#define EACH(i) for (int i = 0; i < 16; i++)
#define VF_MAP(expression) \
    vf r; \
    EACH(i) r.v[i] = (expression); \
    return r

INL float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
INL uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
INL float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return bits_float(sign | 0x7f800000 | ((rest & 0x3ff) << 13));
    if (rest < 0x400) { /* subnormal: rest * 2^-24 */
        float value = (float)rest * bits_float(0x33800000);
        return bits_float(sign | float_bits(value));
    }
    return bits_float(sign | ((rest << 13) + 0x38000000));
}
INL uint16_t float_to_half(float value) {
    uint32_t bits = float_bits(value), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) { /* subnormal: adding 0.5 leaves multiples of 2^-24 in the low bits */
        float shifted = bits_float(rest) + 0.5f;
        return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000));
    }
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13));
}
INL uint16_t float_to_bf16(float value) {
    uint32_t bits = float_bits(value);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INL float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; } /* |x| < 2^22 */

INL vf vf_zero(void) { VF_MAP(0.0f); }
INL vf vf_set1(float a) { VF_MAP(a); }
INL vf vf_load(const float *p) { VF_MAP(p[i]); }
INL void vf_store(float *p, vf a) { EACH(i) p[i] = a.v[i]; }
INL vf vf_load_f16(const uint16_t *p) { VF_MAP(half_to_float(p[i])); }
INL void vf_store_f16(uint16_t *p, vf a) { EACH(i) p[i] = float_to_half(a.v[i]); }
INL vf vf_load_bf16(const uint16_t *p) { VF_MAP(bits_float((uint32_t)p[i] << 16)); }
INL void vf_store_bf16(uint16_t *p, vf a) { EACH(i) p[i] = float_to_bf16(a.v[i]); }
INL vf vf_add(vf a, vf b) { VF_MAP(a.v[i] + b.v[i]); }
INL vf vf_sub(vf a, vf b) { VF_MAP(a.v[i] - b.v[i]); }
INL vf vf_mul(vf a, vf b) { VF_MAP(a.v[i] * b.v[i]); }
INL vf vf_div(vf a, vf b) { VF_MAP(a.v[i] / b.v[i]); }
#ifdef __FP_FAST_FMAF
INL vf vf_fma(vf a, vf b, vf c) { VF_MAP(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
#else
INL vf vf_fma(vf a, vf b, vf c) { VF_MAP(a.v[i] * b.v[i] + c.v[i]); }
#endif
INL vf vf_max(vf a, vf b) { VF_MAP(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
INL vf vf_min(vf a, vf b) { VF_MAP(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
INL vf vf_abs(vf a) { VF_MAP(a.v[i] < 0 ? -a.v[i] : a.v[i]); }
INL vf vf_round(vf a) { VF_MAP(round_even(a.v[i])); }
/* a * 2^n for whole n in [-126, 127]; 0 where x < -126 */
INL vf vf_ldexp(vf a, vf n, vf x) {
    VF_MAP(x.v[i] >= -126.0f ? a.v[i] * bits_float((uint32_t)((int32_t)n.v[i] + 127) << 23) : 0.0f);
}
/* lanes below n of a, the rest b */
INL vf vf_first(vf a, vf b, long n) { VF_MAP(i < n ? a.v[i] : b.v[i]); }
INL float vf_sum(vf a) {
    for (int width = 8; width; width >>= 1)
        for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
    return a.v[0];
}
INL float vf_top(vf a) {
    float best = a.v[0];
    for (int i = 1; i < 16; i++) best = a.v[i] > best ? a.v[i] : best;
    return best;
}

INL vi vi_zero(void) {
    vi r;
    EACH(i) r.v[i] = 0;
    return r;
}
INL vi vi_set1(int32_t a) {
    vi r;
    EACH(i) r.v[i] = a;
    return r;
}
INL vi vi_add(vi a, vi b) {
    EACH(i) a.v[i] = (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]);
    return a;
}
INL vi vi_times256(vi a) {
    EACH(i) a.v[i] = (int32_t)((uint32_t)a.v[i] << 8);
    return a;
}
INL vf vi_float(vi a) { VF_MAP((float)a.v[i]); }
/* rounds 16 floats to int8 at p and returns them as integers */
INL vi vf_quantize(int8_t *p, vf a) {
    vi r;
    EACH(i) {
        r.v[i] = (int32_t)round_even(a.v[i]);
        p[i] = (int8_t)r.v[i];
    }
    return r;
}
INL int32_t vi_sum(vi a) {
    int32_t total = 0;
    EACH(i) total += a.v[i];
    return total;
}
INL vf vf_load_u8(const uint8_t *p) { VF_MAP((float)p[i]); }

INL vw vw_load(const void *p) {
    vw r;
    memcpy(r.v, p, 64);
    return r;
}
INL vw vw_low(vw a) {
    for (int i = 0; i < 64; i++) a.v[i] &= 15;
    return a;
}
INL vw vw_high(vw a) {
    for (int i = 0; i < 64; i++) a.v[i] >>= 4;
    return a;
}
/* lane r += sum of row r's four weight bytes times the four signed bytes at x */
INL vi vw_dot4(vi acc, vw w, const int8_t *x) {
    EACH(i) {
        const uint8_t *row = w.v + 4 * i;
        acc.v[i] += row[0] * x[0] + row[1] * x[1] + row[2] * x[2] + row[3] * x[3];
    }
    return acc;
}
INL vi vw_dot8(vi acc, vw w, const int8_t *x) { return vw_dot4(acc, w, x); }

/* 16 rows of 16 floats, row i at rows[i], to columns: column j at out + j * stride */
INL void vf_transpose(const vf *rows, float *out, long stride) {
    for (int j = 0; j < 16; j++) EACH(i) out[j * stride + i] = rows[i].v[j];
}

/* bit i is set where a[i] >= b[i] */
INL unsigned vf_ge(vf a, vf b) {
    unsigned mask = 0;
    EACH(i) mask |= (unsigned)(a.v[i] >= b.v[i]) << i;
    return mask;
}
/* v where a >= b, else 0 */
INL vf vf_where_ge(vf a, vf b, vf v) { VF_MAP(a.v[i] >= b.v[i] ? v.v[i] : 0.0f); }
INL vi vi_count_up(int32_t from) {
    vi r;
    EACH(i) r.v[i] = from + i;
    return r;
}
INL vi vi_xor(vi a, vi b) {
    EACH(i) a.v[i] ^= b.v[i];
    return a;
}
INL vi vi_shift8(vi a) {
    EACH(i) a.v[i] = (int32_t)((uint32_t)a.v[i] >> 8);
    return a;
}
INL void vi_store(uint32_t *p, vi a) { memcpy(p, a.v, 64); }
/* the 64-bit products of unsigned lanes with m, in two halves */
INL void vi_multiply(vi a, uint32_t m, vi *high, vi *low) {
    EACH(i) {
        uint64_t product = (uint64_t)(uint32_t)a.v[i] * m;
        high->v[i] = (int32_t)(product >> 32);
        low->v[i] = (int32_t)product;
    }
}
