/* Chooses the instruction set at run time, cuts the work into pieces, and keeps each thread's scratch memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "ops.h"

#define PARALLEL_WORK 200000 /* multiply-adds under which waking a helper costs more than it gives */
#define SCRATCHES 4

int tsd_best_isa(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        return TSD_AVX512;
    if (avx2) return TSD_AVX2;
#endif
    return TSD_PLAIN;
}

const tsd_table *tsd_isa_table(int isa) {
    static int best = -1;
    if (best < 0) best = tsd_best_isa();
    if (isa < 0) isa = best;
    if (isa > best) return NULL;
#if defined(__x86_64__)
    if (isa == TSD_AVX512) return &tsd_avx512;
    if (isa == TSD_AVX2) return &tsd_avx2;
#endif
    return &tsd_plain;
}

typedef struct {
    void *memory[SCRATCHES];
    size_t size[SCRATCHES];
} scratch;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread scratch *mine;

static void drop(void *value) {
    scratch *s = (scratch *)value;
    for (int i = 0; i < SCRATCHES; i++) free(s->memory[i]);
    free(s);
}
static void make_key(void) { pthread_key_create(&key, drop); }

void *tsd_scratch(int which, size_t bytes) {
    if (!mine) {
        pthread_once(&once, make_key);
        mine = (scratch *)calloc(1, sizeof(scratch));
        if (!mine) abort();
        pthread_setspecific(key, mine);
    }
    if (mine->size[which] < bytes) {
        size_t size = (bytes + bytes / 2 + 4095) & ~(size_t)4095;
        free(mine->memory[which]);
        mine->memory[which] = aligned_alloc(64, size);
        if (!mine->memory[which]) abort(); /* a few MiB: the process is lost anyway */
        mine->size[which] = size;
    }
    return mine->memory[which];
}

typedef struct {
    const tsd_table *table;
    void *args;
} call;

#define TASK(name, type) \
    static void name##_task(void *context, long begin, long end) { \
        call *c = (call *)context; \
        c->table->name((type *)c->args, begin, end); \
    }
TASK(prologue, tsd_linear)
TASK(linear, tsd_linear)
TASK(rope, tsd_rope)
TASK(attention, tsd_attention)
TASK(norm, tsd_norm)
TASK(draw, tsd_draw)

static long pieces(long items, long per_thread) {
    long chunk = items / ((long)tsd_get_threads() * per_thread);
    return chunk < 1 ? 1 : chunk;
}

/* Each run_ function: 0, or -1 when this machine lacks the instruction set, -2 for an id outside the table. */
int tsd_run_linear(tsd_linear *a, int isa) {
    call c = {tsd_isa_table(isa), a};
    if (!c.table) return -1;
    long blocks = a->K / TSD_BLOCK, groups = (a->N + TSD_LANES - 1) / TSD_LANES;
    size_t rows = (size_t)a->T * a->K, scales = (size_t)a->T * blocks;
    if (a->method == TSD_DENSE) {
        a->fx = (float *)tsd_scratch(0, rows * sizeof(float));
    } else {
        char *memory = (char *)tsd_scratch(0, 2 * rows + 12 * scales + 256);
        a->qx = (int8_t *)memory;
        a->dx = (float *)(memory + ((2 * rows + 63) & ~(size_t)63));
        a->sx = a->dx + scales;
        a->cx = (int32_t *)(a->sx + scales);
    }
    if (a->T < 8) c.table->prologue(a, 0, a->T);
    else tsd_parallel(prologue_task, &c, a->T, pieces(a->T, 2));
    if (a->T * a->K * a->N < PARALLEL_WORK) c.table->linear(a, 0, groups);
    else tsd_parallel(linear_task, &c, groups, pieces(groups, 4));
    return 0;
}

int tsd_run_rope(tsd_rope *a, int isa) {
    call c = {tsd_isa_table(isa), a};
    if (!c.table) return -1;
    if (a->T < 16) c.table->rope(a, 0, a->T);
    else tsd_parallel(rope_task, &c, a->T, pieces(a->T, 2));
    return 0;
}

int tsd_run_attention(tsd_attention *a, long items, int isa) {
    call c = {tsd_isa_table(isa), a};
    if (!c.table) return -1;
    a->together = a->largest == 1 && items >= 2 * tsd_get_threads() - 1;
    tsd_parallel(attention_task, &c, a->together ? items : items * a->Hkv, 1);
    return 0;
}

int tsd_run_norm(tsd_norm *a, int isa) {
    call c = {tsd_isa_table(isa), a};
    if (!c.table) return -1;
    if (a->T < 32) c.table->norm(a, 0, a->T);
    else tsd_parallel(norm_task, &c, a->T, pieces(a->T, 2));
    return 0;
}

int tsd_run_lookup(tsd_lookup *a, int isa) {
    call c = {tsd_isa_table(isa), a};
    if (!c.table) return -1;
    for (long t = 0; t < a->T; t++) {
        int64_t id = a->wide_ids ? ((const int64_t *)a->ids)[t] : ((const int32_t *)a->ids)[t];
        if (id < 0 || id >= a->N) return -2;
    }
    c.table->lookup(a, 0, a->T);
    return 0;
}

int tsd_run_draw(tsd_draw *a, int isa) {
    call c = {tsd_isa_table(isa), a};
    if (!c.table) return -1;
    tsd_parallel(draw_task, &c, a->S, 1);
    return 0;
}
