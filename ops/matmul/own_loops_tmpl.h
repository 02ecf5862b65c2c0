/*
 * The own loops of products for this instruction set: includes OWN_LOOPS, a file of functions F(name), once for float
 * and once for double. No include guard.
 */

/* Rows of a block held in registers; divides GEMM_OWN_M. */
#if defined(RW_ISA_IS_V4)
#define OWN_ROWS 16
#elif defined(RW_ISA_IS_V3)
#define OWN_ROWS 6
#else
#define OWN_ROWS 3
#endif

/* Numbers along the depth of a block. The blocks lie on the stack: with 256 bytes a thread of 64 KiB has room for them,
   in double as well, and each is filled often enough. */
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
