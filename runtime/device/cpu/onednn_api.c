/* What differs between the interfaces of oneDNN 2 and oneDNN 3. */
#include "device/cpu/onednn_api.h"

#include "base/alloc.h"
#include "device/cpu/onednn.h"

#include <string.h>

bool rw_onednn_is_named(dnnl_primitive_desc_t pd, const char *part)
{
    const char *name = NULL;
    return !dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) && name && strstr(name, part);
}

/* Puts the result of a call in place of *d. */
static dnnl_status_t replace(rw_onednn_desc *d, dnnl_status_t status, rw_onednn_desc by)
{
    if (status) return status;
    rw_onednn_desc_destroy(d);
    *d = by;
    return dnnl_success;
}

#if DNNL_VERSION_MAJOR >= 3

/* ---- version 3 ---- */

dnnl_status_t rw_onednn_desc_by_strides(rw_onednn_desc *d, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                                        const dnnl_dims_t strides)
{
    rw_onednn_desc made = NULL;
    const dnnl_status_t status = dnnl_memory_desc_create_with_strides(&made, n, dims, type, strides);
    return replace(d, status, made);
}

dnnl_status_t rw_onednn_desc_by_tag(rw_onednn_desc *d, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    dnnl_format_tag_t tag)
{
    rw_onednn_desc made = NULL;
    const dnnl_status_t status = dnnl_memory_desc_create_with_tag(&made, n, dims, type, tag);
    return replace(d, status, made);
}

dnnl_status_t rw_onednn_desc_copy(rw_onednn_desc *d, rw_onednn_const_desc from)
{
    rw_onednn_desc made = NULL;
    const dnnl_status_t status = dnnl_memory_desc_clone(&made, from);
    return replace(d, status, made);
}

dnnl_status_t rw_onednn_desc_part(rw_onednn_desc *d, rw_onednn_const_desc whole, const dnnl_dims_t dims,
                                  const dnnl_dims_t offsets, int64_t *ret_offset)
{
    rw_onednn_desc made = NULL;
    dnnl_status_t status = dnnl_memory_desc_create_submemory(&made, whole, dims, offsets);
    if (!status) status = dnnl_memory_desc_query(made, dnnl_query_submemory_offset_s64, ret_offset);
    if (status) rw_onednn_desc_destroy(&made);
    return replace(d, status, made);
}

void rw_onednn_desc_destroy(rw_onednn_desc *d)
{
    if (*d) dnnl_memory_desc_destroy(*d);
    *d = NULL;
}

static const int64_t *numbers_of(rw_onednn_const_desc d, dnnl_query_t what)
{
    const dnnl_dims_t *numbers = NULL;
    return dnnl_memory_desc_query(d, what, &numbers) || !numbers ? NULL : *numbers;
}

/* Those of 64 bits may also be compensated, for products of integers: not those of floating point. */
bool rw_onednn_desc_blocks(rw_onednn_const_desc d, struct rw_onednn_blocks *ret)
{
    dnnl_format_kind_t format;
    int n, blocks;
    if (dnnl_memory_desc_query(d, dnnl_query_format_kind, &format) || format != dnnl_blocked) return false;
    if (dnnl_memory_desc_query(d, dnnl_query_ndims_s32, &n) || n != 4) return false;
    if (dnnl_memory_desc_query(d, dnnl_query_inner_nblks_s32, &blocks) || blocks != 2) return false;
    if (dnnl_memory_desc_query(d, dnnl_query_data_type, &ret->type)) return false;
    const int64_t *const extent = numbers_of(d, dnnl_query_dims), *const padded = numbers_of(d, dnnl_query_padded_dims);
    const int64_t *const stride = numbers_of(d, dnnl_query_strides);
    const int64_t *const block = numbers_of(d, dnnl_query_inner_blks), *const of = numbers_of(d, dnnl_query_inner_idxs);
    if (!extent || !padded || !stride || !block || !of) return false;
    memcpy(ret->extent, extent, sizeof ret->extent);
    memcpy(ret->padded, padded, sizeof ret->padded);
    memcpy(ret->stride, stride, sizeof ret->stride);
    memcpy(ret->block, block, sizeof ret->block);
    memcpy(ret->of, of, sizeof ret->of);
    return true;
}

dnnl_status_t rw_onednn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}

dnnl_status_t rw_onednn_describe_matmul(dnnl_engine_t engine, rw_onednn_const_desc a, rw_onednn_const_desc b,
                                        rw_onednn_const_desc bias, rw_onednn_const_desc c, dnnl_primitive_attr_t attr,
                                        dnnl_primitive_desc_t *ret)
{
    return dnnl_matmul_primitive_desc_create(ret, engine, a, b, bias, c, attr);
}

/* Moves on from code whose name contains `excluded`. */
static dnnl_status_t skip(dnnl_primitive_desc_t *pd, const char *excluded)
{
    dnnl_status_t status = dnnl_success;
    while (!status && rw_onednn_is_named(*pd, excluded)) status = dnnl_primitive_desc_next_impl(*pd);
    if (!status) return dnnl_success;
    dnnl_primitive_desc_destroy(*pd);
    *pd = NULL;
    return status == dnnl_last_impl_reached ? dnnl_unimplemented : status;
}

dnnl_status_t rw_onednn_describe_conv(dnnl_engine_t engine, int kind, const struct rw_onednn_conv_operands *o,
                                      dnnl_primitive_attr_t attr, const char *excluded, dnnl_primitive_desc_t *ret)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_status_t status;
    if (kind == RW_ONEDNN_FORWARD)
        status = dnnl_convolution_forward_primitive_desc_create(ret, engine, dnnl_forward_training, direct, o->x,
                                                                o->weight, o->bias, o->y, o->stride, o->dilation,
                                                                o->padding, o->end, attr);
    else if (kind == RW_ONEDNN_BACKWARD_DATA)
        status = dnnl_convolution_backward_data_primitive_desc_create(ret, engine, direct, o->x, o->weight, o->y,
                                                                      o->stride, o->dilation, o->padding, o->end, NULL,
                                                                      attr);
    else
        status = dnnl_convolution_backward_weights_primitive_desc_create(ret, engine, direct, o->x, o->weight, NULL,
                                                                         o->y, o->stride, o->dilation, o->padding,
                                                                         o->end, NULL, attr);
    return status || !excluded ? status : skip(ret, excluded);
}

#else

/* ---- version 2 ---- */

/* A descriptor whose members a function of the library sets. */
static rw_onednn_desc new_desc(void)
{
    return rw_calloc(1, sizeof(dnnl_memory_desc_t));
}

/* Ends a function that makes one. */
static dnnl_status_t made(rw_onednn_desc *d, dnnl_status_t status, rw_onednn_desc by)
{
    if (status) rw_free(by);
    return replace(d, status, by);
}

dnnl_status_t rw_onednn_desc_by_strides(rw_onednn_desc *d, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                                        const dnnl_dims_t strides)
{
    rw_onednn_desc const by = new_desc();
    return made(d, by ? dnnl_memory_desc_init_by_strides(by, n, dims, type, strides) : dnnl_out_of_memory, by);
}

dnnl_status_t rw_onednn_desc_by_tag(rw_onednn_desc *d, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    dnnl_format_tag_t tag)
{
    rw_onednn_desc const by = new_desc();
    return made(d, by ? dnnl_memory_desc_init_by_tag(by, n, dims, type, tag) : dnnl_out_of_memory, by);
}

dnnl_status_t rw_onednn_desc_copy(rw_onednn_desc *d, rw_onednn_const_desc from)
{
    rw_onednn_desc const by = new_desc();
    if (by) *by = *from;
    return made(d, by ? dnnl_success : dnnl_out_of_memory, by);
}

dnnl_status_t rw_onednn_desc_part(rw_onednn_desc *d, rw_onednn_const_desc whole, const dnnl_dims_t dims,
                                  const dnnl_dims_t offsets, int64_t *ret_offset)
{
    rw_onednn_desc const by = new_desc();
    const dnnl_status_t status = by ? dnnl_memory_desc_init_submemory(by, whole, dims, offsets) : dnnl_out_of_memory;
    if (!status) *ret_offset = by->offset0;
    return made(d, status, by);
}

void rw_onednn_desc_destroy(rw_onednn_desc *d)
{
    rw_free(*d);
    *d = NULL;
}

bool rw_onednn_desc_blocks(rw_onednn_const_desc d, struct rw_onednn_blocks *ret)
{
    const dnnl_blocking_desc_t *const b = &d->format_desc.blocking;
    if (d->ndims != 4 || d->format_kind != dnnl_blocked || d->extra.flags || b->inner_nblks != 2) return false;
    ret->type = d->data_type;
    memcpy(ret->extent, d->dims, sizeof ret->extent);
    memcpy(ret->padded, d->padded_dims, sizeof ret->padded);
    memcpy(ret->stride, b->strides, sizeof ret->stride);
    memcpy(ret->block, b->inner_blks, sizeof ret->block);
    memcpy(ret->of, b->inner_idxs, sizeof ret->of);
    return true;
}

dnnl_status_t rw_onednn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1);
}

/* Describes a primitive by the library's first choice of code whose name does not contain `excluded`. */
static dnnl_status_t describe(dnnl_engine_t engine, const void *desc, dnnl_primitive_attr_t attr, const char *excluded,
                              dnnl_primitive_desc_t *ret)
{
    dnnl_primitive_desc_iterator_t choice = NULL;
    dnnl_status_t status = dnnl_primitive_desc_iterator_create(&choice, desc, attr, engine, NULL);
    while (!status) {
        *ret = dnnl_primitive_desc_iterator_fetch(choice);
        if (!*ret) status = dnnl_out_of_memory;
        if (status || !excluded || !rw_onednn_is_named(*ret, excluded)) break;
        dnnl_primitive_desc_destroy(*ret);
        *ret = NULL;
        status = dnnl_primitive_desc_iterator_next(choice);
    }
    if (choice) dnnl_primitive_desc_iterator_destroy(choice);
    return status == dnnl_iterator_ends ? dnnl_unimplemented : status;
}

dnnl_status_t rw_onednn_describe_matmul(dnnl_engine_t engine, rw_onednn_const_desc a, rw_onednn_const_desc b,
                                        rw_onednn_const_desc bias, rw_onednn_const_desc c, dnnl_primitive_attr_t attr,
                                        dnnl_primitive_desc_t *ret)
{
    dnnl_matmul_desc_t desc;
    const dnnl_status_t status = dnnl_matmul_desc_init(&desc, a, b, bias, c);
    return status ? status : describe(engine, &desc, attr, NULL, ret);
}

dnnl_status_t rw_onednn_describe_conv(dnnl_engine_t engine, int kind, const struct rw_onednn_conv_operands *o,
                                      dnnl_primitive_attr_t attr, const char *excluded, dnnl_primitive_desc_t *ret)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_convolution_desc_t desc;
    dnnl_status_t status;
    if (kind == RW_ONEDNN_FORWARD)
        status = dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, direct, o->x, o->weight,
                                                            o->bias, o->y, o->stride, o->dilation, o->padding, o->end);
    else if (kind == RW_ONEDNN_BACKWARD_DATA)
        status = dnnl_dilated_convolution_backward_data_desc_init(&desc, direct, o->x, o->weight, o->y, o->stride,
                                                                  o->dilation, o->padding, o->end);
    else
        status = dnnl_dilated_convolution_backward_weights_desc_init(&desc, direct, o->x, o->weight, NULL, o->y,
                                                                     o->stride, o->dilation, o->padding, o->end);
    return status ? status : describe(engine, &desc, attr, excluded, ret);
}

#endif
