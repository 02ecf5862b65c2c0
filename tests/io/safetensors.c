/* Weights in safetensors files: every type comes back to the byte; whatever is wrong with a file, nothing changes. */
#include "support/support.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fixture b;
static char dir[] = "/tmp/rewind-io-XXXXXX";
static char path[64];

static void open_files(void)
{
    b = fixture_open(3, 1);
    strcpy(dir, "/tmp/rewind-io-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/w", dir);
}

static void close_files(void)
{
    fixture_close(&b);
    remove(path);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the file");
}

TestSuite(io, .init = open_files, .fini = close_files);

static void put(const void *data, size_t bytes)
{
    FILE *const f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

static unsigned char *get(size_t *ret_bytes)
{
    struct stat about;
    cr_assert_eq(stat(path, &about), 0);
    unsigned char *const data = malloc((size_t)about.st_size + 1);
    FILE *const f = fopen(path, "rb");
    cr_assert_eq(fread(data, 1, (size_t)about.st_size, f), (size_t)about.st_size);
    fclose(f);
    *ret_bytes = (size_t)about.st_size;
    return data;
}

/* A file made of this header and n zero bytes. */
static void put_header(const char *header, size_t n)
{
    unsigned char file[512] = { 0 };
    const size_t length = strlen(header);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    put(file, 8 + length + n);
}

static rw_tensor *filled(rw_tensor *x, unsigned char seed)
{
    unsigned char data[256];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(seed + i * 37);
    cr_assert_eq(rw_write(x, data, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b.ctx));
    return x;
}

static void expect_filled(rw_tensor *x, unsigned char seed)
{
    unsigned char data[256];
    cr_assert_eq(rw_read(NULL, x, data, rw_tensor_bytes(x)), RW_OK);
    for (size_t i = 0; i < rw_tensor_bytes(x); i++)
        cr_assert_eq(data[i], (unsigned char)(seed + i * 37), "%s, byte %zu", rw_tensor_name(x), i);
}

Test(io, every_type_and_shape_comes_back)
{
    rw_tensor *const x[] = {
        rw_param(b.ctx, "f32", RW_F32, RW_SHAPE(3, 5)),       rw_param(b.ctx, "bf16", RW_BF16, RW_SHAPE(7)),
        rw_param(b.ctx, "f64", RW_F64, RW_SHAPE(2, 1, 2)),    rw_buffer(b.ctx, "i32", RW_I32, RW_SHAPE(9)),
        rw_param(b.ctx, "scalar", RW_F32, RW_SCALAR),         rw_param(b.ctx, "empty", RW_F32, RW_SHAPE(4, 0)),
        rw_param(b.ctx, "a \"quoted\"\\\n\xc3\xa9/name", RW_F32, RW_SHAPE(1)),
    };
    const int n = sizeof x / sizeof *x;
    for (int i = 0; i < n; i++) filled(x[i], (unsigned char)(i * 11));
    cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < n; i++) filled(x[i], 200);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < n; i++) expect_filled(x[i], (unsigned char)(i * 11));
}

Test(io, the_layout_is_the_one_of_the_format)
{
    filled(rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2)), 9);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    size_t bytes;
    unsigned char *const file = get(&bytes);
    uint64_t length;
    memcpy(&length, file, 8);
    cr_assert_eq(length % 8, 0, "the elements are aligned");
    cr_assert_eq(8 + length + 8, bytes);
    file[8 + length] = '\0';
    cr_assert_not_null(strstr((char *)file + 8, "\"w\":{"));
    cr_assert_not_null(strstr((char *)file + 8, "\"shape\":[2]"));
    cr_assert_not_null(strstr((char *)file + 8, "\"dtype\":\"F32\""));
    cr_assert_not_null(strstr((char *)file + 8, "\"data_offsets\":[0,8]"));
    free(file);
}

Test(io, a_context_without_parameters_and_names_that_are_not_asked_for)
{
    cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    filled(rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2)), 1);
    put_header("{\"__metadata__\":{\"by\":\"x\"},\"other\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},"
               "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]}}", 10);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    float w[2] = { 1, 1 };
    rw_read(NULL, rw_param_find(b.ctx, "w"), w, sizeof w);
    cr_assert_eq(w[0], 0);
}

Test(io, a_file_cut_off_anywhere)
{
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(3));
    rw_tensor *const y = rw_param(b.ctx, "y", RW_BF16, RW_SHAPE(5));
    filled(x, 1);
    filled(y, 2);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    size_t bytes;
    unsigned char *const file = get(&bytes);
    filled(x, 50);
    filled(y, 60);
    for (size_t n = 0; n < bytes; n++) {
        put(file, n);
        cr_assert_eq(rw_load(b.ctx, path), RW_ERR_IO, "%zu of %zu bytes", n, bytes);
        cr_assert_not_null(strstr(rw_error_message(b.ctx), path));
        rw_error_clear(b.ctx);
        expect_filled(x, 50);
        expect_filled(y, 60);
    }
    put(file, bytes);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK);
    expect_filled(x, 1);
    free(file);
}

/* x fits in each of these files; y, which comes after it, doesn't. */
Test(io, what_does_not_fit_changes_nothing)
{
#define X "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define Y(dtype, shape, offsets) X ",\"y\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct {
        const char *header;
        rw_status status;
    } bad[] = {
        { X "}", RW_ERR_IO },
        { Y("\"BF16\"", "[2,2]", "[8,16]"), RW_ERR_DTYPE },
        { Y("\"F64\"", "[2,2]", "[8,24]"), RW_ERR_DTYPE },
        { Y("\"nonsense\"", "[2,2]", "[8,24]"), RW_ERR_DTYPE },
        { Y("7", "[2,2]", "[8,24]"), RW_ERR_IO },
        { Y("\"F32\"", "[4]", "[8,24]"), RW_ERR_SHAPE },
        { Y("\"F32\"", "[2,2,1]", "[8,24]"), RW_ERR_SHAPE },
        { Y("\"F32\"", "[2,3]", "[8,24]"), RW_ERR_SHAPE },
        { Y("\"F32\"", "[2,\"2\"]", "[8,24]"), RW_ERR_SHAPE },
        { Y("\"F32\"", "4", "[8,24]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[8,20]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[24,8]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[16,32]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[-8,8]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[1e300,1e300]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[null,24]"), RW_ERR_IO },
        { Y("\"F32\"", "[2,2]", "[8]"), RW_ERR_IO },
        { X ",\"y\":5}", RW_ERR_IO },
        { X ",\"y\":{}}", RW_ERR_IO },
        { "[1,2]", RW_ERR_IO },
        { "{\"x\":", RW_ERR_IO },
        { "", RW_ERR_IO },
    };
    rw_tensor *const x = filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    rw_tensor *const y = filled(rw_param(b.ctx, "y", RW_F32, RW_SHAPE(2, 2)), 6);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_header(bad[i].header, 24);
        cr_assert_eq(rw_load(b.ctx, path), bad[i].status, "%s: %s", bad[i].header, rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        expect_filled(x, 5);
        expect_filled(y, 6);
    }
    put_header(Y("\"F32\"", "[2,2]", "[8,24]"), 24);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
}

Test(io, a_header_longer_than_any_file)
{
    filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    unsigned char file[64];
    memset(file, 0xff, sizeof file);
    put(file, sizeof file);
    cr_assert_eq(rw_load(b.ctx, path), RW_ERR_IO);
}

/* The format's own readers would take it for metadata: a file that cannot be read back must not be written. */
Test(io, a_parameter_of_the_formats_reserved_name_is_refused_and_no_file_appears)
{
    filled(rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2)), 5);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    size_t before, after;
    unsigned char *const old = get(&before);
    filled(rw_param(b.ctx, "__metadata__", RW_F32, RW_SHAPE(2)), 6);
    cr_assert_eq(rw_save(b.ctx, path), RW_ERR_ARGUMENT);
    const char *const m = rw_error_message(b.ctx);
    cr_assert(strstr(m, "__metadata__") && strstr(m, path), "%s", m);
    unsigned char *const now = get(&after);
    cr_assert(before == after && !memcmp(old, now, before), "the old file stays");
    free(old);
    free(now);
}

Test(io, places_that_cannot_be_read_or_written)
{
    filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    cr_assert_eq(rw_load(b.ctx, dir), RW_ERR_IO, "a directory");
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_save(b.ctx, dir), RW_ERR_IO, "a directory");
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_save(b.ctx, NULL), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_load(NULL, path), RW_ERR_ARGUMENT);
}

Test(io, a_failing_allocation_keeps_the_old_file_and_the_old_bytes)
{
    rw_tensor *const x = filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(rw_load(b.ctx, path), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    filled(x, 77);
    char beside[96];
    snprintf(beside, sizeof beside, "%s.%ld.part", path, (long)getpid());
    for (uint64_t i = 1; i <= 16; i++) {
        rw_alloc_fail_at(i);
        const rw_status saved = rw_save(b.ctx, path);
        rw_alloc_fail_at(0);
        if (saved == RW_OK) break;
        cr_assert_eq(saved, RW_ERR_MEMORY);
        cr_assert_neq(access(beside, F_OK), 0, "a part of a file was left");
        rw_error_clear(b.ctx);
        rw_alloc_fail_at(1 + i % n);
        cr_assert_eq(rw_load(b.ctx, path), RW_ERR_MEMORY);
        rw_alloc_fail_at(0);
        rw_error_clear(b.ctx);
        expect_filled(x, 77);
        cr_assert_eq(rw_load(b.ctx, path), RW_OK);
        expect_filled(x, 5);
        filled(x, 77);
    }
}
