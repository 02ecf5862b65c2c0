/*
 * Checks that every op and every function that records ops has a row in the table of ops, and writes the table:
 * PyTorch's name, types, the values that backward reads and the operands that the op may overwrite. Everything except
 * PyTorch's names comes from the definitions and from what the cases and docs_ops_table_calls.c record. Then the
 * functions that are composed of ops, with the ops that they record, and all functions by PyTorch's names. docs/ops.md
 * explains the columns.
 *
 * REWIND_OPS_TABLE=FILE build/tests/docs_ops_table writes the table; the build has a target for that, ops_table.
 */
#include "autodiff/planning_problem.h"
#include "ops/common/pass_ops.h"
#include "ops/docs_ops_table_calls.h"
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 65536

#define OPS_MAX 256

static const struct {
    const char *op, *torch;
} torch[] = {
#define BUILTIN_OP(name, inputs, torch) { name, torch },
#include "ops/builtin_ops.h"
};

/* The results of an op besides its first, in output order; a row that mentions one reads it. */
static const struct {
    const char *op, *outputs[3];
} made[] = {
    { "attention", { "result", "lse" } },
    { "batchnorm", { "result", "mean", "rstd" } },
    { "cross_entropy", { "result", "max_and_log_sum" } },
    { "cross_entropy_rows", { "result", "max_and_log_sum" } },
    { "group_norm", { "result", "mean", "rstd" } },
    { "instance_norm", { "result", "mean", "rstd" } },
    { "linear_gelu", { "result", "what gelu is taken of" } },
    { "max_pool2d", { "result", "places" } },
    { "ssd_scan", { "result", "state" } },
    { "topk", { "result", "places" } },
};

#define INPUTS_MAX 8

/* The information about the op rw_builtin_name(i), recorded by a case, or else by a call. */
static struct {
    uint32_t types[INPUTS_MAX]; /* of its operands, or [0] of its result: bits by rw_dtype */
    const struct op_case *c;     /* the one with most operands, and among those the one with the fewest other ops */
    const struct table_call *call;
    int named;                   /* operands of the op */
    uint32_t nodes;              /* number of recorded nodes */
    rw_dtype dtype;              /* type in which it was recorded */
} known[OPS_MAX];

struct text {
    char at[TEXT_MAX];
    size_t n;
};

static void print(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text->n += (size_t)vsnprintf(text->at + text->n, sizeof text->at - text->n, format, args);
    va_end(args);
    cr_assert_lt(text->n, sizeof text->at);
}

static const char *torch_name(const char *op)
{
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++)
        if (!strcmp(torch[i].op, op)) return torch[i].torch;
    cr_assert_fail("%s is not in the list of ops", op);
    return "";
}

/* ---- what the cases record ---- */

static bool is_plain(const struct op_case *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->in[i].layout != OP_DENSE || !rw_shape_numel(c->in[i].shape)) return false;
    return !c->large;
}

static uint32_t node_of(const rw_tape *t, const char *op)
{
    uint32_t n = 0;
    while (n < t->n_nodes && strcmp(t->ctx->ops[t->nodes[n].op]->name, op)) n++;
    return n;
}

/* The index of an op in the list of all; the list's length if it is not listed: ops of gradients only. */
static size_t place_of(const char *op)
{
    size_t i = 0;
    while (rw_builtin_name(i) && strcmp(rw_builtin_name(i), op)) i++;
    return i;
}

static rw_dtype type_of(const rw_tape *t, uint32_t value)
{
    return (rw_dtype)rw_tape_value(t, value)->dtype;
}

static void learn_types(const rw_tape *t)
{
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const size_t i = place_of(t->ctx->ops[node->op]->name);
        cr_assert_lt(i, OPS_MAX);
        if (!node->n_inputs) known[i].types[0] |= 1u << type_of(t, node->first_output);
        for (uint32_t k = 0; k < node->n_inputs && k < INPUTS_MAX; k++)
            known[i].types[k] |= 1u << type_of(t, t->operands[node->first_input + k]);
    }
}

/* Whether the name is one of a variable number of operands, or the op's only one. */
static bool is_listed(const char *name)
{
    return strchr(name, '[') || !strncmp(name, "input ", 6);
}

/* Number of a node's operands that have names: operands of variable number have none. */
static int named_of(const rw_tape *t, const struct rw_node *node)
{
    char name[32];
    int n = 0;
    const rw_op_def *const op = t->ctx->ops[node->op];
    while (n < node->n_inputs && !is_listed(rw_op_input_name(op, n, name, sizeof name))) n++;
    return n;
}

/* Stores information about the tape's ops, unless better information exists. */
static void learn(const rw_tape *t, const struct op_case *c, const struct table_call *call, rw_dtype dtype)
{
    for (size_t i = 0; rw_builtin_name(i); i++) {
        const uint32_t node = node_of(t, rw_builtin_name(i));
        if (node == t->n_nodes) continue;
        const int named = named_of(t, &t->nodes[node]);
        if ((known[i].c || known[i].call) &&
            (!c || named < known[i].named || (named == known[i].named && known[i].nodes <= t->n_nodes)))
            continue;
        known[i].named = named;
        known[i].c = c;
        known[i].call = call;
        known[i].nodes = t->n_nodes;
        known[i].dtype = dtype;
    }
}

/* Records the case on inputs of a type that may have no gradients. */
static void record_bare(rw_tape *t, const struct op_case *c, rw_dtype dtype)
{
    rw_tensor *x[OP_INPUTS] = { NULL };
    for (int i = 0; i < c->n; i++)
        x[i] = op_operand_of(t, &c->in[i], rw_input(t, dtype, op_base_shape(&c->in[i]), NULL, 0));
    c->build(t, x, c);
}

static const rw_dtype dtypes[] = { RW_F32, RW_F64, RW_BF16, RW_F16, RW_I32, RW_BOOL };
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static void learn_cases(struct fixture *b, rw_dtype dtype)
{
    static const struct op_data none;
    size_t n;
    const struct op_case *const all = op_cases(&n);
    for (size_t i = 0; i < n; i++) {
        struct recording r;
        if (!is_plain(&all[i]) || (!all[i].n && all[i].dtype != dtype)) continue;
        rw_tape_reset(b->t);
        if (!rw_dtype_is_float(dtype)) record_bare(b->t, &all[i], dtype);
        else if (op_record(&r, b->t, &all[i], dtype, &none, OP_PLAIN)) learn(b->t, &all[i], NULL, dtype);
        learn_types(b->t);
        rw_error_clear(b->ctx);
    }
}

static void learn_calls(struct fixture *b, rw_dtype dtype)
{
    for (const struct table_call *c = table_calls; c->function; c++) {
        rw_tape_reset(b->t);
        if (c->record(b->t, dtype)) learn(b->t, NULL, c, dtype);
        learn_types(b->t);
        rw_error_clear(b->ctx);
    }
}

static void learn_all(struct fixture *b)
{
    for (size_t d = 0; d < DTYPES; d++) learn_cases(b, dtypes[d]);
    for (size_t d = 0; d < DTYPES; d++) learn_calls(b, dtypes[d]);
    rw_tape_reset(b->t);
}

/* ---- what backward reads ---- */

/* Whether the node's own rule reads the value: a read by another node's rule does not count. */
static bool is_read(const rw_tape *t, uint32_t node, uint32_t base)
{
    for (uint32_t n = 0; n < t->n_nodes; n++)
        for (uint32_t i = 0; t->nodes[n].adjoint && t->nodes[n].of == node && i < t->nodes[n].n_inputs; i++)
            if (rw_tape_base(t, t->operands[t->nodes[n].first_input + i]) == base) return true;
    return false;
}

static const char *output_name(const char *op, uint32_t i)
{
    for (size_t k = 0; k < sizeof made / sizeof *made; k++)
        if (!strcmp(made[k].op, op)) return made[k].outputs[i];
    cr_assert_fail("no name for result %u of %s", i, op);
    return "";
}

static void print_operand(struct text *text, const rw_op_def *op, bool input, uint32_t i)
{
    char name[32];
    if (input) print(text, "%s", rw_op_input_name(op, (int)i, name, sizeof name));
    else print(text, "%s", op->n_outputs == 1 ? "result" : output_name(op->name, i));
    cr_assert(!input || strncmp(name, "input ", 6), "RW_BUILTIN_OP has no name for %s of %s", name, op->name);
}

static void print_reads(struct text *text, const rw_tape *t, uint32_t which)
{
    const struct rw_node *const node = &t->nodes[which];
    const rw_op_def *const op = t->ctx->ops[node->op];
    const size_t before = text->n;
    for (uint32_t i = 0; i < (uint32_t)node->n_inputs + node->n_outputs; i++) {
        const bool input = i < node->n_inputs;
        const uint32_t k = input ? i : i - node->n_inputs;
        const uint32_t base = input ? rw_tape_base(t, t->operands[node->first_input + k]) : node->first_output + k;
        if (!is_read(t, which, base)) continue;
        if (text->n > before) print(text, ", ");
        print_operand(text, op, input, k);
    }
    if (text->n == before) print(text, "nothing");
}

/* Records the known case of the op, and a loss of it; NULL if it has no gradient. */
static rw_tensor *record_known(struct fixture *b, size_t which)
{
    static const struct op_data none;
    const struct op_case *const c = known[which].c;
    struct recording r;
    rw_tape_reset(b->t);
    if (!c) {
        rw_tensor *const y = known[which].call->record(b->t, known[which].dtype);
        cr_assert(y, "%s", rw_error_message(b->ctx));
        return rw_tensor_requires_grad(y) ? rw_sum(b->t, rw_mul(b->t, y, y), RW_ALL_AXES, false) : NULL;
    }
    cr_assert(op_record(&r, b->t, c, known[which].dtype, &none, OP_PLAIN));
    if (!rw_dtype_is_float(rw_tensor_dtype(r.y)) || !c->n) return NULL;
    return op_record_loss(&r, b->t, c, &none, OP_PLAIN);
}

/* Prints which operands and results backward reads. */
static void print_kept(struct text *text, struct fixture *b, size_t which)
{
    struct rw_problem problem;
    const rw_tensor *const y = record_known(b, which);
    const uint32_t node = node_of(b->t, rw_builtin_name(which));
    if (!b->t->ctx->ops[b->t->nodes[node].op]->grad || !y) {
        print(text, "no gradient");
        return;
    }
    const uint32_t loss = y->id;
    const struct rw_request request = {
        .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &b->t->policy
    };
    cr_assert_eq(rw_problem_open(&problem, b->t, &request), RW_OK, "%s: %s", rw_builtin_name(which),
                 rw_error_message(b->ctx));
    print_reads(text, b->t, node);
    rw_problem_close(&problem);
}

static void print_inplace(struct text *text, const rw_op_def *op, uint32_t n_inputs)
{
    const size_t before = text->n;
    for (const rw_inplace *p = op->inplace; p && p->output != UINT16_MAX; p++) {
        bool again = p->input >= n_inputs;
        for (const rw_inplace *q = op->inplace; q < p; q++) again |= q->input == p->input;
        if (again) continue;
        if (text->n > before) print(text, ", ");
        print_operand(text, op, true, p->input);
    }
    if (text->n == before) print(text, "-");
}

/* Inputs whose views the op reads in place; others are copied if they are not dense. A view moves no element. */
static void print_strided(struct text *text, const rw_op_def *op, uint32_t n_inputs)
{
    const size_t before = text->n;
    uint32_t n = 0;
    if (op->flags & RW_OP_VIEW || !n_inputs) {
        print(text, "-");
        return;
    }
    for (uint32_t i = 0; i < n_inputs; i++) n += rw_op_set_has(op->strided, (int)i);
    if (n == n_inputs) print(text, "all");
    for (uint32_t i = 0; n < n_inputs && i < n_inputs; i++) {
        if (!rw_op_set_has(op->strided, (int)i)) continue;
        if (text->n > before) print(text, ", ");
        print_operand(text, op, true, i);
    }
    if (text->n == before) print(text, "none");
}

/* The recipe's effect on the inputs: the set's name, and the inputs' names if it is not all of them. */
static void print_recipe(struct text *text, const rw_op_def *op, uint32_t n_inputs)
{
    const struct {
        uint32_t inputs;
        const char *word;
    } sets[] = { { op->cast_low, "16 bits" }, { op->cast_f32, "f32" }, { op->cast_widest, "one type" } };
    const size_t before = text->n;
    for (int s = 0; s < 3; s++) {
        uint32_t n = 0;
        if (!sets[s].inputs) continue;
        print(text, "%s", sets[s].word);
        for (uint32_t i = 0; i < n_inputs; i++) n += rw_op_set_has(sets[s].inputs, (int)i);
        for (uint32_t i = 0; n < n_inputs && i < n_inputs; i++) {
            if (!rw_op_set_has(sets[s].inputs, (int)i)) continue;
            print(text, i ? ", " : ": ");
            print_operand(text, op, true, i);
        }
    }
    if (text->n == before) print(text, "-");
}

static void print_set(struct text *text, uint32_t types)
{
    const uint32_t floats = 1u << RW_F32 | 1u << RW_F64 | 1u << RW_BF16 | 1u << RW_F16;
    const uint32_t any = floats | 1u << RW_I32 | 1u << RW_BOOL;
    const size_t before = text->n;
    if ((types & any) == any) print(text, "any");
    else if ((types & floats) == floats) print(text, "floats");
    for (int d = 0; d < RW_DTYPE_COUNT; d++) {
        if (!(types >> d & 1)) continue;
        if (((types & any) == any && any >> d & 1) || ((types & floats) == floats && floats >> d & 1)) continue;
        print(text, "%s%s", text->n > before ? ", " : "", rw_dtype_name((rw_dtype)d));
    }
}

/* Types of the first operand, and of those with other types. */
static void print_types(struct text *text, const rw_op_def *op, const uint32_t *types)
{
    char name[32];
    uint32_t before = 0;
    print_set(text, types[0]);
    for (uint32_t k = 1; k < INPUTS_MAX; k++) {
        if (!types[k] || types[k] == types[0]) continue;
        if (is_listed(rw_op_input_name(op, (int)k, name, sizeof name))) continue;
        if (before && before != types[k]) print(text, ": "), print_set(text, before);
        print(text, "%s %s", before == types[k] ? "," : ";", name);
        before = types[k];
    }
    if (before) print(text, ": "), print_set(text, before);
}

/* Prints the row of one op. */
static void print_row(struct text *text, struct fixture *b, size_t which)
{
    print(text, "| `%s` | %s | ", rw_builtin_name(which), torch_name(rw_builtin_name(which)));
    cr_assert(known[which].c || known[which].call, "neither a case nor docs_ops_table_calls.c records %s",
              rw_builtin_name(which));
    record_known(b, which);
    const uint32_t node = node_of(b->t, rw_builtin_name(which)), n_inputs = b->t->nodes[node].n_inputs;
    const rw_op_def *const op = b->t->ctx->ops[b->t->nodes[node].op];
    print_types(text, op, known[which].types);
    print(text, " | ");
    print_kept(text, b, which);
    print(text, " | ");
    print_inplace(text, op, n_inputs);
    print(text, " | ");
    print_strided(text, op, n_inputs);
    print(text, " | ");
    print_recipe(text, op, n_inputs);
    print(text, " |\n");
}

/* ---- functions that are composed of ops ---- */

static bool is_op(const char *function)
{
    return rw_builtin_name(place_of(function)) != NULL;
}

/* The ops that a call records, each once, in order. */
static void print_parts(struct text *text, struct fixture *b, const struct table_call *c)
{
    rw_tensor *y = NULL;
    for (size_t d = 0; d < DTYPES && !y; d++) {
        rw_error_clear(b->ctx);
        rw_tape_reset(b->t);
        y = c->record(b->t, dtypes[d]);
    }
    cr_assert(y && b->t->n_nodes, "%s: %s", c->function, rw_error_message(b->ctx));
    for (uint32_t n = 0; n < b->t->n_nodes; n++) {
        const char *const op = b->t->ctx->ops[b->t->nodes[n].op]->name;
        if (node_of(b->t, op) == n) print(text, "%s`%s`", n ? ", " : "", op);
    }
}

static void print_functions(struct text *text, struct fixture *b)
{
    for (const struct table_call *c = table_calls; c->function; c++) {
        if (is_op(c->function)) continue;
        print(text, "| `%s` | %s | ", c->function, c->torch);
        print_parts(text, b, c);
        print(text, " |\n");
    }
}

static struct text page;

static const char head[] =
    "# Table of ops\n\n"
    "| op | PyTorch | types | backward reads | may write over | reads views of | recipe |\n"
    "|---|---|---|---|---|---|---|\n";

static const char head_of_functions[] =
    "\n## Functions that are composed of ops\n\n"
    "| function | PyTorch | composed of |\n|---|---|---|\n";

/* ---- by PyTorch's names ---- */

struct counterpart {
    const char *torch, *function;
};

static int by_torch(const void *a, const void *b)
{
    const struct counterpart *const x = a, *const y = b;
    const int order = strcmp(x->torch, y->torch);
    return order ? order : strcmp(x->function, y->function);
}

/* A name of PyTorch's modules, not a description. */
static bool is_torch_name(const char *name)
{
    return name && (!strncmp(name, "F.", 2) || !strncmp(name, "torch.", 6) || !strncmp(name, "Tensor.", 7));
}

static void print_by_torch(struct text *text)
{
    static struct counterpart all[2 * OPS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++)
        if (is_torch_name(torch[i].torch)) all[n++] = (struct counterpart){ torch[i].torch, torch[i].op };
    for (const struct table_call *c = table_calls; c->function; c++)
        if (is_torch_name(c->torch)) all[n++] = (struct counterpart){ c->torch, c->function };
    cr_assert_lt(n, 2 * OPS_MAX);
    qsort(all, n, sizeof *all, by_torch);
    print(text, "\n## By PyTorch's names\n\n| PyTorch | here |\n|---|---|\n");
    for (size_t i = 0; i < n; i++) print(text, "| %s | `rw_%s` |\n", all[i].torch, all[i].function);
}

static void print_page(void)
{
    struct fixture b = fixture_open(1, 1);
    learn_all(&b);
    print(&page, "%s", head);
    for (size_t i = 0; rw_builtin_name(i); i++) print_row(&page, &b, i);
    print(&page, "%s", head_of_functions);
    print_functions(&page, &b);
    print_by_torch(&page);
    fixture_close(&b);
}

/* Headers whose functions record the op of the same name. */
static const char *const headers[] = { "attention", "compare",   "conv",      "create",     "custom_grad", "einsum",
                                       "float8",    "gather",    "losses",    "moe",        "norm",        "ops",
                                       "pointwise", "quantized", "recurrent", "reductions", "select" };

Test(docs_ops_table, every_function_that_records_has_a_row)
{
    static const char rest[] = "_at(rw_site at, rw_tape *t";
    static char header[TEXT_MAX];
    print_page();
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        char row[256];
        snprintf(row, sizeof row, "%s/%s.h", REWIND_HEADERS, headers[i]);
        FILE *const f = fopen(row, "r");
        cr_assert_not_null(f, "%s", row);
        header[fread(header, 1, sizeof header - 1, f)] = '\0';
        fclose(f);
        for (const char *end = header; (end = strstr(end, rest)); end++) {
            const char *name = end;
            while (strncmp(name, "rw_", 3)) name--;
            snprintf(row, sizeof row, "\n| `%.*s` |", (int)(end - name - 3), name + 3);
            cr_expect(strstr(page.at, row), "%s.h: no row%s", headers[i], row);
        }
    }
}

Test(docs_ops_table, every_op_has_a_row)
{
    const char *const to = getenv("REWIND_OPS_TABLE");
    print_page();
    for (size_t i = 0; rw_builtin_name(i); i++) {
        char row[256];
        snprintf(row, sizeof row, "\n| `%s` |", rw_builtin_name(i));
        cr_expect(strstr(page.at, row), "no row%s", row);
    }
    if (!to) return;
    FILE *const f = fopen(to, "w");
    cr_assert(f && fwrite(page.at, 1, page.n, f) == page.n && !fclose(f), "%s", to);
}
