/*
 * What differs between the interfaces of oneDNN 2 and oneDNN 3: descriptors of memory, and descriptions of primitives.
 * The other calls are the same in both.
 *
 * Version 3 allocates a descriptor of memory and hides its members; in version 2 it is a struct. Here both are a
 * pointer, with the functions of version 3. Version 2 describes a primitive in two steps, and version 3 in one.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_API_H
#define RW_DEVICE_CPU_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- descriptors of memory ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t rw_onednn_desc;
typedef const_dnnl_memory_desc_t rw_onednn_const_desc;
#else
typedef dnnl_memory_desc_t *rw_onednn_desc;
typedef const dnnl_memory_desc_t *rw_onednn_const_desc;
#endif

/* Maximum memory of one. */
#define RW_ONEDNN_DESC_BYTES ((size_t)800)

/* Each replaces *d, which is NULL or a descriptor; on failure *d is NULL or what it was. */
dnnl_status_t rw_onednn_desc_by_strides(rw_onednn_desc *d, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                                        const dnnl_dims_t strides);
dnnl_status_t rw_onednn_desc_by_tag(rw_onednn_desc *d, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    dnnl_format_tag_t tag);
dnnl_status_t rw_onednn_desc_copy(rw_onednn_desc *d, rw_onednn_const_desc from);

/* A part of another one's memory: dims elements from the offsets on. *ret_offset: its first element. */
dnnl_status_t rw_onednn_desc_part(rw_onednn_desc *d, rw_onednn_const_desc whole, const dnnl_dims_t dims,
                                  const dnnl_dims_t offsets, int64_t *ret_offset);

void rw_onednn_desc_destroy(rw_onednn_desc *d);

/* The layout of four dimensions with two inner blocks, such as [oc / 16, c / 2, kh, kw, 16, 2]. False for any other. */
struct rw_onednn_blocks {
    dnnl_data_type_t type;
    int64_t extent[4], padded[4], stride[4]; /* strides: between blocks */
    int64_t block[2], of[2];                 /* extents, and the dimensions that they divide */
};
bool rw_onednn_desc_blocks(rw_onednn_const_desc d, struct rw_onednn_blocks *ret);

/* ---- descriptions of primitives ---- */

/* c = a b + bias; bias may be NULL. dnnl_unimplemented: there is no code for it. */
dnnl_status_t rw_onednn_describe_matmul(dnnl_engine_t engine, rw_onednn_const_desc a, rw_onednn_const_desc b,
                                        rw_onednn_const_desc bias, rw_onednn_const_desc c, dnnl_primitive_attr_t attr,
                                        dnnl_primitive_desc_t *ret);

/*
 * One of the three products of a convolution (rw_onednn_conv in onednn.h), by the library's first choice of code whose
 * name does not contain `excluded`; NULL excludes nothing.
 *
 * A gradient is described without its forward convolution as a hint: no CPU code uses that, and its description takes
 * memory that grows with the length of a row.
 */
struct rw_onednn_conv_operands {
    rw_onednn_const_desc x, weight, bias, y; /* bias: NULL for none */
    dnnl_dims_t stride, dilation, padding, end; /* dilation: 0 is dense */
};
dnnl_status_t rw_onednn_describe_conv(dnnl_engine_t engine, int kind, const struct rw_onednn_conv_operands *o,
                                      dnnl_primitive_attr_t attr, const char *excluded, dnnl_primitive_desc_t *ret);

/* Does the name of a primitive's code contain this? */
bool rw_onednn_is_named(dnnl_primitive_desc_t pd, const char *part);

/* Adds the product to the contents of its destination. */
dnnl_status_t rw_onednn_append_sum(dnnl_post_ops_t ops);

#endif
