/*
 * Instantiates the plain loops of products for this instruction set: includes OWN_LOOPS, a file of functions F(name),
 * once for float and once for double. No include guard.
 */

/* Rows of a register block; divides GEMM_OWN_M. */
#if defined(RW_ISA_IS_V4)
#define OWN_ROWS 16
#elif defined(RW_ISA_IS_V3)
#define OWN_ROWS 6
#else
#define OWN_ROWS 3
#endif

/* Depth of a block. The blocks are on the stack: with 256 bytes per row they fit on a thread's stack of 64 KiB, in
   double as well, and each block is large enough to amortize packing. */
#define OWN_DEPTH (int64_t)(GEMM_OWN_DEPTH_BYTES / sizeof(T))

#define T float
#define N nf
#define LANES VF_LANES
#define F(name) vf_##name
#define G(name) nf_##name
#include OWN_LOOPS
#undef T
#undef N
#undef LANES
#undef F
#undef G
#define T double
#define N nd
#define LANES VD_LANES
#define F(name) vd_##name
#define G(name) nd_##name
#include OWN_LOOPS
