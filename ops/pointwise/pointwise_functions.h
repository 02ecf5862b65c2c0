/* The arithmetic of the element-wise ops on the CPU: nf_op_NAME() and nd_op_NAME(), on native vectors. */
#ifndef RW_OPS_POINTWISE_FUNCTIONS_H
#define RW_OPS_POINTWISE_FUNCTIONS_H

#include "ops/common/vec_native.h"

VEC_INLINE nf nf_share(nf n, nf d) { return n / d; }
VEC_INLINE nd nd_share(nd n, nd d) { return n / d; }

#define V nf
#define VS float
#define VM ni
#define F(name) nf_##name
#include "ops/pointwise/pointwise_functions_tmpl.h"
#undef V
#undef VS
#undef VM
#undef F
#define V nd
#define VS double
#define VM nl
#define F(name) nd_##name
#include "ops/pointwise/pointwise_functions_tmpl.h"
#undef V
#undef VS
#undef VM
#undef F

#endif
