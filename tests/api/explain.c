/*
 * Output of ckpt_explain(): equal blocks are shown once, bytes sum to those that the plan keeps, and its advice holds
 * when it is followed.
 */
#include "remat/random_tape.h"
#include "support/support.h"

#include "record/context.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCKS = 12, N = 1024, VALUE = N * sizeof(float), ROOM = 1 << 16 };

/* Blocks of two squares, `odd` of them of three. */
static rw_tensor *blocks(struct fixture *b, int odd)
{
    rw_tensor *x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), NULL, 0));
    for (int l = 0; l < BLOCKS; l++) {
        ckpt_begin(b->t, "block");
        x = counted_square(b->t, counted_square(b->t, x, 0), 1);
        if (l < odd) x = counted_square(b->t, x, 2);
        ckpt_end(b->t);
    }
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

/* Squares outside any region, to which no policy that names regions applies. */
static rw_tensor *row(struct fixture *b, int n)
{
    rw_tensor *x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), NULL, 0));
    for (int i = 0; i < n; i++) x = counted_square(b->t, x, i);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static char *explained(struct fixture *b, unsigned flags, char *text)
{
    FILE *const f = tmpfile();
    cr_assert_not_null(f);
    cr_assert_eq(ckpt_explain_with(b->t, f, flags), RW_OK, "%s", rw_error_message(b->ctx));
    fseek(f, ftell(f) < ROOM ? 0 : 1 - ROOM, ftell(f) < ROOM ? SEEK_SET : SEEK_END); /* for a long text its end */
    text[fread(text, 1, ROOM - 1, f)] = '\0';
    fclose(f);
    return text;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

/* Bytes of all lines of kept values; those of a block and of equal values times their number. */
static size_t sum_of_kept(const char *text)
{
    size_t sum = 0, times = 1, bytes, n;
    char line[512];
    for (const char *at = text; *at && strncmp(at, "kept ", 5); at = strchr(at, '\n') + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (strncmp(line, "    ", 4)) times = 1;
        if (sscanf(line, "  %zu x %*[^,], %zu bytes kept", &n, &bytes) == 2) times = n;
        n = 1;
        if (sscanf(line, " kept %zu %zu x", &bytes, &n) >= 1) sum += times * n * bytes;
    }
    return sum;
}

Test(explain, equal_blocks_are_shown_once)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    blocks(&b, 0);
    explained(&b, 0, text);
    cr_expect(strstr(text, "x block, "), "%s", text);
    cr_expect_leq(count(text, "counted_square"), 12, "%zu lines: %s", count(text, "counted_square"), text);
    cr_expect_eq(sum_of_kept(text), (2 * BLOCKS - 1) * VALUE, "%zu: %s", sum_of_kept(text), text);
    explained(&b, CKPT_EXPLAIN_ALL, text);
    cr_expect_null(strstr(text, " x block, "), "%s", text);
    cr_expect_geq(count(text, "counted_square"), 2 * BLOCKS - 1, "%s", text);
    cr_expect_eq(sum_of_kept(text), (2 * BLOCKS - 1) * VALUE, "%s", text);
    fixture_close(&b);
}

Test(explain, blocks_that_differ_are_told_apart)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    blocks(&b, 5);
    explained(&b, 0, text);
    cr_expect(strstr(text, "  5 x block, ") && strstr(text, "  6 x block, "), "%s", text);
    cr_expect_eq(sum_of_kept(text), (2 * BLOCKS + 5 - 1) * VALUE, "%s", text);
    fixture_close(&b);
}

/* Blocks inside of different outer regions: the inner blocks are shown once, under their path. */
Test(explain, equal_blocks_inside_of_another_region_are_shown_once)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
    ckpt_begin(b.t, "model");
    for (int l = 0; l < BLOCKS; l++) {
        if (l == 0 || l == 5) ckpt_begin(b.t, "half");
        ckpt_begin(b.t, "block");
        x = rw_mul(b.t, counted_square(b.t, x, 0), x);
        ckpt_end(b.t);
        if (l == 4 || l == BLOCKS - 1) ckpt_end(b.t);
    }
    x = rw_exp(b.t, x);
    ckpt_end(b.t);
    rw_sum(b.t, x, RW_ALL_AXES, false);
    explained(&b, 0, text);
    cr_expect(strstr(text, "  5 x model/half/block, ") && strstr(text, "  6 x model/half/block, "), "%s", text);
    const size_t sum = sum_of_kept(text);
    explained(&b, CKPT_EXPLAIN_ALL, text);
    cr_expect_eq(sum, sum_of_kept(text), "%zu: %s", sum, text);
    cr_expect(!strstr(text, " x model") && sum >= 2 * (BLOCKS - 1) * VALUE, "%s", text);
    fixture_close(&b);
}

/* Results of one op at one source line with equal size and fate are one line. */
Test(explain, equal_values_outside_of_regions_are_shown_once)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    row(&b, 12);
    explained(&b, 0, text);
    cr_expect(strstr(text, "  kept             4096  11 x counted_square "), "%s", text);
    cr_expect_eq(sum_of_kept(text), 11 * VALUE, "%zu: %s", sum_of_kept(text), text);
    explained(&b, CKPT_EXPLAIN_ALL, text);
    cr_expect_geq(count(text, "\n  kept             4096  counted_square "), 11, "%s", text);
    fixture_close(&b);
}

/* The stated reason is true: a value is kept because of what is replayed around it, if anything is. */
Test(explain, reasons_are_true)
{
    static char text[ROOM];
    for (int i = 0; i < 3; i++) {
        struct fixture b = fixture_open(1, 1);
        cr_assert_eq(ckpt_set_policy(b.t, i == 0 ? "none" : i == 1 ? "full" : "ops:dropout_add"), RW_OK);
        rw_tensor *x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
        rw_tensor *const first = x = counted_square(b.t, x, 0);
        ckpt_begin(b.t, "block");
        x = counted_square(b.t, counted_square(b.t, x, 1), 2);
        ckpt_end(b.t);
        rw_sum(b.t, rw_mul(b.t, rw_mul(b.t, x, x), first), RW_ALL_AXES, false);
        explained(&b, CKPT_EXPLAIN_ALL, text);
        cr_expect_eq(count(text, "(nothing is replayed under this policy)") > 0, i == 0, "%s", text);
        cr_expect_eq(count(text, "(computed in a replayed region, read outside it)") > 0, i > 0, "%s", text);
        cr_expect_eq(count(text, "(computed outside any replayed region)") > 0, i > 0, "%s", text);
        cr_expect_eq(count(text, "(inside a replayed region)") > 0, i > 0, "%s", text);
        fixture_close(&b);
    }
}

/* Attention keeps the log-sum-exps next to its output: they have its fate, although no policy named them. */
/* A mark after the use is a mark: rw_backward() would run, so the plan is printed. */
Test(explain, a_loss_that_requires_gradients_by_a_late_mark)
{
    struct fixture b = fixture_open(17, 1);
    static char text[ROOM];
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0);
    rw_sum(b.t, rw_tanh(b.t, x), RW_ALL_AXES, false);
    rw_require_grad(b.t, x);
    cr_expect(strstr(explained(&b, 0, text), "2 nodes forward"), "%s", text);
    fixture_close(&b);
}

Test(explain, other_outputs_of_a_replayed_op_are_explained)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1, 2, 16, 32), NULL, 0));
    rw_tensor *const y = ckpt_recompute(b.t, rw_attention(b.t, x, x, x, NULL));
    rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    explained(&b, CKPT_EXPLAIN_ALL, text);
    cr_expect(strstr(text, "(ckpt_recompute())"), "%s", text);
    cr_expect(strstr(text, "(its op is replayed for another output)"), "%s", text);
    fixture_close(&b);
}

/* tanh overwrites its input: only its result is kept, and counted once. */
Test(explain, memory_that_was_taken_over_in_place_is_counted_once)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
    rw_sum(b.t, rw_tanh(b.t, rw_scale(b.t, x, 2)), RW_ALL_AXES, false);
    explained(&b, 0, text);
    cr_expect(strstr(text, "kept 4096 bytes;"), "%s", text);
    cr_expect_eq(sum_of_kept(text), VALUE, "%zu: %s", sum_of_kept(text), text);
    fixture_close(&b);
}

/* The lines of the memory breakdown compared with the prediction: each has its bytes, and none is missing. */
static void expect_categories(const char *text, const rw_prediction *p, bool *seen)
{
    const rw_memory_breakdown *const b = &p->at_peak;
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {
        { "parameters", b->parameters },
        { "gradients", b->gradients },
        { "optimizer", b->optimizer },
        { "inputs", b->inputs },
        { "results", b->results },
        { "kept for backward", b->kept },
        { "replayed", b->replayed },
        { "transient in forward", b->transient },
        { "intermediate gradients", b->adjoint },
        { "workspace", b->workspace },
        { "fragmentation", b->fragmentation },
    };
    char line[96];
    size_t sum = 0;
    snprintf(line, sizeof line, "holds %zu bytes on the device:\n", p->total_bytes);
    const char *const at = strstr(text, line);
    cr_assert_not_null(at, "%s: %s", line, text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(line, sizeof line, "\n  %-28s %14zu  %5.1f %%\n", parts[i].name, parts[i].bytes,
                 100 * (double)parts[i].bytes / (double)p->total_bytes);
        cr_expect_eq(strstr(at, line) != NULL, parts[i].bytes > 0, "%s: %s", line, text);
        sum += parts[i].bytes;
        seen[i] |= parts[i].bytes > 0;
    }
    cr_expect_eq(sum, p->total_bytes);
}

/* A forward value that is large and short-lived, and the only large one. */
static rw_tensor *moment(struct fixture *b)
{
    rw_tensor *const x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), NULL, 0));
    rw_tensor *const wide = rw_sum(b->t, rw_exp(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(64 * N))), RW_ALL_AXES, false);
    return rw_sum(b->t, rw_mul(b->t, x, wide), RW_ALL_AXES, false);
}

static rw_prediction explain_prediction(struct fixture *b, rw_tensor *loss, char *text)
{
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b->t, loss, NULL, &p), RW_OK, "%s", rw_error_message(b->ctx));
    explained(b, 0, text);
    return p;
}

Test(explain, says_what_fills_memory)
{
    static char text[ROOM];
    static const char *const policies[] = { "none", "full", "uniform:2", "ops:linear", "selective:middle" };
    bool seen[11] = { false };
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_optimizer *opt = NULL;
    net_init(&n, b.ctx, 3, 64, RW_F32, 2);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        for (int tokens = 8; tokens < 400; tokens *= 3) {
            cr_assert_eq(ckpt_set_policy(b.t, policies[i]), RW_OK);
            const rw_prediction p = explain_prediction(&b, net_loss(&n, b.t, tokens, 0), text);
            expect_categories(text, &p, seen);
            if (tokens == 8) cr_expect(strstr(text, "more than half are parameters"), "%s", text);
            rw_tape_reset(b.t);
        }
    rw_prediction p = explain_prediction(&b, moment(&b), text);
    expect_categories(text, &p, seen);
    rw_tape_reset(b.t);
    ckpt_set_policy(b.t, "none");
    rw_tensor *const odd = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT / 4));
    p = explain_prediction(&b, random_tape(b.t, odd, 38, 8), text); /* some bytes are fragmentation (remat/budgets.c) */
    expect_categories(text, &p, seen);
    seen[10] |= test_device() != RW_DEVICE_CPU;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) cr_expect(seen[i], "category %zu was never there", i);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* Calls of one op at one source line are one line, the largest first: number, bytes, purpose, and location. */
Test(explain, names_what_fills_the_arena)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(ckpt_set_policy(b.t, again ? "uniform:6" : "none"), RW_OK);
        const rw_prediction p = explain_prediction(&b, blocks(&b, 0), text);
        const char *at = strstr(text, "most of the arena then:\n");
        cr_assert_not_null(at, "%s", text);
        size_t sum[3] = { 0 }, before = SIZE_MAX, bytes, n;
        char kind[16], op[32], region[32], site[128];
        double percent;
        for (at = strchr(at, '\n') + 1; sscanf(at, " %lf %% %zu %zu x %15s", &percent, &bytes, &n, kind) == 4;
             at = strchr(at, '\n') + 1) {
            const int which = !strcmp(kind, "kept") ? 0 : !strcmp(kind, "replayed") ? 1 : 2;
            cr_expect_leq(bytes, before, "%s", text);
            cr_expect_float_eq(percent, 100 * (double)bytes / (double)p.largest_live, 0.06);
            sum[which] += before = bytes;
            if (which == 2) continue;
            cr_expect_eq(bytes, n * VALUE, "%s", text);
            cr_assert_eq(sscanf(at, " %*f %% %*u %*u x %*s %31s %31s %127s", op, region, site), 3, "%s", at);
            cr_expect(!strcmp(op, "counted_square") && !strcmp(region, "block") && strstr(site, "support.c:"), "%s",
                      text);
        }
        cr_expect_eq(sum[0], p.at_peak.kept, "%s", text);
        cr_expect_eq(sum[1], p.at_peak.replayed, "%s", text);
        cr_expect_eq(sum[0] + sum[1] + sum[2], p.largest_live, "%s", text);
        cr_expect(again ? sum[1] > 0 : sum[0] >= 10 * VALUE, "%s", text);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* Follows the offered policies: they are listed from the fastest on, each smaller than the one before, and each reduces
   the bytes by as much as stated and costs the stated time. Returns their number. */
static int follow(struct fixture *b, rw_tensor *loss, const char *text, const rw_prediction *now)
{
    const char *at = strstr(text, "policies that take less:\n");
    size_t less_before = 0;
    double ms_before = 0;
    int n = 0;
    if (!at) return strstr(text, "no policy that was tried takes less\n") ? 0 : -1;
    for (at = strchr(at, '\n') + 1; strncmp(at, "  budget:SIZE ", 14); at = strchr(at, '\n') + 1, n++) {
        rw_prediction then;
        char policy[64];
        size_t less;
        double share, percent;
        cr_assert_eq(sscanf(at, " %63s %zu bytes less (%lf %% of the arena), %lf %% time", policy, &less, &share,
                            &percent), 4, "%s", at);
        cr_assert_eq(rw_tape_plan(b->t, loss, policy, &then), RW_OK, "%s", policy);
        cr_expect_eq(then.peak_bytes + less, now->peak_bytes, "%s: %zu and %zu less", policy, then.peak_bytes, less);
        cr_expect_float_eq(share, 100 * (double)less / (double)now->peak_bytes, 0.051, "%s: %g %%", policy, share);
        cr_expect_float_eq(percent, 100 * (then.ms / now->ms - 1), 0.051, "%s: %g %% time", policy, percent);
        cr_expect(less > less_before && less < now->peak_bytes && then.ms >= ms_before, "%s: %s", policy, text);
        less_before = less;
        ms_before = then.ms;
    }
    return n;
}

Test(explain, advice_holds_when_it_is_followed)
{
    static char text[ROOM];
    static const char *const policies[] = { "none", "uniform:2", "full", "uniform:4", "discard:block" };
    int offered = 0, budgets = 0;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        for (int of_net = 0; of_net < 2; of_net++) {
            struct fixture b = fixture_open(1, 1);
            struct net net;
            net_init(&net, b.ctx, 4, 64, RW_F32, 2);
            cr_assert_eq(ckpt_set_policy(b.t, policies[i]), RW_OK);
            rw_tensor *const loss = of_net ? net_loss(&net, b.t, 96, 0) : blocks(&b, 0);
            const rw_prediction now = explain_prediction(&b, loss, text);
            const int n = follow(&b, loss, text, &now);
            cr_assert_geq(n, 0, "%s", text);
            offered += n;
            budgets += strstr(text, "\n  budget:") != NULL;
            fixture_close(&b);
        }
    cr_expect(offered > 8 && budgets > 2, "%d, %d", offered, budgets);
}

/* Budgets from keeping all values down to the minimum, below which no plan exists. With a store, some with +offload may
   be faster and smaller than these. */
Test(explain, budgets_are_offered_without_regions)
{
    static char text[ROOM];
    char least[64];
    struct fixture b = fixture_open(1, 1);
    const bool moves = test_device() != RW_DEVICE_CPU;
    rw_tensor *const loss = row(&b, 24);
    rw_prediction now = explain_prediction(&b, loss, text), p;
    const int offered = follow(&b, loss, text, &now);
    cr_expect(moves ? offered >= 1 : offered == 4, "%d of %s", offered, text);
    cr_assert_eq(rw_tape_plan(b.t, loss, "budget:75%", &p), RW_OK);
    snprintf(least, sizeof least, "budget:%zuB", p.least_bytes);
    cr_expect(moves || (strstr(text, "\n  budget:75% ") && strstr(text, "\n  budget:50% ") &&
                        strstr(text, "\n  budget:25% ") && strstr(text, least)), "%s", text);
    cr_expect(strstr(text, "\n  budget:"), "%s", text);
    cr_assert_eq(ckpt_set_policy(b.t, least), RW_OK);
    now = explain_prediction(&b, loss, text);
    if (!moves) cr_expect_eq(follow(&b, loss, text, &now), 0, "%s", text);
    fixture_close(&b);
}

/* For a tape whose frontier takes seconds, two budgets are tried, and the text says so. */
Test(explain, says_what_is_not_tried_of_a_long_tape)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    for (int is_long = 0; is_long < 2; is_long++) {
        rw_tensor *const loss = row(&b, is_long ? 10500 : 100);
        const rw_prediction now = explain_prediction(&b, loss, text);
        cr_expect_geq(follow(&b, loss, text, &now), 0, "%s", text);
        cr_expect_eq(strstr(text, "only full and uniform:2 are tried for more than 20000 nodes") != NULL, is_long,
                     "%s", text);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- values that could be offloaded ---- */

/* The text for a net whose values could be offloaded to a store of that speed. */
static int explain_with_store(const rw_offload *store, char *text, int *ret_moves)
{
    struct fixture b = fixture_open(1, 1);
    struct net net;
    net_init(&net, b.ctx, 4, 64, RW_F32, 2);
    cr_assert_eq(rw_context_set_offload(b.ctx, store), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = net_loss(&net, b.t, 96, 0);
    const rw_prediction now = explain_prediction(&b, loss, text);
    const int n = follow(&b, loss, text, &now);
    *ret_moves = (int)count(text, " bytes are offloaded\n");
    fixture_close(&b);
    return n;
}

/* A fast store beats replays, and replays beat a slow one: in both cases the offer holds. */
Test(explain, offers_offload_where_it_pays)
{
    static char text[ROOM];
    int moves;
    const rw_offload fast = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 };
    const rw_offload slow = { .out_bytes_per_s = 1e3, .in_bytes_per_s = 1e3 };
    const int of_fast = explain_with_store(&fast, text, &moves);
    cr_expect(of_fast > 0 && moves == of_fast, "%s", text);
    cr_expect(strstr(text, "\n  offload:outer ") && strstr(text, ", budget:SIZE+offload may also offload values to"),
              "%s", text);
    const int of_slow = explain_with_store(&slow, text, &moves);
    cr_expect(of_slow > 0 && moves < of_slow && !strstr(text, "\n  offload:"), "%s", text);
}

/* Host memory of a CPU is also the arena's. If no store is known, no rate is invented, and the text says what is
   missing. */
Test(explain, says_what_is_missing_where_there_is_no_store)
{
    static char text[ROOM];
    int moves;
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device of its own memory has a store anyway");
    const int n = explain_with_store(NULL, text, &moves);
    cr_expect(n > 0 && !moves && !strstr(text, "  offload:"), "%s", text);
    cr_expect(strstr(text, "\n  values can also be offloaded to a file (offload:NAME, budget:SIZE+offload), where "
                           "rw_context_set_offload() or REWIND_OFFLOAD names a folder on a disk\n"), "%s", text);
}

/* A folder is measured once, also for later plans. If a folder has been deleted, only the offer is missing. */
Test(explain, measures_a_folder_and_survives_one_that_is_gone)
{
    static char text[ROOM];
    char folder[] = "explain-XXXXXX";
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device of its own memory has a store anyway");
    for (int gone = 0; gone < 2; gone++) {
        struct fixture b = fixture_open(1, 1);
        struct net net;
        cr_assert(gone ? !mkdir(folder, 0700) : mkdtemp(folder) != NULL);
        net_init(&net, b.ctx, 4, 64, RW_F32, 1);
        cr_assert_eq(rw_context_set_offload(b.ctx, &(rw_offload){ .path = folder }), RW_OK);
        rw_tensor *const loss = net_loss(&net, b.t, 96, 0);
        if (gone) cr_assert_eq(rmdir(folder), 0);
        const rw_prediction now = explain_prediction(&b, loss, text);
        cr_expect_gt(follow(&b, loss, text, &now), 0, "%s", text);
        const char *const said = strstr(text, gone ? "nothing can be offloaded to /" : "may also offload values to /");
        cr_expect(said && strstr(said, folder), "%s", text);
        cr_expect_eq(b.ctx->store.rate.out > 0, !gone);
        cr_expect_eq(rw_error_status(b.ctx), RW_OK, "an answer is no error");
        fixture_close(&b);
        if (!gone) cr_assert_eq(rmdir(folder), 0);
    }
}
