/*
 * Cost files: those of earlier versions are read; their transfer rates apply only to the offload folder for which they
 * were measured; and files that are truncated, changed or from another machine are refused with their line, without any
 * effect.
 */
#include "io/cost_fixture.h"

#include "autodiff/costs.h"
#include "record/tape.h"

#include <sys/resource.h>
#include <sys/stat.h>

TestSuite(cost_files, .init = open_files, .fini = close_files);

static void expect_refused(struct fixture *b, const char *text, size_t bytes, rw_status want, int line,
                           const char *what)
{
    const struct rw_costs *const before = rw_costs_of(b->ctx);
    char where[32];
    snprintf(where, sizeof where, ", line %d: ", line);
    write_file(other, text, bytes);
    const rw_status got = rw_costs_load(b->ctx, other);
    cr_expect_eq(got, want, "%s: %s", what, rw_status_name(got));
    cr_expect(strstr(rw_error_message(b->ctx), where), "%s: line %d, not: %s", what, line, rw_error_message(b->ctx));
    cr_expect_eq(rw_costs_of(b->ctx), before, "%s: the old costs are in force", what);
    rw_error_clear(b->ctx);
}

/* Replaces line number `line` (from 1). */
static const char *other_line(const char *text, int line, const char *in_place)
{
    static char changed[1 << 16];
    const char *at = text;
    for (int i = 1; i < line; i++) at = strchr(at, '\n') + 1;
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, in_place, strchr(at, '\n'));
    return changed;
}

static void with_line(struct fixture *b, const char *text, int line, const char *in_place, rw_status want)
{
    const char *const changed = other_line(text, line, in_place);
    expect_refused(b, changed, strlen(changed), want, line, in_place);
}

Test(cost_files, files_of_other_machines_are_refused_by_line)
{
    struct fixture b = measured();
    size_t bytes;
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    with_line(&b, text, 1, "rewind costs 5", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 1, "rewind costs 10", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 1, "safetensors", RW_ERR_IO);
    with_line(&b, text, 2, "library 0.0.9", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 3, "device tpu", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 4, "machine another", RW_ERR_UNSUPPORTED);
    with_line(&b, text, 5, "threads 77", RW_ERR_UNSUPPORTED);
    static const char *const no_memory[] = {
        "memory", "memory ", "memory 5", "memory 5 ", "memory 5 5", "memory 5 5 ", "memory 5 5 x", "memory 5 x 5",
        "memory -1 5 5", "memory 5 5 -1", "memory 5 5 5 ", "memory 5 5 5 5", "memory 5.5 5 5", "nodes 5",
        "memory 5 9999999999999999999 5", "memory 99999999999999999999 5 5", "memory 5 5 9999999999999999999"
    };
    for (size_t i = 0; i < sizeof no_memory / sizeof *no_memory; i++) with_line(&b, text, 6, no_memory[i], RW_ERR_IO);
    with_line(&b, text, 6, "memory 1000000000000000000 1000000000000000000 1000000000000000001", RW_ERR_IO);
    const char *const negative = other_line(text, 6, "memory 5 -1 5");
    write_file(other, negative, strlen(negative));
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "line 6: expected bytes and picoseconds twice, up to 10^18 each, "
                                              "got \"5 -1 5\""), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    static const char *const no_store[] = {
        "store", "store ", "store nobody", "store none ", "store 5", "store 5 5 5", "store 5 5 5 ", "store 5 5 5 tmp",
        "store 0 5 5 /tmp", "store 5 0 5 /tmp", "store -5 5 5 /tmp", "store 5.5 5 5 /tmp", "store 5  5 5 /tmp",
        "store 5 5 9999999999999999999 /tmp", "nodes 5",
    };
    for (size_t i = 0; i < sizeof no_store / sizeof *no_store; i++) with_line(&b, text, 7, no_store[i], RW_ERR_IO);
    const char *const no_folder = other_line(text, 7, "store 5 5 5 folder");
    write_file(other, no_folder, strlen(no_folder));
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "line 7: column 13: expected the whole path of a folder, got \"folder"),
              "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    with_line(&b, text, 8, "nodes 0", RW_ERR_IO);
    with_line(&b, text, 8, "nodes -1", RW_ERR_IO);
    with_line(&b, text, 8, "nodes 99999999999999999999", RW_ERR_IO);
    static const char *const bad[] = {
        "", "x", "0123456789abcdef", "0123456789abcdef 0 1 1 f32 add", "0123456789abcdef -5 1 1 f32 add",
        "0123456789abcde 5 1 1 f32 add", "0123456789abcdef 5 1 1 f99 add", "0123456789abcdef 5 1 1 f32",
        "0123456789abcdef 5 1 1 f32 ", "0123456789abcdef 5.5 1 1 f32 add", "0123456789abcdef nan 1 1 f32 add",
        "0123456789ABCDEF 5 1 1 f32 add", "0123456789abcdef 99999999999999999999 1 1 f32 add",
        "0123456789abcdef 5 1 1 f32 addddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) with_line(&b, text, 9, bad[i], RW_ERR_IO);
    with_line(&b, text, 10, "0000000000000000 5 1 1 f32 add", RW_ERR_IO);
    const int last = 9 + (int)rw_costs_count(b.ctx);
    with_line(&b, text, last, "end 0123456789abcdef", RW_ERR_IO);
    with_line(&b, text, last, "end", RW_ERR_IO);
    char more[1 << 16];
    snprintf(more, sizeof more, "%smore", text);
    expect_refused(&b, more, strlen(more), RW_ERR_IO, last + 1, "more behind the end");
    free(text);
    fixture_close(&b);
}

/* The system's value of the first processor for that key; empty if there is none. */
static void ask_processor(const char *key, char *said, size_t size)
{
    char command[128];
    snprintf(command, sizeof command, "sed -n 's/^%s[[:space:]]*: //p' /proc/cpuinfo | head -n 1 | tr -d '\\n'", key);
    FILE *const f = popen(command, "r");
    cr_assert(f);
    if (!fgets(said, (int)size, f)) *said = '\0';
    pclose(f);
}

/* A virtual machine may give all processors of one vendor the same name. */
Test(cost_files, name_the_processor_by_its_family_and_model)
{
    struct fixture b = measured();
    char family[32], model[32], want[96];
    size_t bytes;
    ask_processor("cpu family", family, sizeof family);
    ask_processor("model", model, sizeof model);
    const bool told = *family && *model && rw_context_device(b.ctx) == RW_DEVICE_CPU;
    if (!told) fixture_close(&b);
    if (!told) cr_skip_test("no processor's family and model are told here");
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    snprintf(want, sizeof want, "(family %s, model %s), ", family, model);
    cr_expect(strstr(text, "\nmachine ") && strstr(strstr(text, "\nmachine "), want), "%s", want);
    free(text);
    fixture_close(&b);
}

/* They were written before costs of memory existed. */
/* The last free descriptor is enough to name the machine, and then to write the file. */
Test(cost_files, are_saved_with_one_free_descriptor)
{
    struct fixture b = measured();
    struct rlimit before;
    const int last = dup(0);
    cr_assert_geq(last, 0);
    close(last);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)last + 1, before.rlim_max }), 0);
    const rw_status saved = rw_costs_save(b.ctx, path);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_expect_eq(saved, RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(cost_files, files_of_version_1_are_read)
{
    struct fixture b = measured();
    char old[1 << 16], end[64];
    size_t bytes;
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 1 << 10, 1000000000 };
    const double priced = predicted_ms(&b, "none", 24);
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 0 };
    const double none = predicted_ms(&b, "none", 24);
    cr_expect_lt(none, priced);
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const char *const memory = strstr(text, "memory "), *const nodes = strstr(text, "nodes "),
                      *const last = strstr(text, "\nend ");
    snprintf(end, sizeof end, "\nend %016llx\n", (unsigned long long)rw_costs_entries_hash(rw_costs_of(b.ctx)));
    snprintf(old, sizeof old, "rewind costs 1\n%.*s%.*s%s", (int)(memory - text) - 15, text + 15, (int)(last - nodes),
             nodes, end);
    write_file(other, old, strlen(old));
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 0);
    cr_expect_eq(predicted_ms(&b, "none", 24), none);
    free(text);
    fixture_close(&b);
}

/* They were written before transfer rates of a folder existed. */
Test(cost_files, files_of_version_2_are_read)
{
    struct fixture b = measured();
    char old[1 << 16];
    size_t bytes;
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 1 << 10, 1000000000 };
    cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const char *const store = strstr(text, "store none\n");
    cr_assert_not_null(store);
    const char *const shared = store - sizeof " 0"; /* of the line before */
    cr_assert(!strncmp(shared, " 0\n", 3));
    snprintf(old, sizeof old, "rewind costs 2\n%.*s\n%s", (int)(shared - text) - 15, text + 15,
             strchr(store, '\n') + 1);
    write_file(other, old, strlen(old));
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 1000000000);
    cr_expect_null(rw_costs_of(b.ctx)->folder);
    free(text);
    fixture_close(&b);
}

/* They were written before the cost of memory written by other threads existed: two numbers for memory, the same
   hash. */
Test(cost_files, files_of_version_3_are_read)
{
    struct fixture b = measured();
    char old[1 << 16];
    size_t bytes;
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 1 << 10, 1000000000, 0 };
    cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const char *const shared = strstr(text, " 0\nstore");
    cr_assert_not_null(shared);
    snprintf(old, sizeof old, "rewind costs 3\n%.*s%s", (int)(shared - text) - 15, text + 15, shared + 2);
    write_file(other, old, strlen(old));
    rw_costs_clear(b.ctx);
    cr_assert_eq(rw_costs_load(b.ctx, other), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_costs_of(b.ctx)->memory.picoseconds, 1000000000);
    cr_expect_eq(rw_costs_of(b.ctx)->memory.shared_picoseconds, 0);
    struct rw_hash two = { 0 };
    rw_hash_mix(&two, 1 << 10);
    rw_hash_mix(&two, 1000000000);
    cr_expect_eq(rw_costs_hash(&(struct rw_costs){ .memory = rw_costs_of(b.ctx)->memory }), two.a ^ two.b);
    const char *const third = other_line(text, 1, "rewind costs 3");
    expect_refused(&b, third, strlen(third), RW_ERR_IO, 6, "a number that version 3 does not have");
    free(text);
    fixture_close(&b);
}

/* A file of version 1 must not have a line "memory"; one of version 2 must, and must not have a line "store". */
Test(cost_files, a_version_has_the_lines_that_it_has)
{
    struct fixture b = measured();
    size_t bytes;
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes), *const memory = strstr(text, "memory ");
    const char *const first = other_line(text, 1, "rewind costs 1");
    expect_refused(&b, first, strlen(first), RW_ERR_IO, 6, "a line that version 1 does not have");
    char *const pair = strdup(other_line(text, 6, "memory 5 5"));
    const char *const second = other_line(pair, 1, "rewind costs 2");
    expect_refused(&b, second, strlen(second), RW_ERR_IO, 7, "a line that version 2 does not have");
    free(pair);
    memmove(memory, strchr(memory, '\n') + 1, strlen(strchr(memory, '\n') + 1) + 1);
    expect_refused(&b, text, strlen(text), RW_ERR_IO, 6, "a line that version 2 must have");
    free(text);
    fixture_close(&b);
}

/* The largest numbers that a file may have: they are read unchanged, and plans are made with them. */
Test(cost_files, memory_may_cost_the_most_that_a_file_can_say)
{
    static const uint64_t most = 1000000000000000000u;
    struct fixture b = measured();
    double ms[2];
    for (int i = 0; i < 2; i++) {
        rw_prediction p;
        rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ i ? most : 0, most, most };
        cr_assert(rw_costs_seal(rw_costs_of(b.ctx)));
        cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
        rw_costs_clear(b.ctx);
        cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        const struct rw_memory_cost got = rw_costs_of(b.ctx)->memory;
        cr_assert(got.near_bytes == (i ? most : 0) && got.picoseconds == most && got.shared_picoseconds == most);
        ms[i] = predicted_ms(&b, "none", 24);
        cr_assert_eq(rw_tape_plan(b.t, net_loss(&net, b.t, 24, 0), "budget:70%", &p), RW_OK, "%s",
                     rw_error_message(b.ctx));
        cr_expect(p.ms > 0 && p.ms < 1e300 && p.bound_ms <= p.ms * (1 + 1e-9) && p.gap >= -1e-9, "%g ms, bound %g, %g",
                  p.ms, p.bound_ms, p.gap);
        rw_tape_reset(b.t);
    }
    cr_expect_gt(ms[0], ms[1] + 1e7, "%g and %g ms", ms[0], ms[1]); /* the price alone is ten times that */
    fixture_close(&b);
}

/* ---- rates of the offload folder ---- */

static void wait_in(struct fixture *b, const char *folder, double out, double in)
{
    const rw_offload o = { .path = folder, .out_bytes_per_s = out, .in_bytes_per_s = in };
    cr_assert_eq(rw_context_set_offload(b->ctx, &o), RW_OK, "%s", rw_error_message(b->ctx));
}

struct moves {
    double ms;
    size_t peak, host;
};

/* From a plan that offloads values; no step is executed. */
static struct moves predicted_moves(struct fixture *b)
{
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b->t, net_loss(&net, b->t, 60, 0), "budget:40%+offload", &p), RW_OK, "%s",
                 rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return (struct moves){ p.ms, p.peak_bytes, p.at_peak.host };
}

static bool is_same(struct moves a, struct moves b)
{
    return a.ms == b.ms && a.peak == b.peak && a.host == b.host;
}

/* One context measures its disk and writes the rates; another one, as in another process, makes bit-identical plans and
   measures nothing: impossible rates are used unchanged. */
Test(cost_files, a_file_knows_how_fast_the_folder_is)
{
    struct fixture a = measured();
    const struct net of_a = net;
    struct rw_costs *const costs = rw_costs_of(a.ctx);
    for (size_t i = 0; i < costs->n; i++) costs->entry[i].picoseconds *= 10000; /* longer than copies */
    cr_assert(rw_costs_seal(costs));
    wait_in(&a, dir, 0, 0);
    cr_expect_gt(predicted_moves(&a).host, 0);
    cr_assert_gt(a.ctx->store.measured.out, 0);
    const struct rw_store_cost odd[] = { a.ctx->store.measured, { 123456789, 987654321, 77777 } };
    for (int i = 0; i < 2; i++) {
        rw_store_learn(&a.ctx->store, odd[i]);
        const struct moves there = predicted_moves(&a);
        cr_assert_eq(rw_costs_save(a.ctx, path), RW_OK, "%s", rw_error_message(a.ctx));
        for (int before = 0; before < 2; before++) {
            struct fixture b = fixture_open(1, 1);
            net_init(&net, b.ctx, 3, 32, RW_F32, 1);
            if (before) wait_in(&b, dir, 0, 0);
            cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
            if (!before) wait_in(&b, dir, 0, 0);
            cr_expect(is_same(predicted_moves(&b), there), "%d, %d", i, before);
            cr_expect(!memcmp(&b.ctx->store.measured, &odd[i], sizeof odd[i]), "%d, %d: measured again", i, before);
            fixture_close(&b);
            net = of_a;
        }
    }
    fixture_close(&a);
}

/* The rates of one folder do not apply to another, are not lost meanwhile, and are overridden by the caller's. */
Test(cost_files, what_is_known_of_a_folder_is_of_that_folder)
{
    struct fixture b = measured();
    char there[80], *text;
    size_t bytes;
    snprintf(there, sizeof there, "\nstore 5000000000 4000000000 333 %s\n", dir);
    wait_in(&b, dir, 0, 0);
    rw_store_learn(&b.ctx->store, (struct rw_store_cost){ 5000000000, 4000000000, 333 });
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    text = text_of(path, &bytes);
    cr_assert_not_null(strstr(text, there), "%s", text);
    free(text);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t hash = rw_costs_of(b.ctx)->hash;
    wait_in(&b, "/tmp", 0, 0);
    cr_expect(b.ctx->store.rate.out == 0 && b.ctx->store.rate.in == 0);
    wait_in(&b, dir, 0, 3e9);
    cr_expect(b.ctx->store.rate.out == 5e9 && b.ctx->store.rate.in == 3e9 && b.ctx->store.rate.loss > 0);
    wait_in(&b, dir, 2e9, 3e9);
    cr_expect(b.ctx->store.rate.out == 2e9 && b.ctx->store.rate.in == 3e9 && b.ctx->store.rate.loss == 0);
    wait_in(&b, "/tmp", 0, 0);
    cr_assert_eq(rw_profile_begin(b.ctx), RW_OK);
    steps(&b, 2, 24);
    cr_assert_eq(rw_profile_end(b.ctx), RW_OK);
    cr_assert_eq(rw_costs_save(b.ctx, other), RW_OK);
    text = text_of(other, &bytes);
    cr_expect_not_null(strstr(text, there), "costs that were measured since know it too: %s", text);
    free(text);
    cr_assert_eq(rw_costs_load(b.ctx, path), RW_OK);
    cr_expect_eq(rw_costs_of(b.ctx)->hash, hash);
    rw_costs_of(b.ctx)->store.loss++;
    cr_expect_neq(rw_costs_hash(rw_costs_of(b.ctx)), hash, "another plan, another key");
    fixture_close(&b);
}

/* Truncated anywhere, or with any byte changed: refused, or the same costs; no crash, and no effect. */
Test(cost_files, no_damaged_file_is_taken)
{
    struct fixture b = measured();
    size_t bytes, taken = 0;
    cr_assert_eq(rw_costs_save(b.ctx, path), RW_OK);
    char *const text = text_of(path, &bytes);
    const uint64_t hash = rw_costs_of(b.ctx)->hash;
    for (size_t cut = 0; cut < bytes; cut += 1 + cut / 100) {
        write_file(other, text, cut);
        cr_expect_eq(rw_costs_load(b.ctx, other), RW_ERR_IO, "cut at %zu", cut);
        rw_error_clear(b.ctx);
    }
    for (size_t i = 0; i < bytes; i += 1 + i / 200)
        for (int bit = 0; bit < 8; bit += 3) {
            text[i] ^= (char)(1 << bit);
            write_file(other, text, bytes);
            taken += rw_costs_load(b.ctx, other) == RW_OK;
            rw_error_clear(b.ctx);
            text[i] ^= (char)(1 << bit);
        }
    cr_expect_eq(taken, 0, "%zu damaged files were taken", taken);
    cr_expect_eq(rw_costs_of(b.ctx)->hash, hash);
    free(text);
    fixture_close(&b);
}

Test(cost_files, what_is_no_file_and_calls_in_a_wrong_order)
{
    struct fixture b = fixture_open(1, 1);
    cr_expect_eq(rw_costs_load(b.ctx, dir), RW_ERR_IO);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_load(b.ctx, path), RW_ERR_IO, "there is none");
    rw_error_clear(b.ctx);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(rw_costs_load(b.ctx, path), RW_ERR_IO, "a FIFO");
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_costs_save(b.ctx, other), RW_ERR_ARGUMENT, "no costs");
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_profile_end(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_profile_begin(b.ctx), RW_OK);
    cr_expect_eq(rw_profile_begin(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_profile_end(b.ctx), RW_OK, "nothing ran");
    cr_expect_eq(rw_costs_count(b.ctx), 0);
    fixture_close(&b);
}

/* The execution of a step does not depend on its measurements. */
