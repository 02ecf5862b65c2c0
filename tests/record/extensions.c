/*
 * Extensions of a context and of a tape (runtime/record/extension.h): states are zeroed, found by their owner alone,
 * cut and reset in order of creation, destroyed in reverse order while the owner still exists, and reported to
 * rw_memory_stats(). A state that cannot be made leaves its owner as it was.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "record/delayed_scales.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Calls of hooks in order, as a letter for the hook and the name of the descriptor. */
static char calls[256];

static void note(char hook, const void *state)
{
    const size_t n = strlen(calls);
    cr_assert_lt(n + 4, sizeof calls);
    calls[n] = hook;
    calls[n + 1] = *(const char *)state;
    calls[n + 2] = ' ';
}

static void on_cut(rw_tape *t, void *state)
{
    note('c', state);
}

static void on_reset(rw_tape *t, void *state)
{
    cr_assert(t->n_nodes || t->step == 1, "the nodes of the step are gone");
    note('r', state);
}

/* The owner's memory, its context's and the device still exist. */
static void on_destroy(rw_context *ctx, void *state)
{
    cr_assert_eq(ctx->n_params, 1);
    cr_assert_str_eq(rw_tensor_name(&ctx->params[0]->tensor), "p");
    void *const data = ctx->device->alloc(ctx->device_state, 64);
    cr_assert_not_null(data);
    ctx->device->free(ctx->device_state, data);
    note('d', state);
}

static void on_report(const rw_context *ctx, const void *state, rw_memory *memory)
{
    memory->tape += 1000 * (size_t)*(const char *)state;
}

#define TRACED(id) { .name = #id, .size = 8, .cut = on_cut, .reset = on_reset, .destroy = on_destroy }
static struct rw_extension a = TRACED(a), b = TRACED(b), c = TRACED(c), silent = { .name = "silent" };

static char *make(struct rw_extensions *x, struct rw_extension *e)
{
    char *const state = rw_extension_make(x, e);
    cr_assert_not_null(state);
    for (size_t i = 0; i < e->size; i++) cr_assert_eq(state[i], 0, "byte %zu", i);
    if (e->size) *state = *e->name;
    return state;
}

static struct fixture open_with_node(void)
{
    const struct fixture f = fixture_open(1, 1);
    rw_tensor *const p = rw_param(f.ctx, "p", RW_F32, RW_SHAPE(2));
    cr_assert_not_null(rw_mul(f.t, p, p));
    return f;
}

Test(extensions, found_by_their_owner)
{
    struct fixture f = open_with_node(), other = fixture_open(1, 1);
    cr_assert_null(rw_extension_find(&f.ctx->extensions, &a));
    char *const of_context = make(&f.ctx->extensions, &a);
    cr_assert_null(rw_extension_find(&f.t->extensions, &a));
    char *const of_tape = make(&f.t->extensions, &a);
    cr_assert_neq(of_context, of_tape);
    cr_assert_eq(rw_extension_find(&f.ctx->extensions, &a), of_context);
    cr_assert_eq(rw_extension_make(&f.ctx->extensions, &a), of_context, "another state was created");
    cr_assert_eq(rw_extension_find(&f.t->extensions, &a), of_tape);
    cr_assert_null(rw_extension_find(&other.ctx->extensions, &a));
    cr_assert_null(rw_extension_find(&f.ctx->extensions, &b));
    fixture_close(&other);
    fixture_close(&f);
}

static struct rw_extension of_tapes = TRACED(t);

static bool open_with_state(rw_tape *t, void *state)
{
    char *const own = rw_extension_make(&t->extensions, &of_tapes);
    if (own) *own = 't';
    if (own) note('o', own);
    return own;
}

static bool is_refused;

static bool open_unless_refused(rw_tape *t, void *state)
{
    return !is_refused;
}

/* Each tape from then on has a state of its own, or is not created. */
Test(extensions, opened_with_each_tape)
{
    static struct rw_extension opens = { .name = "o", .size = 8, .open = open_with_state };
    static struct rw_extension refuses = { .name = "r", .open = open_unless_refused };
    struct fixture f = open_with_node();
    rw_tape *t = NULL;
    make(&f.ctx->extensions, &opens);
    make(&f.ctx->extensions, &refuses);
    is_refused = true;
    cr_assert_eq(rw_tape_create(&t, f.ctx), RW_ERR_MEMORY);
    cr_assert_null(t);
    cr_assert_str_eq(calls, "ot dt ");
    rw_error_clear(f.ctx);
    is_refused = false;
    cr_assert_eq(rw_tape_create(&t, f.ctx), RW_OK);
    cr_assert_str_eq(calls, "ot dt ot ");
    cr_assert_null(rw_extension_find(&f.t->extensions, &of_tapes), "of an older tape");
    cr_assert_not_null(rw_extension_find(&t->extensions, &of_tapes));
    cr_assert_not_null(rw_neg(t, rw_param_get(f.ctx, 0)));
    rw_tape_destroy(&t);
    fixture_close(&f);
}

/* Of the context first, then of the tape, each in order of creation. */
Test(extensions, reset_once_per_reset)
{
    struct fixture f = open_with_node();
    make(&f.ctx->extensions, &c);
    make(&f.t->extensions, &b);
    make(&f.t->extensions, &silent);
    make(&f.t->extensions, &a);
    rw_tape_reset(f.t);
    cr_assert_str_eq(calls, "rc rb ra ");
    rw_tensor *const p = rw_param_get(f.ctx, 0);
    cr_assert_not_null(rw_mul(f.t, p, p));
    rw_tape_reset(f.t);
    cr_assert_str_eq(calls, "rc rb ra rc rb ra ");
    cr_assert_not_null(rw_mul(f.t, p, p));
    fixture_close(&f);
}

Test(extensions, destroyed_in_reverse_order_of_creation)
{
    struct fixture f = open_with_node();
    make(&f.ctx->extensions, &b);
    make(&f.ctx->extensions, &silent);
    make(&f.ctx->extensions, &a);
    make(&f.t->extensions, &c);
    make(&f.t->extensions, &a);
    make(&f.t->extensions, &b);
    rw_context_destroy(&f.ctx); /* the tape keeps it */
    cr_assert_str_eq(calls, "");
    rw_tape_destroy(&f.t);
    cr_assert_str_eq(calls, "rb ra rc ra rb db da dc da db ");
}

static rw_tensor *refuses(rw_tape *t, rw_tensor *x)
{
    const struct rw_composite whole = rw_composite_begin(t, "refuses");
    cr_assert_not_null(rw_mul(t, x, x));
    return rw_composite_end(&whole, NULL);
}

Test(extensions, cut_with_what_is_rolled_back)
{
    struct fixture f = open_with_node();
    const size_t n = f.t->n_values;
    make(&f.t->extensions, &b);
    make(&f.t->extensions, &a);
    cr_assert_null(refuses(f.t, rw_param_get(f.ctx, 0)));
    cr_assert_str_eq(calls, "cb ca ");
    cr_assert_eq(f.t->n_values, n);
    fixture_close(&f);
}

Test(extensions, reported_to_memory_stats)
{
    static struct rw_extension two = { .name = "\2", .size = 8, .report = on_report };
    static struct rw_extension three = { .name = "\3", .size = 8, .report = on_report };
    struct fixture f = open_with_node();
    rw_memory before, after;
    cr_assert_eq(rw_memory_stats(f.ctx, &before), RW_OK);
    make(&f.ctx->extensions, &two);
    make(&f.t->extensions, &three);
    cr_assert_eq(rw_memory_stats(f.ctx, &after), RW_OK);
    cr_assert_eq(after.tape, before.tape + 5000, "%zu, %zu before", after.tape, before.tape);
    fixture_close(&f);
}

Test(extensions, without_memory)
{
    struct fixture f = open_with_node();
    make(&f.ctx->extensions, &a);
    const struct rw_extensions before = f.ctx->extensions;
    const int64_t live = rw_alloc_live();
    rw_alloc_fail_at(1);
    cr_assert_null(rw_extension_make(&f.ctx->extensions, &b));
    cr_assert_eq(rw_alloc_live(), live);
    cr_assert_eq(memcmp(&before, &f.ctx->extensions, sizeof before), 0);
    make(&f.ctx->extensions, &b);
    fixture_close(&f);
    cr_assert_str_eq(calls, "ra rb db da ");
}

/* A process has a limited number of descriptors: more are refused like a lack of memory, and no other changes. */
Test(extensions, more_than_there_are_slots)
{
    static struct rw_extension many[RW_EXTENSIONS_MAX];
    struct rw_extensions x = { .n = 0 };
    unsigned n = 0;
    while (n < RW_EXTENSIONS_MAX && rw_extension_make(&x, &many[n])) n++;
    cr_assert_lt(n, RW_EXTENSIONS_MAX);
    cr_assert_eq(x.n, n);
    cr_assert_null(rw_extension_find(&x, &many[n]));
    cr_assert_null(x.state[0]);
    for (unsigned i = 0; i < n; i++) cr_assert_not_null(rw_extension_find(&x, &many[i]));
    rw_extensions_destroy(&x, NULL);
    cr_assert_eq(x.n, 0);
}

/* ---- threads ---- */

enum { THREADS = 8, SHARED = 6 };
static struct rw_extension shared[SHARED];
static pthread_barrier_t all;

/* Each thread makes the first states of all descriptors, from another one on. */
static void *make_all(void *of)
{
    struct rw_extensions *const x = of;
    pthread_barrier_wait(&all);
    for (int i = 0; i < SHARED; i++) rw_extension_make(x, &shared[((size_t)x / 64 + (size_t)i) % SHARED]);
    return NULL;
}

Test(extensions, one_slot_in_all_threads)
{
    struct rw_extensions x[THREADS] = { { .n = 0 } };
    pthread_t id[THREADS];
    pthread_barrier_init(&all, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) cr_assert_eq(pthread_create(&id[i], NULL, make_all, &x[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(id[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(x[i].n, SHARED);
        for (int e = 0; e < SHARED; e++) cr_assert_not_null(rw_extension_find(&x[i], &shared[e]));
        rw_extensions_destroy(&x[i], NULL);
    }
    struct rw_extensions late = { .n = 0 };
    const unsigned slot = shared[0].slot;
    shared[0].slot = 0; /* as a thread sees it that reads it before another one has written it */
    cr_assert_not_null(rw_extension_make(&late, &shared[0]));
    cr_assert_eq(shared[0].slot, slot);
    rw_extensions_destroy(&late, NULL);
    for (int e = 0; e < SHARED; e++)
        for (int other = 0; other < e; other++) cr_assert_neq(shared[e].slot, shared[other].slot);
}

/* ---- extensions of the library: what fails for lack of memory leaves its owner as it was ---- */

static size_t notes_of(const rw_tape *t)
{
    const struct rw_amaxes *const amaxes = t ? rw_amaxes_of(t) : NULL;
    return amaxes ? amaxes->n : 0;
}

/* Each allocation of the call fails once, until it succeeds. Returns their number. */
static uint64_t fail_each(struct fixture *f, rw_status (*call)(struct fixture *f))
{
    uint64_t n = 0;
    for (rw_status status = RW_ERR_MEMORY; status;) {
        const struct rw_tape_mark before = f->t ? rw_tape_mark(f->t) : (struct rw_tape_mark){ 0 };
        rw_alloc_fail_at(++n);
        status = call(f);
        rw_alloc_fail_at(0);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %d: %s", (int)n, rw_error_message(f->ctx));
        const struct rw_tape_mark after = f->t ? rw_tape_mark(f->t) : (struct rw_tape_mark){ 0 };
        cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "allocation %d: the tape is not as it was", (int)n);
        cr_assert_eq(notes_of(f->t), 0, "allocation %d: an amax is left", (int)n);
        rw_error_clear(f->ctx);
    }
    return n - 1;
}

static rw_status begin_timer(struct fixture *f)
{
    return rw_timer_begin(f->ctx);
}

Test(extensions, of_the_timer)
{
    struct fixture f = open_with_node();
    double ms = -1;
    cr_assert_eq(rw_timer_end(f.ctx, &ms), RW_ERR_ARGUMENT);
    rw_error_clear(f.ctx);
    const unsigned had = f.ctx->extensions.n;
    cr_assert_geq(fail_each(&f, begin_timer), 1);
    cr_assert_eq(f.ctx->extensions.n, had + 1);
    cr_assert_eq(rw_timer_end(f.ctx, &ms), RW_OK);
    cr_assert_geq(ms, 0);
    fixture_close(&f);
}

static rw_status create_context(struct fixture *f)
{
    const int64_t live = rw_alloc_live();
    const rw_status status = rw_context_create(&f->ctx, &(rw_context_params){ .device = test_device(), .threads = 1 });
    cr_assert(!status || (!f->ctx && rw_alloc_live() == live), "%d more allocations", (int)(rw_alloc_live() - live));
    return status;
}

static rw_status create_tape(struct fixture *f)
{
    const unsigned had = f->ctx->extensions.n;
    const int64_t live = rw_alloc_live();
    rw_tape *t = NULL;
    const rw_status status = rw_tape_create(&t, f->ctx);
    cr_assert_eq(f->ctx->extensions.n, had);
    cr_assert(!status || (!t && rw_alloc_live() == live && !f->ctx->tapes));
    f->t = t;
    return status;
}

/* Those that a context and a tape have from the beginning, and those that environment variables request. */
Test(extensions, of_a_new_context_and_tape)
{
    char folder[] = "/tmp/rewind-extensions-XXXXXX";
    cr_assert(mkdtemp(folder));
    setenv("REWIND_DEBUG", "order,effects", 1);
    setenv("REWIND_DUMP", folder, 1);
    struct fixture f = { NULL, NULL };
    cr_assert_geq(fail_each(&f, create_context), 8);
    cr_assert_geq(fail_each(&f, create_tape), 3);
    fixture_close(&f);
    cr_assert_eq(rmdir(folder), 0);
}

static rw_status begin_recipe(struct fixture *f)
{
    return rw_recipe_begin(f->t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
}

Test(extensions, of_a_recipe)
{
    struct fixture f = open_with_node();
    rw_tensor *const p = rw_param_get(f.ctx, 0);
    cr_assert_geq(fail_each(&f, begin_recipe), 2);
    rw_tensor *const y = rw_matmul(f.t, rw_reshape(f.t, p, RW_SHAPE(1, 2)), rw_reshape(f.t, p, RW_SHAPE(2, 1)));
    cr_assert_eq(rw_tensor_dtype(y), RW_BF16, "%s", rw_error_message(f.ctx));
    cr_assert_eq(rw_recipe_end(f.t), RW_OK);
    rw_tape_reset(f.t);
    cr_assert_eq(rw_recipe_end(f.t), RW_ERR_REGION);
    fixture_close(&f);
}

/* What a failed call has cast is recorded anew: its value may be another one by now. */
Test(extensions, of_a_recipe_in_a_failed_call)
{
    struct fixture f = fixture_open(1, 1);
    rw_tensor *const p = rw_param(f.ctx, "p", RW_F32, RW_SHAPE(2, 2)), *const q = rw_param(f.ctx, "q", RW_F32,
                                                                                          RW_SHAPE(2, 2));
    cr_assert_eq(rw_init_constant(p, 3) | rw_init_constant(q, 5), RW_OK);
    cr_assert_not_null(rw_neg(f.t, p));
    cr_assert_not_null(rw_neg(f.t, q));
    cr_assert_eq(begin_recipe(&f), RW_OK);
    const struct rw_composite whole = rw_composite_begin(f.t, "refuses");
    cr_assert_not_null(rw_matmul(f.t, p, p));
    cr_assert_null(rw_composite_end(&whole, NULL));
    cr_assert_eq(rw_tensor_dtype(rw_cast(f.t, q, RW_BF16)), RW_BF16);
    rw_tensor *const sum = rw_sum(f.t, rw_matmul(f.t, p, p), RW_ALL_AXES, false);
    cr_assert_eq(rw_recipe_end(f.t), RW_OK);
    cr_assert_eq(rw_item(f.t, sum), 4 * 18, "%s", rw_error_message(f.ctx));
    fixture_close(&f);
}

static rw_delayed_scaling *delayed;
static rw_tensor *product;

/* FP8 data of a weight: recipes and casts, amaxes, kept weights. */
static rw_status record_product(struct fixture *f)
{
    rw_tensor *const w = rw_param_get(f->ctx, 0);
    product = rw_linear(f->t, w, w, RW_NONE);
    return product ? RW_OK : f->ctx->status;
}

Test(extensions, of_a_product_in_fp8)
{
    struct fixture f = fixture_open(1, 1);
    rw_tensor *const w = rw_param(f.ctx, "w", RW_BF16, RW_SHAPE(16, 16));
    cr_assert_eq(rw_init_constant(w, 0.5f), RW_OK);
    cr_assert_eq(rw_delayed_scaling_create(&delayed, f.ctx, NULL), RW_OK, "%s", rw_error_message(f.ctx));
    const rw_recipe recipe = { .kind = RW_RECIPE_F8, .delayed = delayed, .keep_weights = true };
    cr_assert_eq(rw_recipe_begin(f.t, &recipe), RW_OK, "%s", rw_error_message(f.ctx));
    cr_assert_geq(fail_each(&f, record_product), 3);
    cr_assert_eq(rw_recipe_end(f.t), RW_OK);
    rw_tensor *const loss = rw_sum(f.t, product, RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(f.t, loss), RW_OK, "%s", rw_error_message(f.ctx));
    cr_assert_eq(rw_item(f.t, loss), 16 * 16 * 16 * 0.25);
    rw_tape_reset(f.t);
    rw_delayed_scaling_destroy(&delayed);
    fixture_close(&f);
}
