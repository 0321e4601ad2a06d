/* The kernels compiled for AVX-512 with VNNI. */
#include "ops.h"

#if defined(__x86_64__)

#include "vec_avx512.h"

#define TILE_TOKENS 16
#define TILE_QUERIES 8
#include "rows_impl.h"
#include "linear_impl.h"
#include "attention_impl.h"
#include "sample_impl.h"

const tsd_table tsd_avx512 = {prologue, linear, rope, attention, norm, lookup, draw};

#endif
