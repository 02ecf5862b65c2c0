/*
 * rw_costs_save() and rw_costs_load(): costs as a text file. All numbers are integers, so neither locales nor rounding
 * change them:
 *
 *     rewind costs 4
 *     library 0.1.0
 *     device cpu
 *     machine AMD EPYC 9B45 (family 26, model 2), v4
 *     threads 2
 *     memory 67108864 50331648 1048576                      bytes that caches hold, picoseconds of each MiB beyond, and
 *                                                           of each that is written where another thread has read
 *     store 1502000000 903000000 31457 /scratch             bytes per second out and in, picoseconds that compute loses
 *                                                           per MiB, the folder; or "store none"
 *     nodes 57
 *     SIGNATURE PICOSECONDS OPERATIONS BYTES TYPE OP        57 lines, signatures ascending, in 16 hexadecimal digits
 *     end HASH
 *
 * Files of version 3 have two numbers of memory: no price of sharing between threads. Those of version 2 have no line
 * "store", those of version 1 no line "memory" either: transfer rates, or prices of memory, are then unset.
 */
#include "autodiff/costs.h"
#include "base/alloc.h"
#include "base/atomic_file_replace.h"
#include "io/read_whole_file.h"

#include <rewind/plan.h>
#include <rewind/version.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 20)
#define NODES_MAX 1000000u
#define NUMBER_MAX 1000000000000000000u /* 10^18: eleven days in picoseconds, a million TFLOP in operations */

/* Where costs were measured, as a file says, and as this context is. */
struct place {
    char library[32], device[32], machine[256], threads[16];
};

static struct place place_of(const rw_context *ctx, int threads)
{
    struct place p;
    char machine[sizeof p.machine] = "unnamed";
    if (ctx->device->describe) ctx->device->describe(ctx->device_state, machine, sizeof machine);
    for (char *c = machine; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    snprintf(p.library, sizeof p.library, "%s", rw_version());
    snprintf(p.device, sizeof p.device, "%s", ctx->device->name);
    snprintf(p.machine, sizeof p.machine, "%s", machine);
    snprintf(p.threads, sizeof p.threads, "%d", threads);
    return p;
}

/* ---- saving ---- */

/* Adds the rates of the present offload store; else of the store when the costs were loaded. *costs shares memory of
   the context's. A folder name that contains a line break is left out. */
static void add_store(const rw_context *ctx, struct rw_costs *costs)
{
    if (ctx->store.measured.out && ctx->store.path) {
        costs->store = ctx->store.measured;
        costs->folder = ctx->store.path;
    }
    if (costs->folder && strchr(costs->folder, '\n')) costs->folder = NULL;
    costs->hash = rw_costs_hash(costs);
}

static void write_store(const struct rw_costs *costs, FILE *f)
{
    const struct rw_store_cost *const s = &costs->store;
    if (!costs->folder) fprintf(f, "store none\n");
    else fprintf(f, "store %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", s->out, s->in, s->loss, costs->folder);
}

static rw_status write_file(const struct place *p, const struct rw_costs *costs, FILE *f)
{
    if (!f) return RW_ERR_MEMORY;
    fprintf(f, "rewind costs 4\nlibrary %s\ndevice %s\nmachine %s\nthreads %s\n", p->library, p->device, p->machine,
            p->threads);
    const struct rw_memory_cost m = costs->memory;
    fprintf(f, "memory %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", m.near_bytes, m.picoseconds, m.shared_picoseconds);
    write_store(costs, f);
    fprintf(f, "nodes %zu\n", costs->n);
    for (size_t i = 0; i < costs->n; i++) {
        const struct rw_cost_entry *const e = &costs->entry[i];
        fprintf(f, "%016" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s %s\n", e->signature, e->picoseconds,
                e->operations, e->bytes, rw_dtype_name((rw_dtype)e->dtype), e->op);
    }
    return fprintf(f, "end %016" PRIx64 "\n", costs->hash) > 0 && !fflush(f) && !ferror(f) ? RW_OK : RW_ERR_IO;
}

rw_status rw_costs_save(const rw_context *read_only, const char *path)
{
    RW_ENTER(read_only, RW_ERR_ARGUMENT);
    rw_context *const ctx = (rw_context *)(uintptr_t)read_only; /* errors stick to it */
    if (!ctx || !path) return rw_fail_null(ctx, "rw_costs_save", ctx ? "path" : "ctx");
    if (!rw_costs_of(ctx))
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "rw_costs_save: %s: expected costs in the context, got none; rw_profile_begin() measures "
                       "them", path);
    struct rw_replacement file;
    struct rw_costs costs = *rw_costs_of(ctx);
    const char *why = NULL;
    add_store(ctx, &costs);
    const struct place p = place_of(ctx, costs.threads); /* now: the file may take the last free descriptor */
    rw_status status = rw_replace_begin(&file, path, &why);
    if (!status) status = rw_replace_end(&file, write_file(&p, &costs, rw_replace_stream(&file)));
    if (!status) return RW_OK;
    return rw_fail(ctx, status, "rw_costs_save: %s: %s", path,
                   why ? why : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
}

/* ---- loading ---- */

struct reader {
    rw_context *ctx;
    const char *path;
    char *at, *end; /* the rest of the file */
    size_t line;    /* number of the line read last, from 1 */
};

static rw_status refuse(const struct reader *r, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

static rw_status refuse(const struct reader *r, rw_status status, const char *fmt, ...)
{
    char what[RW_MESSAGE_MAX / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return rw_fail(r->ctx, status, "rw_costs_load: %s, line %zu: %s", r->path, r->line, what);
}

/* Reads the next line, without its end. */
static rw_status next_line(struct reader *r, char **ret)
{
    r->line++;
    char *const newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
    if (!newline) return refuse(r, RW_ERR_IO, "the file ends here, before its \"end\"");
    if (memchr(r->at, '\0', (size_t)(newline - r->at))) return refuse(r, RW_ERR_IO, "a zero byte, this is no text");
    *newline = '\0';
    *ret = r->at;
    r->at = newline + 1;
    return RW_OK;
}

/* "WORD TEXT": the text. */
static rw_status read_word(struct reader *r, const char *word, char **ret)
{
    char *line = NULL;
    const size_t n = strlen(word);
    const rw_status status = next_line(r, &line);
    if (status) return status;
    if (strncmp(line, word, n) || line[n] != ' ')
        return refuse(r, RW_ERR_IO, "expected \"%s ...\", got \"%.40s\"", word, line);
    *ret = line + n + 1;
    return RW_OK;
}

/* Reads a line that must match this context. */
static rw_status read_place(struct reader *r, const char *word, const char *here)
{
    char *text;
    const rw_status status = read_word(r, word, &text);
    if (status || !strcmp(text, here)) return status;
    return refuse(r, RW_ERR_UNSUPPORTED, "%s: expected \"%.120s\" as here, got \"%.120s\"", word, here, text);
}

/* Reads an integer and returns its end; NULL for anything else. */
static char *read_number(char *text, int base, uint64_t most, uint64_t *ret)
{
    const char *const digits = base == 16 ? "0123456789abcdef" : "0123456789";
    const size_t n = strspn(text, digits);
    if (!n || n > 19 || (base == 16 && n != 16)) return NULL;
    *ret = strtoull(text, NULL, base);
    return *ret <= most && (text[n] == ' ' || !text[n]) ? text + n : NULL;
}

static bool read_dtype(char *text, size_t n, uint8_t *ret)
{
    for (int d = 0; d < RW_DTYPE_COUNT; d++) {
        const char *const name = rw_dtype_name((rw_dtype)d);
        if (strlen(name) == n && !strncmp(name, text, n)) return *ret = (uint8_t)d, true;
    }
    return false;
}

/* Signatures must ascend: a table has then one spelling, and no entry twice. */
static rw_status read_entry(struct reader *r, uint64_t least, struct rw_cost_entry *e)
{
    uint64_t *const number[] = { &e->signature, &e->picoseconds, &e->operations, &e->bytes };
    static const char *const what[] = { "a signature of 16 hexadecimal digits", "picoseconds, from 1 to 10^18",
                                        "operations, up to 10^18", "bytes, up to 10^18" };
    char *line = NULL, *at;
    const rw_status status = next_line(r, &line);
    if (status) return status;
    at = line;
    for (int i = 0; i < 4; i++) {
        char *const end = read_number(at, i ? 10 : 16, i ? NUMBER_MAX : UINT64_MAX, number[i]);
        if (!end || *end != ' ' || (i == 1 && !e->picoseconds))
            return refuse(r, RW_ERR_IO, "column %td: expected %s, got \"%.40s\"", at - line + 1, what[i], at);
        at = end + 1;
    }
    if (e->signature < least)
        return refuse(r, RW_ERR_IO, "column 1: expected a signature above the one before, got one below");
    const size_t n = strcspn(at, " ");
    if (!read_dtype(at, n, &e->dtype) || !at[n])
        return refuse(r, RW_ERR_IO, "column %td: expected a type and an op, got \"%.40s\"", at - line + 1, at);
    if (!at[n + 1] || strlen(at + n + 1) >= RW_COST_OP)
        return refuse(r, RW_ERR_IO, "column %td: expected an op's name of 1 to %d bytes, got \"%.80s\"",
                      at + n + 1 - line + 1, RW_COST_OP - 1, at + n + 1);
    snprintf(e->op, sizeof e->op, "%s", at + n + 1);
    return RW_OK;
}

static rw_status read_entries(struct reader *r, size_t n, struct rw_costs *costs)
{
    rw_status status = RW_OK;
    uint64_t least = 0;
    for (size_t i = 0; !status && i < n; i++) {
        struct rw_cost_entry e = { 0 };
        if ((status = read_entry(r, least, &e))) return status;
        if (e.signature == UINT64_MAX && i + 1 < n)
            return refuse(r, RW_ERR_IO, "column 1: expected a signature that another can follow, got the largest");
        least = e.signature + 1;
        if ((status = rw_costs_add(costs, &e))) return rw_fail(r->ctx, status, "rw_costs_load: out of memory");
    }
    if (!rw_costs_seal(costs)) return rw_fail(r->ctx, RW_ERR_MEMORY, "rw_costs_load: out of memory");
    return RW_OK;
}

static rw_status read_end(struct reader *r, uint64_t expected)
{
    char *text;
    uint64_t hash = 0;
    const rw_status status = read_word(r, "end", &text);
    if (status) return status;
    const char *const end = read_number(text, 16, UINT64_MAX, &hash);
    if (!end || *end || hash != expected)
        return refuse(r, RW_ERR_IO, "the hash is not that of the lines before: expected %016" PRIx64, expected);
    r->line++;
    return r->at == r->end ? RW_OK : refuse(r, RW_ERR_IO, "expected the end of the file, got %td bytes more",
                                           r->end - r->at);
}

/* "memory NEAR PICOSECONDS SHARED", up to version 3 "memory NEAR PICOSECONDS" */
static rw_status read_memory(struct reader *r, int version, struct rw_memory_cost *ret)
{
    uint64_t *const number[] = { &ret->near_bytes, &ret->picoseconds, &ret->shared_picoseconds };
    const int n = version > 3 ? 3 : 2;
    char *text;
    const rw_status status = read_word(r, "memory", &text);
    if (status) return status;
    char *at = text;
    for (int i = 0; i < n && at; i++) {
        char *const end = read_number(at, 10, NUMBER_MAX, number[i]);
        at = !end || *end != (i + 1 < n ? ' ' : '\0') ? NULL : end + 1;
    }
    if (at) return RW_OK;
    return refuse(r, RW_ERR_IO, "expected bytes and picoseconds%s, up to 10^18 each, got \"%.40s\"",
                  n > 2 ? " twice" : "", text);
}

/* "store OUT IN PICOSECONDS FOLDER", or "store none" */
static rw_status read_store(struct reader *r, struct rw_costs *costs)
{
    uint64_t *const number[] = { &costs->store.out, &costs->store.in, &costs->store.loss };
    static const char *const what[] = { "\"none\" or bytes per second, from 1 to 10^18",
                                        "bytes per second, from 1 to 10^18", "picoseconds, up to 10^18" };
    static const size_t column = sizeof "store ";
    char *text;
    const rw_status status = read_word(r, "store", &text);
    if (status || !strcmp(text, "none")) return status;
    char *at = text;
    for (int i = 0; i < 3; i++) {
        char *const end = read_number(at, 10, NUMBER_MAX, number[i]);
        if (!end || *end != ' ' || (i < 2 && !*number[i]))
            return refuse(r, RW_ERR_IO, "column %zu: expected %s, got \"%.40s\"", column + (size_t)(at - text),
                          what[i], at);
        at = end + 1;
    }
    if (*at != '/')
        return refuse(r, RW_ERR_IO, "column %zu: expected the whole path of a folder, got \"%.40s\"",
                      column + (size_t)(at - text), at);
    costs->folder = rw_strdup(at);
    return costs->folder ? RW_OK : rw_fail(r->ctx, RW_ERR_MEMORY, "rw_costs_load: out of memory");
}

/* 1 to 4. */
static rw_status read_version(struct reader *r, int *ret)
{
    char *text;
    const rw_status status = read_word(r, "rewind", &text);
    if (status) return status;
    if (strncmp(text, "costs ", 6) || text[6] < '1' || text[6] > '4' || text[7])
        return refuse(r, RW_ERR_UNSUPPORTED, "expected \"rewind costs 4\", got \"rewind %.40s\"", text);
    *ret = text[6] - '0';
    return RW_OK;
}

/* Times hold for one library, device, machine and number of threads: a file of another place is refused, not scaled. */
static rw_status read_costs(struct reader *r, struct rw_costs *costs)
{
    const struct place here = place_of(r->ctx, r->ctx->threads);
    char *text;
    uint64_t n = 0;
    int version = 0;
    rw_status status = read_version(r, &version);
    if (!status) status = read_place(r, "library", here.library);
    if (!status) status = read_place(r, "device", here.device);
    if (!status) status = read_place(r, "machine", here.machine);
    if (!status) status = read_place(r, "threads", here.threads);
    if (!status && version > 1) status = read_memory(r, version, &costs->memory);
    if (!status && version > 2) status = read_store(r, costs);
    if (!status) status = read_word(r, "nodes", &text);
    if (status) return status;
    const char *const end = read_number(text, 10, NODES_MAX, &n);
    if (!end || *end || !n)
        return refuse(r, RW_ERR_IO, "expected a number of nodes from 1 to %u, got \"%.40s\"", NODES_MAX, text);
    status = read_entries(r, (size_t)n, costs);
    return status ? status : read_end(r, version > 1 ? costs->hash : rw_costs_entries_hash(costs));
}

/* The context's costs are replaced only after the last line, with its hash, has been accepted: a refused file leaves
   the old ones. */
rw_status rw_costs_load(rw_context *ctx, const char *path)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx || !path) return rw_fail_null(ctx, "rw_costs_load", ctx ? "path" : "ctx");
    unsigned char *data;
    size_t bytes;
    rw_status status = rw_file_read(ctx, "rw_costs_load", path, FILE_MAX, &data, &bytes);
    if (status) return status;
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    struct reader r = { .ctx = ctx, .path = path, .at = (char *)data, .end = (char *)data + bytes };
    status = costs ? read_costs(&r, costs) : rw_fail(ctx, RW_ERR_MEMORY, "rw_costs_load: out of memory");
    rw_free(data);
    if (status) {
        rw_costs_free(costs);
        return status;
    }
    costs->threads = ctx->threads;
    rw_costs_replace(ctx, costs);
    rw_costs_tell_store(ctx);
    return RW_OK;
}
