/* Names and sizes of the small value types, and the sentinel for an omitted operand. */
#include "base/element_size.h"
#include "record/context.h"
#include "record/node.h"

#include <rewind/ops.h>

static const char *const dtype_names[RW_DTYPE_COUNT] = {
    [RW_F32] = "f32",         [RW_F64] = "f64",         [RW_BF16] = "bf16",
    [RW_F16] = "f16",         [RW_I32] = "i32",         [RW_BOOL] = "bool",
    [RW_F8_E4M3] = "f8_e4m3", [RW_F8_E5M2] = "f8_e5m2", [RW_F8_E8M0] = "f8_e8m0",
};

size_t rw_dtype_size(rw_dtype dtype)
{
    RW_LOOKS_ONLY;
    return rw_element_size((int32_t)dtype);
}

const char *rw_dtype_name(rw_dtype dtype)
{
    RW_LOOKS_ONLY;
    return (unsigned)dtype < RW_DTYPE_COUNT ? dtype_names[dtype] : "?";
}

bool rw_dtype_is_float(rw_dtype dtype)
{
    RW_LOOKS_ONLY;
    return dtype == RW_F32 || dtype == RW_F64 || dtype == RW_BF16 || dtype == RW_F16;
}

bool rw_dtype_is_code(rw_dtype dtype)
{
    RW_LOOKS_ONLY;
    return dtype == RW_F8_E4M3 || dtype == RW_F8_E5M2 || dtype == RW_F8_E8M0;
}

int64_t rw_shape_numel(rw_shape shape)
{
    RW_LOOKS_ONLY;
    int64_t n = 1;
    bool has_no_room = false, is_empty = false;
    for (int i = 0; i < shape.rank && i < RW_MAX_RANK; i++) {
        is_empty |= shape.dim[i] == 0;
        has_no_room |= __builtin_mul_overflow(n, shape.dim[i], &n);
    }
    return is_empty ? 0 : has_no_room ? INT64_MAX : n;
}

bool rw_shape_equal(rw_shape a, rw_shape b)
{
    RW_LOOKS_ONLY;
    if (a.rank != b.rank) return false;
    for (int i = 0; i < a.rank && i < RW_MAX_RANK; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}

const char *rw_device_name(rw_device device)
{
    RW_LOOKS_ONLY;
    static const char *const names[RW_DEVICE_COUNT] = { "auto", "cpu", "cuda" };
    return (unsigned)device < RW_DEVICE_COUNT ? names[device] : "?";
}

const char *rw_status_name(rw_status status)
{
    RW_LOOKS_ONLY;
    switch (status) {
    case RW_OK: return "ok";
    case RW_ERR_ARGUMENT: return "invalid argument";
    case RW_ERR_SHAPE: return "shape mismatch";
    case RW_ERR_DTYPE: return "wrong element type";
    case RW_ERR_REGION: return "begin and end calls do not match";
    case RW_ERR_POLICY: return "invalid policy";
    case RW_ERR_MEMORY: return "out of memory";
    case RW_ERR_MODIFIED: return "recorded tensor was modified";
    case RW_ERR_MISMATCH: return "bytes differ";
    case RW_ERR_NO_GRADIENT: return "no gradient rule";
    case RW_ERR_DEVICE: return "device error";
    case RW_ERR_IO: return "file or stream error";
    case RW_ERR_UNSUPPORTED: return "not supported";
    case RW_ERR_BUDGET: return "budget too small";
    }
    return "unknown status";
}

bool rw_is_status(int number)
{
    return number >= RW_OK && number <= RW_ERR_BUDGET;
}

rw_tensor *rw_none(void)
{
    RW_LOOKS_ONLY;
    static struct rw_tensor none = { .id = RW_NONE_ID, .producer = RW_NONE_ID, .leaf = RW_NONE_ID };
    return &none;
}
