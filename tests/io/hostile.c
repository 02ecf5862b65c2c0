/*
 * Files and texts from untrusted sources: headers that would take memory to read, files longer than a disk, texts that
 * are not UTF-8, a working directory that changes, a reader that disappears.
 */
#include "support/support.h"

#include "base/utf8.h"
#include "io/safetensors_header.h"

#include <rewind/io.h>
#include <rewind/monitor.h>
#include <rewind/checkpoint.h>

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct fixture b;
static char dir[64], path[128];

static void open_folder(void)
{
    b = fixture_open(3, 1);
    strcpy(dir, "/tmp/rewind-hostile-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
}

static void close_folder(void)
{
    fixture_close(&b);
    remove(path);
    cr_assert_eq(rmdir(dir), 0, "something was left");
}

TestSuite(hostile, .init = open_folder, .fini = close_folder, .timeout = 200);

/* ---- headers ---- */

static void put_file(const char *header, size_t length, off_t bytes)
{
    FILE *const f = fopen(path, "wb");
    cr_assert_not_null(f);
    for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 255), f);
    cr_assert_eq(fwrite(header, 1, length, f), length);
    fclose(f);
    cr_assert_eq(truncate(path, 8 + (off_t)length + bytes), 0);
}

/* A header of a begin, one text many times ("%d" is its number) and an end. */
static size_t make_header(char *to, size_t size, const char *begin, const char *many, const char *end)
{
    size_t n = (size_t)sprintf(to, "%s", begin);
    for (int i = 0; n + strlen(many) + strlen(end) + 16 < size; i++) n += (size_t)sprintf(to + n, many, i);
    return n + (size_t)sprintf(to + n, "%s", end);
}

static long peak_kib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* Loads in a process of its own, whose peak memory is that of the load; *ret_status is its status. */
static size_t memory_of_load(rw_status *ret_status)
{
    int ends[2], how;
    long answer[2] = { 0, -1 };
    cr_assert_eq(pipe(ends), 0);
    const pid_t pid = fork();
    if (!pid) {
        const long before = peak_kib();
        answer[1] = rw_load(b.ctx, path);
        answer[0] = peak_kib() - before;
        _exit(write(ends[1], answer, sizeof answer) != sizeof answer);
    }
    close(ends[1]);
    cr_assert_eq(read(ends[0], answer, sizeof answer), (ssize_t)sizeof answer);
    close(ends[0]);
    cr_assert(waitpid(pid, &how, 0) == pid && !how);
    *ret_status = (rw_status)answer[1];
    return (size_t)answer[0] << 10;
}

Test(hostile, a_large_header_takes_a_few_times_its_length)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    cr_skip_test("sanitizers take memory of their own");
#else
    static const struct {
        const char *begin, *many, *end;
        bool is_header;
    } headers[] = {
        { "{\"a\":{\"u\":[0", ",[]", "]}}", false },
        { "{\"a\":{\"u\":[0", ",1", "]}}", false },
        { "{\"a\":{\"u\":0", ",\"%d\":0", "}}", false },
        { "{\"a\":{\"u\":0", ",\"\":0", "}}", false },
        { "{\"__metadata__\":{\"u\":\"\"", ",\"%d\":\"\"", "}}", true },
        { "{\"__metadata__\":{\"u\":\"\"", ",\"\":\"\"", "}}", false },
        { "{\"__metadata__\":{", ",", "}}", false },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}",
          ",\"%d\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}", "}", true },
        { "{", ",", "}", false },
        { "{", "\"\":{},", "}", false },
        { "", "[", "", false },
        { "{\"a\":", "[", "", false },
        { "{\"a\":", "{\"a\":", "", false },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[0", ",0", "],\"data_offsets\":[0,0]}}", true },
    };
    const size_t size = 4 * MIB;
    char *const header = malloc(size);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        rw_status status;
        const size_t n = make_header(header, size, headers[i].begin, headers[i].many, headers[i].end);
        put_file(header, n, 0);
        const size_t took = memory_of_load(&status);
        cr_expect_eq(status, headers[i].is_header ? RW_OK : RW_ERR_IO, "header %d: %d", (int)i, (int)status);
        cr_expect_leq(took, 8 * size + 4 * MIB, "header %d: %zu MiB", (int)i, took / MIB);
    }
    free(header);
#endif
}

static void expect_load(rw_status want, const char *text)
{
    cr_expect_eq(rw_load(b.ctx, path), want, "%s", rw_error_message(b.ctx));
    cr_expect(!text || strstr(rw_error_message(b.ctx), text), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
}

/* A sparse terabyte: only the requested tensors are read. */
Test(hostile, a_sparse_file_is_not_read_whole)
{
    static const char header[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,1000000000]}}";
    rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2));
    put_file(header, sizeof header - 1, (off_t)1 << 40);
    expect_load(RW_OK, NULL);
    put_file("[]", 2, (off_t)1 << 40);
    expect_load(RW_ERR_IO, "expected an object at byte");
    put_file("", 0, (off_t)1 << 40);
    expect_load(RW_ERR_IO, "invalid JSON header");
}

Test(hostile, a_sparse_file_is_no_checkpoint)
{
    static const char header[] = "{\"rewind:header\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}";
    rw_checkpoint *ck = NULL;
    rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2));
    put_file(header, sizeof header - 1, (off_t)1 << 40);
    char file[160];
    snprintf(file, sizeof file, "%s/000001-step1.safetensors", dir);
    cr_assert_eq(rename(path, file), 0);
    cr_assert_eq(rw_checkpoint_create(&ck, b.ctx, &(rw_checkpoint_params){ .folder = dir }), RW_OK);
    cr_expect_eq(rw_checkpoint_load(ck, NULL), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "the header is damaged"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_checkpoint_destroy(&ck);
    remove(file);
}

/* ---- JSON, by itself ---- */

#define ENTRY(extra) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]" extra "}}"

static rw_status read_header(const char *text, char *why)
{
    struct rw_header h;
    const rw_status status = rw_header_read(text, strlen(text), 0, 8, &h, why, 200);
    if (!status) rw_header_finish(&h);
    return status;
}

Test(hostile, what_is_json_is_read_and_what_is_not_is_refused)
{
    static const char *const good[] = {
        "{}", " { } ", ENTRY(""), ENTRY(",\"u\":null"), ENTRY(",\"u\":true,\"v\":false"), ENTRY(",\"u\":-0.5e+10"),
        ENTRY(",\"u\":[[],{},[{\"a\":[1,2]}]]"), ENTRY(",\"\\u0041\\ud83d\\ude00\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""),
        "{\"__metadata__\":{\"a\":\"b\",\"c\":1}}", "\t\r\n{}",
    };
    static const char *const bad[] = {
        "", "{", "}", "[]", "null", "{]", "{,}", "{\"a\"}", "{\"a\":}", "{a:1}", "{\"a\":1,}", "{} {}", "{}x",
        ENTRY(",\"u\":01"), ENTRY(",\"u\":1."), ENTRY(",\"u\":.5"), ENTRY(",\"u\":1e"), ENTRY(",\"u\":+1"),
        ENTRY(",\"u\":-"), ENTRY(",\"u\":nul"), ENTRY(",\"u\":\"\\x\""), ENTRY(",\"u\":\"\\u00g0\""),
        ENTRY(",\"u\":\"\\u0000\""), ENTRY(",\"u\":\"\\ud800\""), ENTRY(",\"u\":\"\\udc00\""),
        ENTRY(",\"u\":\"\\ud800\\u0041\""), ENTRY(",\"u\":\"\n\""), ENTRY(",\"u\":\"\xff\""),
        ENTRY(",\"u\":\"\xed\xa0\x80\""), ENTRY(",\"u\":\"\xc0\x80\""), ENTRY(",\"u\":\"\\"),
        ENTRY(",\"u\":[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]"), ENTRY(",\"u\":1,\"u\":2"), ENTRY(",\"shape\":[2]"),
        "{\"__metadata__\":{},\"__metadata__\":{}}", "{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}",
        "{\"__metadata__\":1}",
    };
    char why[200];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_expect_eq(read_header(good[i], why), RW_OK, "%s: %s", good[i], why);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(read_header(bad[i], why), RW_ERR_IO, "%s", bad[i]);
    const char *const whole = ENTRY(",\"u\":[{\"k\":\"\\ud83d\\ude00\"},-1.5e3,true]");
    for (size_t n = 0; n < strlen(whole); n++) {
        char *const cut = strndup(whole, n); /* of exactly that length, for AddressSanitizer */
        cr_expect_eq(read_header(cut, why), RW_ERR_IO, "%s", cut);
        free(cut);
    }
}

Test(hostile, texts_of_json_are_decoded)
{
    static const char text[] = "{\"__metadata__\":{\"\\u00e9\\ud83d\\ude00\\/\":\"\\u0041\\n\"},"
                               "\"b\":{\"dtype\":\"X\",\"shape\":[1,-2,3.0,4],\"data_offsets\":[3,8]},"
                               "\"a\":{\"data_offsets\":[0,3],\"shape\":[],\"dtype\":\"Y\"}}";
    struct rw_header h;
    char why[200];
    cr_assert_eq(rw_header_read(text, sizeof text - 1, 0, 8, &h, why, sizeof why), RW_OK, "%s", why);
    cr_expect_str_eq(rw_header_metadata(&h, "\xc3\xa9\xf0\x9f\x98\x80/"), "A\n");
    cr_expect_null(rw_header_metadata(&h, "b"));
    const struct rw_header_entry *const e = rw_header_find(&h, "b");
    cr_assert(e && h.n == 2 && rw_header_find(&h, "a") && !rw_header_find(&h, "c"));
    cr_expect_str_eq(e->dtype, "X");
    cr_expect(e->rank == 4 && e->dim[0] == 1 && e->dim[1] == -1 && e->dim[2] == -1 && e->dim[3] == 4);
    cr_expect(e->from == 3 && e->to == 8);
    rw_header_finish(&h);
}

/* ---- texts that are written ---- */

Test(hostile, what_is_no_utf_8_becomes_what_says_so)
{
    static const struct {
        const char *from, *to;
    } texts[] = { { "a\xc3\xa9\xf0\x9f\x98\x80", "a\xc3\xa9\xf0\x9f\x98\x80" },
                  { "\xff" "a", "\xef\xbf\xbd" "a" }, { "\xc3", "\xef\xbf\xbd" },
                  { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" } };
    char to[40];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect_str_eq(rw_utf8_copy(to, sizeof to, texts[i].from), texts[i].to);
    cr_expect_str_eq(rw_utf8_copy(to, 4, "ab\xc3\xa9"), "ab", "a letter is not cut");
}

static char *text_of(const char *file)
{
    static char text[1 << 16];
    FILE *const f = fopen(file, "r");
    cr_assert_not_null(f, "%s", file);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

/* Notes and names of arbitrary bytes: every line is JSON and UTF-8. */
Test(hostile, lines_of_a_monitor_are_json_whatever_is_noted)
{
    static const char *const notes[] = { "\xff\xfe", "a\xc3", "\xed\xa0\x80\"\\\n\x01", ("gr\xf6\xdf" "e") };
    rw_monitor *m = NULL;
    cr_assert_eq(rw_monitor_create(&m, b.ctx, path), RW_OK);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        cr_assert_eq(rw_monitor_recovered(m, i, 0, RW_RECOVERY_NOTE, notes[i]), RW_OK);
    char *line = text_of(path);
    cr_expect(rw_utf8_is_text(line));
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        char *const end = strchr(line, '\n');
        cr_assert_not_null(end);
        *end = '\0';
        cJSON *const one = cJSON_Parse(line);
        cr_expect(one && strstr(cJSON_GetObjectItem(one, "note")->valuestring, "\xef\xbf\xbd"), "%s", line);
        cJSON_Delete(one);
        line = end + 1;
    }
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2));
    rw_optimizer *opt = NULL;
    cr_assert(p && !rw_sgd_create(&opt, b.ctx, NULL));
    const rw_monitor_group group = { .name = "\xff", .pattern = "*" };
    cr_expect_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .optimizer = opt, .groups = &group, .n_groups = 1 }),
                 RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "UTF-8"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_optimizer_destroy(&opt);
    rw_monitor_destroy(&m);
}

/* A relative path is relative to the working directory when it was given. */
Test(hostile, the_text_of_prometheus_stays_where_it_is_when_the_process_goes)
{
    char here[512];
    rw_monitor *m = NULL;
    cr_assert_not_null(getcwd(here, sizeof here));
    cr_assert_eq(chdir(dir), 0);
    cr_assert_eq(rw_monitor_create(&m, b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, "file"), RW_OK);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = 1, .loss = 2 }, NULL), RW_OK, "%s",
                 rw_error_message(b.ctx));
    rw_monitor_destroy(&m);
    cr_assert_eq(access("/file", F_OK), -1);
    cr_assert_eq(access(path, F_OK), 0);
    cr_assert_eq(chdir(here), 0);
}

/* A reader that has gone is an error, and not a signal; a pending signal of the program's own stays pending. */
Test(hostile, a_pipe_without_a_reader_ends_no_process)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    close(ends[0]);
    FILE *const out = fdopen(ends[1], "w");
    cr_assert(out && !setvbuf(out, NULL, _IONBF, 0));
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2));
    rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false);
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGPIPE);
    for (int waits = 0; waits < 2; waits++) {
        sigprocmask(waits ? SIG_BLOCK : SIG_UNBLOCK, &one, NULL);
        if (waits) raise(SIGPIPE);
        clearerr(out);
        cr_expect_eq(ckpt_explain(b.t, out), RW_ERR_IO);
        cr_expect(strstr(rw_error_message(b.ctx), "Broken pipe"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        rw_nonfinite_print(&(rw_nonfinite){ 0 }, out);
        ckpt_report_print(&(ckpt_report){ .identical = true }, out);
        sigpending(&pending);
        cr_expect_eq(sigismember(&pending, SIGPIPE), waits);
    }
    signal(SIGPIPE, SIG_IGN);
    fclose(out);
}
