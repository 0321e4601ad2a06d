/* The kernels compiled for any machine. */
#include "ops.h"

#include "vec_plain.h"

#define TILE_TOKENS 4
#define TILE_QUERIES 4
#include "rows_impl.h"
#include "linear_impl.h"
#include "attention_impl.h"
#include "sample_impl.h"

const tsd_table tsd_plain = {prologue, linear, rope, attention, norm, lookup, draw};
