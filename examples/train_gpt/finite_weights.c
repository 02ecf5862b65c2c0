/* See finite_weights.h. */
#include "finite_weights.h"

#include <stdlib.h>

/* An exponent of all ones: infinity or NaN. */
static bool are_finite(rw_dtype dtype, const void *bytes, size_t n)
{
    const uint32_t *const wide = bytes;
    const uint16_t *const narrow = bytes;
    const uint16_t ones = dtype == RW_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; dtype == RW_F32 && i < n; i++)
        if ((wide[i] & 0x7f800000) == 0x7f800000) return false;
    for (size_t i = 0; (dtype == RW_F16 || dtype == RW_BF16) && i < n; i++)
        if ((narrow[i] & ones) == ones) return false;
    return true;
}

rw_status weights_are_finite(rw_context *ctx, bool *ret)
{
    void *bytes = NULL;
    size_t room = 0;
    rw_status status = RW_OK;
    rw_tensor *p;
    *ret = true;
    for (size_t i = 0; !status && *ret && (p = rw_param_get(ctx, i)); i++) {
        const size_t n = rw_tensor_bytes(p);
        if (n > room) {
            free(bytes);
            bytes = malloc(room = n);
        }
        status = bytes ? rw_read(NULL, p, bytes, n) : RW_ERR_MEMORY;
        if (!status) *ret = are_finite(rw_tensor_dtype(p), bytes, n / rw_dtype_size(rw_tensor_dtype(p)));
    }
    free(bytes);
    return status;
}
