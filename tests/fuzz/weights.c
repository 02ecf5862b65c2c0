/*
 * Fuzzes rw_load(): any file is loaded, or is an error that describes the fault, and then nothing has changed. The
 * first byte of an input selects whether the rest is the file itself, or its header, for which the length is prepended
 * and elements are appended.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ELEMENTS 64 /* bytes after a header: at least the size of the tensors */

static rw_context *ctx;
static int file;
static char path[64];

static void open_once(void)
{
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1 };
    if (ctx) return;
    HOLDS(!rw_context_create(&ctx, &params), "no context");
    HOLDS(rw_param(ctx, "w", RW_F32, RW_SHAPE(2, 3)) && rw_param(ctx, "b", RW_BF16, RW_SHAPE(4)) &&
              rw_buffer(ctx, "n", RW_I32, RW_SCALAR) && rw_buffer(ctx, "nothing", RW_F64, RW_SHAPE(0, 2)),
          "no tensors");
    file = memfd_create("weights", 0);
    HOLDS(file >= 0, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
}

static void write_file(const uint8_t *data, size_t size)
{
    static const uint8_t elements[ELEMENTS] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const bool header_only = size && data[0] & 1;
    const uint64_t length = size ? size - 1 : 0;
    size_t end = 0;
    HOLDS(!ftruncate(file, 0), "ftruncate");
    if (header_only) end += (size_t)pwrite(file, &length, 8, 0);
    if (length) end += (size_t)pwrite(file, data + 1, length, (off_t)end);
    if (header_only) end += (size_t)pwrite(file, elements, sizeof elements, (off_t)end);
    HOLDS(end == length + (header_only ? 8 + sizeof elements : 0), "pwrite");
}

static size_t bytes_of_all(uint8_t *to)
{
    size_t n = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) {
        rw_tensor *const x = rw_param_get(ctx, i);
        memcpy(to + n, rw_tensor_data(x), rw_tensor_bytes(x));
        n += rw_tensor_bytes(x);
    }
    return n;
}

/* Loads the input as a weights file; a failed load must not leak or change any tensor. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t before[ELEMENTS], after[ELEMENTS];
    open_once();
    write_file(data, size);
    const size_t n = bytes_of_all(before);
    const int64_t live = rw_alloc_live();
    const rw_status status = rw_load(ctx, path);
    HOLDS(status == rw_error_status(ctx), "status %d, the context's is %d", (int)status, (int)rw_error_status(ctx));
    status_and_message_agree(ctx, "rw_load");
    HOLDS(rw_alloc_live() == live, "%lld allocations are left", (long long)(rw_alloc_live() - live));
    bytes_of_all(after);
    HOLDS(!status || !memcmp(before, after, n), "a failed call has changed a tensor: %s", rw_error_message(ctx));
    rw_error_clear(ctx);
    return 0;
}
