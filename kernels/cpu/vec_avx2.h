/* 16 lanes in two AVX2 registers; integer dot products by 16-bit multiply-adds. Same bits as AVX-512. */
#include <immintrin.h>

#define TGT __attribute__((target("avx2,fma,f16c")))
#define INL static inline __attribute__((always_inline)) TGT

typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;
typedef vi vw; /* 64 weight bytes: 16 rows of 4 */

INL vf vf_of(__m256 a, __m256 b) { return (vf){a, b}; }
INL vi vi_of(__m256i a, __m256i b) { return (vi){a, b}; }
INL vf vf_zero(void) { return vf_of(_mm256_setzero_ps(), _mm256_setzero_ps()); }
INL vf vf_set1(float a) { return vf_of(_mm256_set1_ps(a), _mm256_set1_ps(a)); }
INL vf vf_load(const float *p) { return vf_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INL void vf_store(float *p, vf a) {
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}
INL vf vf_load_f16(const uint16_t *p) {
    return vf_of(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
INL void vf_store_f16(uint16_t *p, vf a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.a, 0));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.b, 0));
}
INL __m256 half_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INL vf vf_load_bf16(const uint16_t *p) { return vf_of(half_load_bf16(p), half_load_bf16(p + 8)); }
INL __m256i half_round_bf16(__m256 a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i round = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(round, _mm256_set1_epi32(0x7fc00000), nan), 16);
}
INL void vf_store_bf16(uint16_t *p, vf a) {
    __m256i both = _mm256_packus_epi32(half_round_bf16(a.a), half_round_bf16(a.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}
INL vf vf_add(vf a, vf b) { return vf_of(_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)); }
INL vf vf_sub(vf a, vf b) { return vf_of(_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)); }
INL vf vf_mul(vf a, vf b) { return vf_of(_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)); }
INL vf vf_div(vf a, vf b) { return vf_of(_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)); }
INL vf vf_fma(vf a, vf b, vf c) { return vf_of(_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)); }
INL vf vf_max(vf a, vf b) { return vf_of(_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)); }
INL vf vf_min(vf a, vf b) { return vf_of(_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)); }
INL vf vf_abs(vf a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return vf_of(_mm256_andnot_ps(sign, a.a), _mm256_andnot_ps(sign, a.b));
}
INL vf vf_round(vf a) {
    return vf_of(_mm256_round_ps(a.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(a.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INL __m256 half_ldexp(__m256 a, __m256 n, __m256 x) {
    __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_GE_OQ);
    return _mm256_and_ps(keep, _mm256_mul_ps(a, _mm256_castsi256_ps(e)));
}
/* a * 2^n for whole n in [-126, 127]; 0 where x < -126 */
INL vf vf_ldexp(vf a, vf n, vf x) { return vf_of(half_ldexp(a.a, n.a, x.a), half_ldexp(a.b, n.b, x.b)); }
INL __m256 half_first(__m256 a, __m256 b, long n) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int edge = n > 8 ? 8 : n < 0 ? 0 : (int)n;
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(edge), lane)));
}
/* lanes below n of a, the rest b */
INL vf vf_first(vf a, vf b, long n) { return vf_of(half_first(a.a, b.a, n), half_first(a.b, b.b, n - 8)); }
INL float vf_sum(vf a) {
    __m256 h = _mm256_add_ps(a.a, a.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INL float vf_top(vf a) {
    __m256 h = _mm256_max_ps(a.a, a.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INL vi vi_zero(void) { return vi_of(_mm256_setzero_si256(), _mm256_setzero_si256()); }
INL vi vi_set1(int32_t a) { return vi_of(_mm256_set1_epi32(a), _mm256_set1_epi32(a)); }
INL vi vi_add(vi a, vi b) { return vi_of(_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)); }
INL vi vi_times256(vi a) { return vi_of(_mm256_slli_epi32(a.a, 8), _mm256_slli_epi32(a.b, 8)); }
INL vf vi_float(vi a) { return vf_of(_mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b)); }
/* rounds 16 floats to int8 at p and returns them as integers */
INL vi vf_quantize(int8_t *p, vf a) {
    __m256i low = _mm256_cvtps_epi32(a.a), high = _mm256_cvtps_epi32(a.b);
    __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
    return vi_of(low, high);
}
INL int32_t vi_sum(vi a) {
    __m256i h = _mm256_add_epi32(a.a, a.b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
INL vf vf_load_u8(const uint8_t *p) {
    return vf_of(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}

INL vw vw_load(const void *p) {
    return vi_of(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1));
}
INL __m256i half_low(__m256i a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
INL vw vw_low(vw a) { return vi_of(half_low(a.a), half_low(a.b)); }
INL vw vw_high(vw a) { return vi_of(half_low(_mm256_srli_epi16(a.a, 4)), half_low(_mm256_srli_epi16(a.b, 4))); }
INL __m256i half_dot(__m256i acc, __m256i w, __m256i x, __m256i weight) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), weight));
}
/* lane r += sum of row r's four weight bytes (at most 15 each) times the four signed bytes at x */
INL vi vw_dot4(vi acc, vw w, const int8_t *x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    __m256i xs = _mm256_set1_epi32(four), one = _mm256_set1_epi16(1);
    return vi_of(half_dot(acc.a, w.a, xs, one), half_dot(acc.b, w.b, xs, one));
}
/* the same for any unsigned bytes: a pair of products may leave 16 bits, so the nibbles go one at a time */
INL vi vw_dot8(vi acc, vw w, const int8_t *x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    __m256i xs = _mm256_set1_epi32(four), one = _mm256_set1_epi16(1), sixteen = _mm256_set1_epi16(16);
    vw low = vw_low(w), high = vw_high(w);
    return vi_of(half_dot(half_dot(acc.a, low.a, xs, one), high.a, xs, sixteen),
                 half_dot(half_dot(acc.b, low.b, xs, one), high.b, xs, sixteen));
}

/* 8 x 8 floats, row i in r[i], to columns at out + j * stride */
INL void half_transpose(const __m256 *r, float *out, long stride) {
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i + 0] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        _mm256_storeu_ps(out + c * stride, _mm256_permute2f128_ps(b[c], b[4 + c], 0x20));
        _mm256_storeu_ps(out + (4 + c) * stride, _mm256_permute2f128_ps(b[c], b[4 + c], 0x31));
    }
}
/* 16 rows of 16 floats, row i at rows[i], to columns: column j at out + j * stride */
INL void vf_transpose(const vf *rows, float *out, long stride) {
    __m256 part[8];
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 8; i++) part[i] = rows[8 * half + i].a;
        half_transpose(part, out + 8 * half, stride);
        for (int i = 0; i < 8; i++) part[i] = rows[8 * half + i].b;
        half_transpose(part, out + 8 * stride + 8 * half, stride);
    }
}

/* bit i is set where a[i] >= b[i] */
INL unsigned vf_ge(vf a, vf b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.a, b.a, _CMP_GE_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.b, b.b, _CMP_GE_OQ)) << 8;
}
/* v where a >= b, else 0 */
INL vf vf_where_ge(vf a, vf b, vf v) {
    return vf_of(_mm256_and_ps(_mm256_cmp_ps(a.a, b.a, _CMP_GE_OQ), v.a),
                 _mm256_and_ps(_mm256_cmp_ps(a.b, b.b, _CMP_GE_OQ), v.b));
}
INL vi vi_count_up(int32_t from) {
    return vi_add(vi_set1(from), vi_of(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                       _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)));
}
INL vi vi_xor(vi a, vi b) { return vi_of(_mm256_xor_si256(a.a, b.a), _mm256_xor_si256(a.b, b.b)); }
INL vi vi_shift8(vi a) { return vi_of(_mm256_srli_epi32(a.a, 8), _mm256_srli_epi32(a.b, 8)); }
INL void vi_store(uint32_t *p, vi a) {
    _mm256_storeu_si256((__m256i *)p, a.a);
    _mm256_storeu_si256((__m256i *)p + 1, a.b);
}
INL void half_multiply(__m256i a, __m256i by, __m256i *high, __m256i *low) {
    __m256i even = _mm256_mul_epu32(a, by), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), by);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
/* the 64-bit products of unsigned lanes with m, in two halves */
INL void vi_multiply(vi a, uint32_t m, vi *high, vi *low) {
    __m256i by = _mm256_set1_epi32((int32_t)m);
    half_multiply(a.a, by, &high->a, &low->a);
    half_multiply(a.b, by, &high->b, &low->b);
}
