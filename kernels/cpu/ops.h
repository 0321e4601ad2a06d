/* The arguments of the CPU kernels and the table of functions that each instruction set fills in.
 *
 * Every vector is 16 float lanes wide whatever the machine, and every sum is taken in an order that depends only on
 * the row it belongs to: a row's bits are the same alone and in any batch, in one chunk and in many.
 */
#ifndef TSD_OPS_H
#define TSD_OPS_H

#include <stddef.h>
#include <stdint.h>

enum { TSD_F32 = 0, TSD_BF16 = 1, TSD_F16 = 2 };
enum { TSD_DENSE = 0, TSD_Q4 = 1, TSD_Q8 = 2, TSD_INT8 = 3 };
enum { TSD_PLAIN = 0, TSD_AVX2 = 1, TSD_AVX512 = 2, TSD_ISAS = 3 };

#define TSD_LANES 16
#define TSD_BLOCK 32    /* columns that share a scale */
#define TSD_KV_BLOCK 32 /* cache positions taken together in attention, counted from position 0 */

/* y[T, N] = f(x) @ w.T + bias + residual.
 *
 * Weights lie in groups of 16 rows (the last one padded with zeros):
 *   q4     qs [group][block][4][16 rows][4]: byte (j, r, b) holds column 4j+b low, 16+4j+b high
 *          scales [group][block][d 16 rows | m 16 rows] float16
 *   q8     qs [group][block][8][16 rows][4]: value + 128; scales [group][block][16 rows] float16
 *   int8   qs as q8; row_scales [group][16 rows] float32
 *   dense  qs [group][K][16 rows] of `wtype`
 */
typedef struct {
    const void *x; /* [T, K], or [T, 2K] = gate | up when silu_mul */
    int xtype;
    int silu_mul;
    const void *norm; /* [K] of `ntype`, or NULL */
    int ntype;
    float eps;
    int method;
    const void *qs;
    const uint16_t *scales;
    const float *row_scales;
    int wtype;
    const void *bias; /* [N] of xtype, or NULL */
    const void *residual; /* [T, N] of xtype, or NULL */
    void *y; /* [T, N] of xtype */
    long T, K, N;
    /* filled by the driver: the activations as the inner loops read them */
    int8_t *qx;  /* T K integers of two bytes, by tiles (linear_impl.h) */
    float *dx;   /* T K/32: scale of a block */
    float *sx;   /* T K/32: scale times the sum of a block's integers */
    int32_t *cx; /* T K/32: -128 times that sum */
    float *fx;   /* T K, dense only */
} tsd_linear;

typedef struct {
    const void *qkv; /* [T, (Hq + 2 Hkv) D] of xtype */
    void *q;         /* [T, Hq, D] of xtype */
    void *k_cache, *v_cache; /* [slots, Hkv, D] of kvtype */
    const int32_t *positions, *slots;
    const float *cos_sin; /* [max_pos, R]: R/2 cosines, R/2 sines */
    const void *q_norm, *k_norm; /* [D] of ntype or NULL */
    float eps;
    int xtype, kvtype, ntype;
    long T, Hq, Hkv, D, R;
} tsd_rope;

typedef struct {
    const void *q; /* [T, Hq, D] of xtype */
    void *out;     /* same */
    const void *k_cache, *v_cache;
    const int32_t *positions, *query_start, *page_table;
    int xtype, kvtype;
    long rows, table_width, page_size, Hq, Hkv, D;
    long largest;   /* most tokens of any row */
    long tile;      /* tokens of a row that share the cache blocks loaded */
    const int64_t *items; /* [n, 2]: row, first token (in T) of a tile */
    int together;         /* an item covers every KV head, not one (filled by the driver) */
    float scale;
} tsd_attention;

typedef struct {
    const void *x, *weight;
    void *y;
    int xtype, wtype;
    long T, K;
    float eps;
} tsd_norm;

typedef struct {
    const void *ids; /* int32 or int64 */
    int wide_ids;
    const void *qs;
    const uint16_t *scales;
    const float *row_scales;
    int method, wtype, ytype;
    void *y;
    long T, K, N; /* N ids in the table */
} tsd_lookup;

/* One draw a row; kernels/sampling/types.py says what each step means. */
typedef struct {
    const float *logits; /* [S, vocab] */
    const float *temperature, *top_p, *min_p;
    const int32_t *top_k;
    const int64_t *seeds, *token_index;
    int32_t *tokens; /* [S] */
    long S, vocab;
    int filtered; /* some row uses top-k, top-p or min-p */
} tsd_draw;

typedef struct {
    void (*prologue)(tsd_linear *a, long begin, long end);           /* tokens */
    void (*linear)(const tsd_linear *a, long begin, long end);       /* row groups */
    void (*rope)(const tsd_rope *a, long begin, long end);           /* tokens */
    void (*attention)(const tsd_attention *a, long begin, long end); /* items (x KV heads) */
    void (*norm)(const tsd_norm *a, long begin, long end);           /* tokens */
    void (*lookup)(const tsd_lookup *a, long begin, long end);       /* tokens */
    void (*draw)(const tsd_draw *a, long begin, long end);           /* rows */
} tsd_table;

extern const tsd_table tsd_plain;
#if defined(__x86_64__)
extern const tsd_table tsd_avx2, tsd_avx512;
#endif

/* dispatch.c */
int tsd_best_isa(void);
const tsd_table *tsd_isa_table(int isa); /* NULL when this machine lacks it */
int tsd_run_linear(tsd_linear *a, int isa);
int tsd_run_rope(tsd_rope *a, int isa);
int tsd_run_attention(tsd_attention *a, long items, int isa);
int tsd_run_norm(tsd_norm *a, int isa);
int tsd_run_lookup(tsd_lookup *a, int isa);
int tsd_run_draw(tsd_draw *a, int isa);
void *tsd_scratch(int which, size_t bytes); /* of this thread, 64-byte aligned, kept; NULL without memory */

/* pool.c */
typedef void (*tsd_task)(void *context, long begin, long end);
void tsd_parallel(tsd_task task, void *context, long items, long chunk);
int tsd_set_threads(int threads); /* returns how many it got */
int tsd_get_threads(void);

#endif
