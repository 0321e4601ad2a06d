/* The kernels compiled for AVX2. */
#include "ops.h"

#if defined(__x86_64__)

#include "vec_avx2.h"

#define TILE_TOKENS 4
#define TILE_QUERIES 4
#include "rows_impl.h"
#include "linear_impl.h"
#include "attention_impl.h"
#include "sample_impl.h"

const tsd_table tsd_avx2 = {prologue, linear, rope, attention, norm, lookup, draw};

#endif
