/* Weights in safetensors files: every type is restored to the byte; an invalid file, whatever its fault, changes
   nothing. */
#include "support/support.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* A file with this header and n zero bytes. */
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
        rw_buffer(b.ctx, "bool", RW_BOOL, RW_SHAPE(3)),
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

Test(io, a_context_without_parameters_and_names_that_are_not_requested)
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

/* ---- names of other programs ---- */

/* a is [2, 3] in the file and [3, 2] here; q, k and v are rows of one matrix. */
static void put_foreign(void)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"q\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[24,40]},"
        "\"k\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[40,48]},"
        "\"t\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[40,40]}}";
    unsigned char file[512] = { sizeof header - 1 };
    float numbers[12];
    file[0] = (unsigned char)((sizeof header - 1) & 255);
    file[1] = (unsigned char)((sizeof header - 1) >> 8);
    for (int i = 0; i < 12; i++) numbers[i] = (float)i;
    memcpy(file + 8, header, sizeof header - 1);
    memcpy(file + 8 + sizeof header - 1, numbers, sizeof numbers);
    put(file, 8 + sizeof header - 1 + sizeof numbers);
}

static void expect_numbers(rw_tensor *x, const float *want, size_t n)
{
    float got[16];
    cr_assert_eq(rw_read(NULL, x, got, n * sizeof *got), RW_OK, "%s", rw_error_message(b.ctx));
    for (size_t i = 0; i < n; i++) cr_assert_eq(got[i], want[i], "%d: %g", (int)i, (double)got[i]);
}

Test(io, parts_are_read_by_the_files_names)
{
    rw_tensor *const a = rw_param(b.ctx, "mine", RW_F32, RW_SHAPE(3, 2));
    rw_tensor *const qkv = rw_param(b.ctx, "qkv", RW_F32, RW_SHAPE(4, 2));
    put_foreign();
    rw_init_constant(qkv, -1);
    const rw_load_part parts[] = { { .param = "mine", .name = "a", .transposed = true },
                                   { .param = "qkv", .name = "q", .part = true },
                                   { .param = "qkv", .name = "k", .part = true, .row = 3 } };
    cr_assert_eq(rw_load_parts(b.ctx, path, parts, 3), RW_OK, "%s", rw_error_message(b.ctx));
    expect_numbers(a, (const float[]){ 0, 3, 1, 4, 2, 5 }, 6);
    expect_numbers(qkv, (const float[]){ 6, 7, 8, 9, -1, -1, 10, 11 }, 8);
}

Test(io, parts_that_do_not_fit_change_nothing)
{
    rw_tensor *const a = rw_param(b.ctx, "mine", RW_F32, RW_SHAPE(3, 2));
    rw_param(b.ctx, "qkv", RW_F32, RW_SHAPE(4, 2));
    rw_param(b.ctx, "short", RW_BF16, RW_SHAPE(2, 2));
    rw_param(b.ctx, "flat", RW_F32, RW_SHAPE(6));
    put_foreign();
    rw_init_constant(a, -1);
    static const struct {
        rw_load_part part;
        rw_status status;
        const char *text;
    } wrong[] = {
        { { .param = "other", .name = "a" }, RW_ERR_ARGUMENT, "expected a parameter of the context, got \"other\"" },
        { { .name = "a" }, RW_ERR_ARGUMENT, "(null)" },
        { { .param = "qkv" }, RW_ERR_ARGUMENT, "name of \"qkv\" is NULL" },
        { { .param = "qkv", .name = "v" }, RW_ERR_IO, "\"v\" is not in the file" },
        { { .param = "mine", .name = "a" }, RW_ERR_SHAPE, "\"a\" does not fit into \"mine\"" },
        { { .param = "flat", .name = "a", .transposed = true }, RW_ERR_SHAPE, "does not fit into" },
        { { .param = "qkv", .name = "q" }, RW_ERR_SHAPE, "does not fit into" },
        { { .param = "qkv", .name = "q", .part = true, .row = 3 }, RW_ERR_SHAPE, "does not fit into" },
        { { .param = "qkv", .name = "q", .part = true, .row = -1 }, RW_ERR_SHAPE, "does not fit into" },
        { { .param = "qkv", .name = "q", .part = true, .row = INT64_MAX }, RW_ERR_SHAPE, "does not fit into" },
        { { .param = "short", .name = "q" }, RW_ERR_DTYPE, "\"q\": expected BF16, got F32 in the file" },
        { { .param = "qkv", .name = "t", .transposed = true, .part = true }, RW_ERR_IO, "got 0 in the file" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const rw_load_part parts[] = { { .param = "mine", .name = "a", .transposed = true }, wrong[i].part };
        cr_expect_eq(rw_load_parts(b.ctx, path, parts, 2), wrong[i].status, "%d", (int)i);
        cr_expect(strstr(rw_error_message(b.ctx), wrong[i].text), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        expect_numbers(a, (const float[]){ -1, -1, -1, -1, -1, -1 }, 6);
    }
    cr_expect_eq(rw_load_parts(b.ctx, NULL, NULL, 0), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_load_parts(b.ctx, path, NULL, 0), RW_OK);
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

/* x fits in each of these files; y, which comes after it, does not. */
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

/* Each is refused with the byte offset of the fault in the file. */
Test(io, what_the_format_forbids_is_refused_with_its_place)
{
#define A "{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[8,24]},"
#define B(offsets) "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *place, *what;
    } bad[] = {
        { A B("[0,8]") "," B("[0,8]") "}", "byte 116", "twice" },
        { A "\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[24,24]}," B("[0,8]") "}", "byte 63", "twice" },
        { A "\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "byte 63",
          "twice" },
        { A B("[4,12]") "}", "byte 9", "overlap" },
        { A B("[16,24]") "}", "byte 63", "overlap" },
        { A B("[0.5,8.5]") "}", "byte 63", "integers" },
        { A B("{\"from\":0,\"to\":8}") "}", "byte 63", "list" },
        { A B("[0,8,8]") "}", "byte 63", "list" },
        { A B("[8,0]") "}", "byte 63", "an end at or after" },
        { A B("[20,28]") "}", "byte 63", "within the file" },
        { A B("[0,8]") "} x", "byte 117", "unexpected bytes" },
        { A B("[0,8]") "}{}", "byte 116", "unexpected bytes" },
        { A B("[0,8]") ",\"u\":7}", "byte 116", "object" },
        { "{\"x\\\"y,{\":{\"k\":[\"}\",{}]}," B("[0,8]") "}", "byte 9", "dtype: expected a string" },
        { A "oops}", "byte 63", "invalid JSON" },
    };
    rw_tensor *const x = filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_header(bad[i].header, 24);
        cr_expect_eq(rw_load(b.ctx, path), RW_ERR_IO, "%s", bad[i].header);
        const char *const m = rw_error_message(b.ctx);
        cr_expect(strstr(m, bad[i].place) && strstr(m, bad[i].what) && strstr(m, path), "%s: %s", bad[i].header, m);
        rw_error_clear(b.ctx);
        expect_filled(x, 5);
    }
    put_header(A B("[0,8]") "} \n\t ", 24);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
}

Test(io, a_fifo_a_device_and_a_directory_are_refused_without_waiting, .timeout = 120)
{
    static const struct {
        const char *path, *what;
    } bad[] = { { path, "FIFO" }, { dir, "directory" }, { "/dev/full", "device" } };
    filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    cr_assert_eq(mkfifo(path, 0600), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct stat before, after;
        cr_assert_eq(stat(bad[i].path, &before), 0);
        cr_expect_eq(rw_load(b.ctx, bad[i].path), RW_ERR_IO);
        cr_expect(strstr(rw_error_message(b.ctx), bad[i].what), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_expect_eq(rw_save(b.ctx, bad[i].path), RW_ERR_IO);
        cr_expect(strstr(rw_error_message(b.ctx), bad[i].what), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_eq(stat(bad[i].path, &after), 0);
        cr_expect(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    }
}

Test(io, a_link_stays_and_what_it_names_is_replaced)
{
    char link[96], part[128];
    rw_tensor *const x = filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    snprintf(link, sizeof link, "%s/link", dir);
    cr_assert_eq(symlink("w", link), 0);
    cr_assert_eq(rw_save(b.ctx, link), RW_ERR_IO, "leads nowhere");
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    cr_assert_eq(chmod(path, 0600), 0);
    filled(x, 9);
    cr_assert_eq(rw_save(b.ctx, link), RW_OK, "%s", rw_error_message(b.ctx));
    struct stat about;
    cr_assert(!lstat(link, &about) && S_ISLNK(about.st_mode));
    cr_assert(!stat(path, &about) && (about.st_mode & 0777) == 0600);
    filled(x, 5);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK);
    expect_filled(x, 9);
    remove(link);
    /* at the name of the temporary file: the link's target is not written to */
    snprintf(link, sizeof link, "%s/victim", dir);
    for (unsigned i = 0; i < 64; i++) {
        snprintf(part, sizeof part, "%s.%ld.%u.part", path, (long)getpid(), i);
        cr_assert_eq(symlink(link, part), 0);
    }
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    cr_assert_eq(symlink(link, part), 0);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_neq(access(link, F_OK), 0, "another process's file was written");
    remove(part);
    remove(link);
    for (unsigned i = 0; i < 64; i++) {
        snprintf(part, sizeof part, "%s.%ld.%u.part", path, (long)getpid(), i);
        remove(part);
    }
}

/* The results of a write on a full disk. */
Test(io, a_disk_that_is_full_keeps_the_old_file)
{
    rw_tensor *const x = filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    rw_param(b.ctx, "y", RW_F32, RW_SHAPE(100000));
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 65536, RLIM_INFINITY });
    cr_assert_eq(rw_save(b.ctx, path), RW_ERR_IO);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
    cr_assert(strstr(rw_error_message(b.ctx), path), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    size_t bytes;
    unsigned char *const file = get(&bytes);
    cr_assert_lt(bytes, 1000);
    free(file);
    expect_filled(x, 5);
}

struct saver {
    pthread_t thread;
    unsigned char seed;
    rw_status status;
};

static void *save_often(void *argument)
{
    struct saver *const s = argument;
    rw_context *ctx = NULL;
    unsigned char data[4096];
    memset(data, s->seed, sizeof data);
    s->status = rw_context_create(&ctx, &(rw_context_params){ .device = test_device(), .threads = 1 });
    if (!s->status) s->status = rw_write(rw_param(ctx, "x", RW_F32, RW_SHAPE(1024)), data, sizeof data);
    for (int i = 0; !s->status && i < 100; i++) s->status = rw_save(ctx, path);
    rw_context_destroy(&ctx);
    return NULL;
}

/* Contexts of several threads save to one path: the file is always one of theirs. */
/* The temporary name beside it must not be longer than the file system takes, either. The cut of a long name is between
   characters, which some file systems check. */
Test(io, a_name_as_long_as_a_file_may_have)
{
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        char name[300], *end = name + snprintf(name, sizeof name, "%s/", dir);
        memset(end, 'a', 255);
        for (int i = 0; is_wide && i < 127; i++) memcpy(end + 1 + 2 * i, "\xc3\xa4", 2);
        end[255] = '\0';
        rw_tensor *const w = rw_param(b.ctx, is_wide ? "v" : "w", RW_F32, RW_SHAPE(4));
        cr_assert_eq(rw_init_constant(w, 1), RW_OK);
        for (int turn = 0; turn < 2; turn++)
            cr_expect_eq(rw_save(b.ctx, name), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_eq(rw_load(b.ctx, name), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_eq(remove(name), 0);
    }
}

Test(io, one_path_for_two_contexts)
{
    struct saver s[3] = { { .seed = 1 }, { .seed = 2 }, { .seed = 3 } };
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(1024));
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(pthread_create(&s[i].thread, NULL, save_often, &s[i]), 0);
    for (int i = 0; i < 100; i++) {
        unsigned char data[4096];
        cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(NULL, x, data, sizeof data), RW_OK);
        for (size_t k = 1; k < sizeof data; k++) cr_assert_eq(data[k], data[0], "a mixture");
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(s[i].thread, NULL);
        cr_assert_eq(s[i].status, RW_OK);
    }
}

Test(io, a_header_longer_than_any_file)
{
    filled(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2)), 5);
    unsigned char file[64];
    memset(file, 0xff, sizeof file);
    put(file, sizeof file);
    cr_assert_eq(rw_load(b.ctx, path), RW_ERR_IO);
}

/* Readers of the format would treat it as metadata: a file that cannot be read back must not be written. */
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

/* Readers of the format refuse the whole file if a name is not UTF-8. */
Test(io, a_name_that_is_not_utf8_is_refused_and_no_file_appears)
{
    static const char *const good[] = { "\x01\x7f", "\xc2\x80", ("gr\xc3\xb6\xc3\x9f" "e"), "\xe0\xa0\x80",
                                        "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf" };
    static const char *const bad[] = {
        "\xff\xfe", ("gr\xf6\xdf" "e"), "\x80", "\xc1\xbf", "a\xc3", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3(", "\xf0\x90\x80("
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) filled(rw_param(b.ctx, good[i], RW_F32, RW_SHAPE(2)), 5);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    remove(path);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fixture one = fixture_open(3, 1);
        filled(rw_param(one.ctx, bad[i], RW_F32, RW_SHAPE(2)), 6);
        cr_assert_eq(rw_save(one.ctx, path), RW_ERR_ARGUMENT, "%d", (int)i);
        cr_assert(strstr(rw_error_message(one.ctx), "expected names in UTF-8"), "%s", rw_error_message(one.ctx));
        cr_assert_eq(access(path, F_OK), -1);
        rw_error_clear(one.ctx);
        fixture_close(&one);
    }
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
    for (uint64_t i = 1; i <= 16; i++) {
        rw_alloc_fail_at(i);
        const rw_status saved = rw_save(b.ctx, path);
        rw_alloc_fail_at(0);
        if (saved == RW_OK) break;
        cr_assert_eq(saved, RW_ERR_MEMORY);
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
