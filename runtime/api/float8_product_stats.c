/* rw_float8_product_stats(): how products of 8-bit factors were executed. */
#include "record/context.h"

rw_status rw_float8_product_stats(const rw_context *ctx, rw_float8_products *ret_products)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_float8_product_stats", "ctx");
    if (!ret_products) return rw_fail_null((rw_context *)(uintptr_t)ctx, "rw_float8_product_stats", "ret_products");
    *ret_products = (rw_float8_products){ 0, 0 };
    if (ctx->device->float8_products) ctx->device->float8_products(ctx->device_state, ret_products);
    return RW_OK;
}
