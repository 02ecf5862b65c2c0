/*
 * The public edge: every public function (public_calls.h is generated from the headers) is called
 *
 *     in each mode   of the caller's processor: the mode is the same afterwards, to the bit, raised exceptions too
 *     by a kernel    of the same context: it is refused, unless rewind/op.h lists it, and the step fails
 *     by a rule      likewise, unless it records
 *     by a check, cost, draws or workspace function   likewise
 *     with one wrong argument after the other: a result other than RW_OK leaves a message
 *
 * and afterwards a step of the context must have its expected bytes. Each runs in a process of its own. A program
 * without Criterion: one function called in one of these ways is a test.
 */
#include "support/mode_register.h"
#include "support/support.h"

#include <rewind/rewind.h>

#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct answer {
    rw_status status;
    const void *pointer;
};

struct call;
struct world {
    rw_site site;
    rw_context *ctx, *alien_ctx;
    rw_tape *t, *alien_t;
    rw_tensor *x, *value, *gone, *alien; /* a parameter [4, 4]; a result; of a destroyed tape; of another context */
    rw_tensor *in[4], *nulls[4], *out[16];
    rw_optimizer *optimizer;
    rw_weight_average *weight_average;
    rw_scaler *scaler;
    rw_delayed_scaling *delayed_scaling;
    rw_graph *graph;
    rw_monitor *monitor;
    rw_checkpoint *checkpoint;
    rw_quantized quantized;
    struct {
        rw_context *ctx;
        rw_tape *tape;
        rw_optimizer *optimizer;
        rw_weight_average *weight_average;
        rw_scaler *scaler;
        rw_delayed_scaling *delayed_scaling;
        rw_graph *graph;
        rw_monitor *monitor;
        rw_checkpoint *checkpoint;
    } made; /* objects that calls have created */
    FILE *file;
    char path[96], folder[64];
    int axes[8];
    int64_t sizes[8];
    size_t count;
    char bytes[1 << 16], zeros[1 << 12]; /* destinations of calls; parameter structs with all defaults */
    struct answer answer;
    int at, which; /* the wrong argument, and in which way it is wrong; at = -1: none */
};

/* ---- objects, created when a call first needs one ---- */

#define MADE(thing, type, create)                     \
    static type *the_##thing(struct world *w)         \
    {                                                 \
        if (!w->thing && w->ctx) (void)(create);      \
        return w->thing;                              \
    }
MADE(optimizer, rw_optimizer, rw_sgd_create(&w->optimizer, w->ctx, NULL))
MADE(weight_average, rw_weight_average, rw_weight_average_create(&w->weight_average, w->ctx, 0.5))
MADE(scaler, rw_scaler, rw_scaler_create(&w->scaler, w->ctx, NULL))
MADE(delayed_scaling, rw_delayed_scaling, rw_delayed_scaling_create(&w->delayed_scaling, w->ctx, NULL))
MADE(monitor, rw_monitor, rw_monitor_create(&w->monitor, w->ctx, w->path))
MADE(checkpoint, rw_checkpoint, rw_checkpoint_create(&w->checkpoint, w->ctx,
                                                     &(rw_checkpoint_params){ .folder = w->folder }))
MADE(graph, rw_graph,
     w->t ? rw_graph_create(&w->graph, w->t, rw_sum(w->t, rw_mul(w->t, w->x, w->x), RW_ALL_AXES, false), NULL) : 0)

static rw_status no_gradient(rw_grad_call *g, const void *data)
{
    return RW_OK;
}

static void no_job(void *of, int thread, int threads)
{
}

static const rw_op_def same_op = { .name = "same", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                   .kernel = { [RW_DEVICE_CPU] = identity_kernel } };

#define PICK(place, type, sound, ...) (w->at == (place) ? ((type[]){ __VA_ARGS__ })[w->which] : (sound))

enum returns { STATUS, TENSOR, OTHER };
struct call {
    const char *name, *signature; /* the types of its arguments */
    void (*call)(struct world *w);
    enum returns returns;
    bool legal; /* allowed inside functions that the library calls */
    int n;      /* number of arguments, and number of wrong values of each */
    int wrong[16];
    const char *nulls[16]; /* the argument's name, if its first wrong value is NULL */
};

#include "public_calls.h"

enum { N_CALLS = sizeof calls / sizeof *calls };

/* ---- the world ---- */

/* Creates the objects and values that calls take. */
static void open_world(struct world *w)
{
    const struct fixture here = fixture_open(1, 1), far = fixture_open(2, 1);
    *w = (struct world){ .site = RW_HERE, .ctx = here.ctx, .t = here.t, .alien_ctx = far.ctx, .alien_t = far.t,
                         .at = -1 };
    w->x = rw_param(w->ctx, "x", RW_F32, RW_SHAPE(4, 4));
    rw_init_normal(w->x, 0, 1);
    rw_quantized_create(w->ctx, "words", RW_INT8, RW_SHAPE(4, 4), &w->quantized);
    rw_tape *tape = NULL;
    rw_tape_create(&tape, w->ctx);
    w->gone = rw_zeros(tape, RW_F32, RW_SHAPE(4, 4));
    rw_tape_destroy(&tape);
    w->alien = rw_zeros(w->alien_t, RW_F32, RW_SHAPE(4, 4));
    w->value = rw_tanh(w->t, w->x);
    for (int i = 0; i < 4; i++) w->in[i] = w->x;
    for (int i = 0; i < 8; i++) w->sizes[i] = 1;
    w->axes[0] = 1;
    w->file = fopen("/dev/null", "w");
    snprintf(w->folder, sizeof w->folder, "%s/rewind-edge-XXXXXX", P_tmpdir);
    if (!mkdtemp(w->folder) || !w->file) abort();
    snprintf(w->path, sizeof w->path, "%s/file", w->folder);
}

static void close_world(struct world *w)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", w->folder);
    if (system(command)) puts("# a folder could not be removed");
}

/* ---- the caller's mode ---- */

enum { MODES = 20 };
struct mode {
    fenv_t env; /* saved as a caller's own function would do */
    unsigned mode_register;
};

static void get_mode(struct mode *m)
{
    memset(m, 0, sizeof *m);
    fegetenv(&m->env);
    m->mode_register = mode_register();
}

static void set_mode(int mode)
{
    static const int rounding[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    mode_reset();
    if (mode % 2) feraiseexcept(FE_UNDERFLOW | FE_INEXACT);
    fesetround(rounding[mode % 4]);
    static const unsigned bits[] = MODE_REGISTER_BITS;
    if (mode / 4 < 4) mode_register_add(bits[mode / 4]);
    if (mode / 4 == 4) feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
}

static bool is_mode(const struct mode *before)
{
    struct mode now;
    get_mode(&now);
#if defined(__x86_64__)
    /* the rest of the x87 environment is the address of its last operation */
    return now.mode_register == before->mode_register && now.env.__control_word == before->env.__control_word &&
           (now.env.__status_word & 0x3f) == (before->env.__status_word & 0x3f);
#else
    return !memcmp(&now, before, sizeof now);
#endif
}

/* ---- a caller's op ---- */

enum way { IN_MODES, BY_KERNEL, BY_RULE, BY_CHECK, BY_COST, BY_DRAWS, BY_WORKSPACE, WRONG, WAYS };
static const char *const ways[WAYS] = { "in each mode", "by a kernel", "by a rule", "by a check", "by a cost function",
                                        "by a draws function", "by a workspace function", "with wrong arguments" };

static struct world *world;
static const struct call *caught; /* the call that the op's next function makes */
static enum way from;
static bool has_called, was_silent;

static void make_call(enum way here)
{
    if (!caught || from != here || has_called) return;
    has_called = true;
    const struct call *const c = caught;
    world->answer = (struct answer){ RW_OK, NULL };
    c->call(world);
    const char *const message = rw_error_message(world->ctx);
    const bool refused = strstr(message, " got one by ") && strstr(message, c->name);
    was_silent = !refused;
    if (refused && c->returns == STATUS && world->answer.status != RW_ERR_ARGUMENT) was_silent = true;
    if (refused && c->returns == TENSOR && world->answer.pointer) was_silent = true;
}

static rw_status calling_check(rw_op_call *call)
{
    make_call(BY_CHECK);
    return rw_op_output_like(call, 0, 0);
}

static rw_status calling_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, 16 * sizeof(float));
    make_call(BY_KERNEL);
    return RW_OK;
}

static rw_status calling_rule(rw_grad_call *g)
{
    make_call(BY_RULE);
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static rw_op_cost calling_cost(const rw_op_call *call)
{
    make_call(BY_COST);
    return (rw_op_cost){ .flops = 1, .bytes = 1 };
}

static int64_t calling_draws(const rw_op_call *call)
{
    make_call(BY_DRAWS);
    return 4;
}

static size_t calling_workspace(const rw_op_call *call)
{
    make_call(BY_WORKSPACE);
    return 0;
}

HOST_KERNEL_OF(calling_kernel)
static const rw_op_def calling = { .name = "calling", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM,
                                   .check = calling_check, .kernel = HOST_KERNEL(calling_kernel),
                                   .grad = calling_rule, .cost = calling_cost, .draws = calling_draws,
                                   .workspace = { [RW_DEVICE_CPU] = calling_workspace,
                                                  [RW_DEVICE_CUDA] = calling_workspace } };

/* d loss / d x = 2 x + 1. */
static rw_status step(struct world *w)
{
    rw_tensor *const y = rw_apply(w->t, &calling, &w->x, 1, NULL, 0, NULL);
    rw_tensor *const z = rw_add(w->t, y, rw_mul(w->t, w->x, w->x));
    return rw_backward(w->t, rw_sum(w->t, z, RW_ALL_AXES, false));
}

/* ---- verdicts ---- */

struct verdict {
    bool ended;
    char text[512];
};
static struct verdict *verdict; /* shared with the process of a test, which may end at any point */

static void fault(const char *what, const char *more)
{
    if (!*verdict->text) snprintf(verdict->text, sizeof verdict->text, "%s%s", what, more);
}

/* The context continues as if nothing had happened: gradients are bit-identical. */
static void goes_on(struct world *w)
{
    float x[16], g[16];
    caught = NULL;
    if (!w->ctx || !w->t) return;
    rw_error_clear(w->ctx);
    rw_tape_reset(w->t);
    rw_error_clear(w->ctx);
    ckpt_set_policy(w->t, "none");
    rw_zero_grad(w->ctx);
    if (step(w) || rw_read(NULL, w->x, x, sizeof x) || rw_read(NULL, rw_gradient(w->x), g, sizeof g)) {
        fault("the next step fails: ", rw_error_message(w->ctx));
        return;
    }
    for (int i = 0; i < 16; i++)
        if (g[i] != x[i] + x[i] + 1) fault("the next step has other gradients", "");
}

/* A function that measures the machine takes seconds, and minutes under AddressSanitizer, where it is skipped. */
static bool is_slow(const struct call *c)
{
    return !strcmp(c->name, "rw_costs_calibrate");
}

/* Calls the function under every mode, and checks that the mode is unchanged. */
static void in_modes(struct world *w, const struct call *c)
{
    const bool destroys = strstr(c->name, "destroy");
#ifdef __SANITIZE_ADDRESS__
    if (is_slow(c)) return;
#endif
    const int every = is_slow(c) ? 13 : 1;
    for (int mode = 0; mode < MODES; mode += every) {
        struct mode before;
        if (mode && destroys) open_world(w);
        if (!is_slow(c)) c->call(w); /* creates the objects that it takes */
        if (destroys) {
            close_world(w);
            open_world(w);
        }
        set_mode(mode);
        get_mode(&before);
        set_mode(mode); /* fegetenv() may have masked the exceptions that it saved */
        c->call(w);
        const bool same = is_mode(&before);
        mode_reset();
        char number[16];
        snprintf(number, sizeof number, "%d", mode);
        if (!same) fault("it leaves another mode than ", number);
        if (destroys) close_world(w);
    }
    if (destroys) open_world(w);
}

/* A rule records: a call that is refused there is refused for another reason, or not at all. */
static bool may_call(const struct call *c, enum way way)
{
    static const char *const recording[] = { "ckpt_begin", "ckpt_end", "ckpt_policy_begin", "ckpt_policy_end",
                                             "ckpt_name", "ckpt_keep", "ckpt_recompute", "ckpt_offload",
                                             "rw_recipe_begin", "rw_recipe_end", "rw_no_grad_begin", "rw_no_grad_end",
                                             "rw_grad", "rw_refuse", "rw_grad_set", "rw_grad_set_sum",
                                             "rw_moe_route", "rw_moe_count", "rw_topk", "rw_split", "rw_unbind",
                                             "rw_assign", "rw_recording_refused", "rw_operand_check",
                                             "rw_composite_begin", "rw_recipe_gradient_slot", "rw_op_define" };
    static const char *const creating[] = { "rw_param", "rw_param_with", "rw_buffer", "rw_gradient" };
    if (c->legal) return true;
    if (way != BY_RULE) return false;
    for (size_t i = 0; i < sizeof recording / sizeof *recording; i++)
        if (!strcmp(recording[i], c->name)) return true;
    for (size_t i = 0; i < sizeof creating / sizeof *creating; i++)
        if (!strcmp(creating[i], c->name)) return false;
    return c->returns == TENSOR;
}

/* Refused for its arguments before anything else, or returns its argument, because no rule is running. */
static bool takes_a_rule(const struct call *c)
{
    static const char *const names[] = { "rw_grad_set", "rw_grad_set_sum", "rw_grad_accumulator", "rw_grad_wide_addend",
                                         "rw_op_output", "rw_op_output_like", "rw_op_output_view", "rw_op_error",
                                         "rw_grad_set_column_sums", "rw_grad_set_column_sums_of_pieces",
                                         "rw_grad_column_sums", "rw_grad_set_whole", "rw_composite_end" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], c->name)) return true;
    return false;
}

/* Calls the function from a kernel, rule or other function of an op, and checks the refusal. */
static void from_inside(struct world *w, const struct call *c, enum way way)
{
    if (strstr(c->name, "_destroy")) { /* of existing objects */
        the_optimizer(w), the_weight_average(w), the_scaler(w), the_delayed_scaling(w), the_monitor(w);
        the_checkpoint(w);
        if (!strcmp(c->name, "rw_graph_destroy")) the_graph(w);
    } else if (!is_slow(c)) {
        c->call(w); /* the objects that it takes have been created */
    }
    rw_error_clear(w->ctx);
    rw_tape_reset(w->t);
    w->value = rw_tanh(w->t, w->x);
    world = w;
    caught = c;
    from = way;
    has_called = was_silent = false;
    rw_context *const ctx = w->ctx;
    const rw_status status = step(w);
    if (!has_called) fault("the function was not called", "");
    if (takes_a_rule(c)) return;
    if (may_call(c, way)) {
        if (c->legal && way == BY_KERNEL && status) fault("a legal call fails: ", rw_error_message(ctx));
        if (c->legal && !was_silent) fault("a legal call is refused: ", rw_error_message(ctx));
    } else {
        if (was_silent) fault("it is not refused: ", rw_error_message(ctx));
        if (status != RW_ERR_ARGUMENT) fault("the step goes on: ", rw_status_name(status));
    }
    if (!w->ctx || !w->t) fault("it has destroyed what runs", "");
}

static bool is_told(const struct world *w)
{
    return *rw_error_message(w->ctx) || *rw_error_message(w->alien_ctx) || *rw_error_message(NULL);
}

/* Whether any message about a NULL argument was printed. */
static bool shows_null(const struct world *w)
{
    return strstr(rw_error_message(w->ctx), "(null)") || strstr(rw_error_message(NULL), "(null)");
}

/* A message about a NULL argument has the name that the header gives it, and says what is expected there. */
static bool names_null(const struct world *w, const char *name)
{
    const char *const text = *rw_error_message(w->ctx) ? rw_error_message(w->ctx) : rw_error_message(NULL);
    const char *const at = strstr(text, " is NULL; expected ");
    const size_t n = strlen(name);
    if (!at) return true;
    return (size_t)(at - text) > n && !strncmp(at - n, name, n) && at[-(ptrdiff_t)n - 1] == ' ' &&
           !strstr(at, "a valid pointer");
}

/* Argument i has wrong value k, for a caller whose file is known or not. */
static void with_wrong(const struct call *c, int i, int k, bool has_file)
{
    static struct world w;
    char place[64];
    open_world(&w);
    if (!has_file) w.site = (rw_site){ NULL, 7 };
    snprintf(place, sizeof place, "argument %d, way %d%s", i + 1, k + 1, has_file ? "" : ", without a file");
    snprintf(verdict->text, sizeof verdict->text, "the process ends: %s", place);
    if (!strstr(c->name, "destroy") && !is_slow(c)) c->call(&w);
    /* No member of a zeroed struct is missing. */
    const bool is_sound = !strstr(rw_error_message(w.ctx), " is NULL") && !strstr(rw_error_message(NULL), " is NULL");
    rw_error_clear(w.ctx);
    rw_error_clear(NULL);
    w.at = i;
    w.which = k;
    w.answer = (struct answer){ RW_OK, NULL };
    c->call(&w);
    *verdict->text = '\0';
    if (c->returns == STATUS && w.answer.status && !is_told(&w)) fault("a status without a message: ", place);
    if (shows_null(&w)) fault("a message prints NULL: ", place);
    if (!k && c->nulls[i] && is_sound && !names_null(&w, c->nulls[i]))
        fault("a message does not name the NULL argument, or what is expected: ",
              *rw_error_message(w.ctx) ? rw_error_message(w.ctx) : rw_error_message(NULL));
    close_world(&w);
}

static void with_wrong_arguments(const struct call *c)
{
    const bool takes_site = strstr(c->signature, "rw_site");
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < c->wrong[i]; k++)
            for (int has_file = 1; has_file >= !takes_site && !*verdict->text; has_file--)
                with_wrong(c, i, k, has_file);
}

static void run(const struct call *c, enum way way)
{
    static struct world w;
    open_world(&w);
    if (way == IN_MODES) in_modes(&w, c);
    else if (way == WRONG) with_wrong_arguments(c);
    else from_inside(&w, c, way);
    if (way != WRONG && !(way == IN_MODES && strstr(c->name, "destroy"))) goes_on(&w);
    close_world(&w);
    verdict->ended = true;
}

/* Runs one test in a child process, and prints its result. */
static bool holds(const struct call *c, enum way way, int number)
{
    int status = 0;
    memset(verdict, 0, sizeof *verdict);
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        alarm(300);
        run(c, way);
        _exit(0);
    }
    waitpid(child, &status, 0);
    const bool ok = verdict->ended && !*verdict->text;
    printf("%s %d - %s %s\n", ok ? "ok" : "not ok", number, c->name, ways[way]);
    if (!verdict->ended) printf("#   the process ended: %s\n", WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "");
    if (*verdict->text) printf("#   %s\n", verdict->text);
    return ok;
}

/* Runs all tests; or the functions whose names contain one argument, in the ways whose names contain the other. */
int main(int argc, char **argv)
{
    const char *const name = argc > 1 && argv[1][0] != '-' ? argv[1] : "", *const way_named = argc > 2 ? argv[2] : "";
    int failed = 0, n = 0;
    unsetenv("REWIND_POLICY");
    verdict = mmap(NULL, sizeof *verdict, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (verdict == MAP_FAILED) return 1;
    for (int way = 0; way < WAYS; way++)
        for (int i = 0; i < N_CALLS; i++)
            if (strstr(calls[i].name, name) && strstr(ways[way], way_named)) failed += !holds(&calls[i], way, ++n);
    printf("1..%d\n", n);
    return failed != 0;
}
