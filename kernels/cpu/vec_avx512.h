/* 16 lanes in one AVX-512 register; integer dot products by VNNI. */
#include <immintrin.h>

#define TGT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define INL static inline __attribute__((always_inline)) TGT

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vw; /* 64 weight bytes: 16 rows of 4 */

INL vf vf_zero(void) { return _mm512_setzero_ps(); }
INL vf vf_set1(float a) { return _mm512_set1_ps(a); }
INL vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INL void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INL vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INL void vf_store_f16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, 0)); }
INL vf vf_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INL void vf_store_bf16(uint16_t *p, vf a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i round = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    round = _mm512_mask_mov_epi32(round, nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(round, 16)));
}
INL vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INL vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INL vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INL vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INL vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INL vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INL vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INL vf vf_abs(vf a) { return _mm512_abs_ps(a); }
INL vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* a * 2^n for whole n in [-126, 127]; 0 where x < -126 */
INL vf vf_ldexp(vf a, vf n, vf x) {
    __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
    return _mm512_maskz_mul_ps(keep, a, _mm512_castsi512_ps(e));
}
/* lanes below n of a, the rest b */
INL vf vf_first(vf a, vf b, long n) {
    __mmask16 keep = n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
    return _mm512_mask_mov_ps(b, keep, a);
}
INL float vf_sum(vf a) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INL float vf_top(vf a) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INL vi vi_zero(void) { return _mm512_setzero_si512(); }
INL vi vi_set1(int32_t a) { return _mm512_set1_epi32(a); }
INL vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INL vi vi_times256(vi a) { return _mm512_slli_epi32(a, 8); }
INL vf vi_float(vi a) { return _mm512_cvtepi32_ps(a); }
/* rounds 16 floats to int8 at p and returns them as integers */
INL vi vf_quantize(int8_t *p, vf a) {
    __m512i q = _mm512_cvtps_epi32(a);
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(q));
    return q;
}
INL int32_t vi_sum(vi a) { return _mm512_reduce_add_epi32(a); }
INL vf vf_load_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }

INL vw vw_load(const void *p) { return _mm512_loadu_si512(p); }
INL vw vw_low(vw a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INL vw vw_high(vw a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
/* lane r += sum of row r's four weight bytes times the four signed bytes at x */
INL vi vw_dot4(vi acc, vw w, const int8_t *x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(four));
}
INL vi vw_dot8(vi acc, vw w, const int8_t *x) { return vw_dot4(acc, w, x); }

/* 16 rows of 16 floats, row i at rows[i], to columns: column j at out + j * stride */
INL void vf_transpose(const vf *rows, float *out, long stride) {
    vf a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        b[i + 0] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a[i]), _mm512_castps_pd(a[i + 2])));
        b[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a[i]), _mm512_castps_pd(a[i + 2])));
        b[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a[i + 1]), _mm512_castps_pd(a[i + 3])));
        b[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a[i + 1]), _mm512_castps_pd(a[i + 3])));
    }
    /* b[4g + c], 128-bit part p: column 4p + c of rows 4g .. 4g + 3 */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vf lo0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88), lo1 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        vf hi0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd), hi1 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        vf_store(out + (0 + c) * stride, _mm512_shuffle_f32x4(lo0, lo1, 0x88));
        vf_store(out + (8 + c) * stride, _mm512_shuffle_f32x4(lo0, lo1, 0xdd));
        vf_store(out + (4 + c) * stride, _mm512_shuffle_f32x4(hi0, hi1, 0x88));
        vf_store(out + (12 + c) * stride, _mm512_shuffle_f32x4(hi0, hi1, 0xdd));
    }
}

/* bit i is set where a[i] >= b[i] */
INL unsigned vf_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
/* v where a >= b, else 0 */
INL vf vf_where_ge(vf a, vf b, vf v) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), v); }
INL vi vi_count_up(int32_t from) {
    return _mm512_add_epi32(vi_set1(from), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
INL vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INL vi vi_shift8(vi a) { return _mm512_srli_epi32(a, 8); }
INL void vi_store(uint32_t *p, vi a) { _mm512_storeu_si512(p, a); }
/* the 64-bit products of unsigned lanes with m, in two halves */
INL void vi_multiply(vi a, uint32_t m, vi *high, vi *low) {
    vi by = vi_set1((int32_t)m);
    vi even = _mm512_mul_epu32(a, by), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), by);
    *low = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
}
