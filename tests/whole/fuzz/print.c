/* Prints a program as C that can be pasted into tests/whole/regressions.c. */
#include "whole/fuzz/input_values.h"
#include "whole/fuzz/region_and_value_names.h"
#include "whole/fuzz/shrink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct printer {
    FILE *out;
    const struct fz_program *p;
};

static const char *const type_names[] = {
    [RW_F32] = "RW_F32", [RW_F64] = "RW_F64", [RW_BF16] = "RW_BF16", [RW_I32] = "RW_I32",
    [RW_BOOL] = "RW_BOOL"
};

static void print_name(const struct printer *p, int value)
{
    const int i = value / FZ_OUTS;
    const char *const name = fz_op(p->p->s[i].op)->name;
    const bool list = p->p->s[i].n_out > 1 || !strcmp(name, "split") || !strcmp(name, "rw_grad") ||
                      !strcmp(name, "unbind");
    fprintf(p->out, list ? "v%d[%d]" : "v%d", i, value % FZ_OUTS);
}

static void print_shape(FILE *out, rw_shape s)
{
    if (!s.rank) fprintf(out, "RW_SCALAR");
    for (int i = 0; i < s.rank; i++) fprintf(out, i ? ", %lld" : "RW_SHAPE(%lld", (long long)s.dim[i]);
    if (s.rank) fputc(')', out);
}

static void print_axes(FILE *out, int64_t mask, int rank)
{
    bool first = true;
    if (mask == (1 << rank) - 1) fprintf(out, "RW_ALL_AXES");
    for (int i = 0; i < rank && mask != (1 << rank) - 1; i++) {
        if (!(mask >> i & 1)) continue;
        fprintf(out, first ? "RW_AXES(%d" : ", %d", i);
        first = false;
    }
    if (!first) fputc(')', out);
}

static void print_number(FILE *out, double x)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", x);
    fprintf(out, strpbrk(text, ".en") ? "%s" : "%s.0", text);
}

static size_t bytes_of(const struct fz_type *x)
{
    return (size_t)rw_shape_numel(x->shape) * rw_dtype_size(x->dtype);
}

/* The row's text with its places filled in: see struct fz_op. */
static void print_call(const struct printer *p, const struct fz_statement *s)
{
    for (const char *c = fz_op(s->op)->text; *c; c++) {
        const int digit = c[1] - '0';
        switch (*c) {
        case '$':
            if (digit >= 0 && digit < s->n_in) print_name(p, s->in[digit]), c++;
            else if (digit >= 0 && digit < FZ_INS) fprintf(p->out, "RW_NONE"), c++;
            else fprintf(p->out, "%sv%d", c[1] == '[' ? "e" : "", (int)(s - p->p->s));
            break;
        case '%': fprintf(p->out, "%lld", (long long)s->k[digit]), c++; break;
        case '~': print_number(p->out, s->f); break;
        case '@': print_shape(p->out, s->out[digit].shape), c++; break;
        case '!': fprintf(p->out, "%zu", bytes_of(&s->out[digit])), c++; break;
        case '^': fprintf(p->out, "%s", type_names[s->out[digit].dtype]), c++; break;
        case '#': print_axes(p->out, s->k[0], fz_in(p->p, s, 0)->shape.rank); break;
        default: fputc(*c, p->out);
        }
    }
}

static void print_operands(const struct printer *p, const struct fz_statement *s, int from)
{
    for (int i = from; i < s->n_in; i++) {
        if (i > from) fprintf(p->out, ", ");
        print_name(p, s->in[i]);
    }
}

/* Statements that one row of text cannot express. */
static bool print_special(const struct printer *p, const struct fz_statement *s)
{
    FILE *const o = p->out;
    const char *const name = fz_op(s->op)->name;
    const int i = (int)(s - p->p->s);
    if (!strcmp(name, "ckpt_begin")) {
        fprintf(o, "ckpt_begin(t, \"%s\");\n", fz_region_names[s->k[0]]);
    } else if (!strcmp(name, "ckpt_name")) {
        fprintf(o, "ckpt_name(t, "), print_operands(p, s, 0), fprintf(o, ", \"%s\");\n", fz_tag_names[s->k[0]]);
    } else if (!strcmp(name, "rw_grad")) {
        fprintf(o, "rw_tensor *v%d[%d];\n            rw_grad(t, ", i, s->n_out), print_name(p, s->in[0]);
        fprintf(o, ", (rw_tensor *[]){ "), print_operands(p, s, 1), fprintf(o, " }, %d, v%d);\n", s->n_out, i);
    } else if (!strcmp(name, "split")) {
        fprintf(o, "rw_tensor *v%d[%d];\n            rw_split(t, ", i, s->n_out), print_name(p, s->in[0]);
        fprintf(o, ", %lld, (const int64_t[]){ %lld, %lld", (long long)s->k[0], (long long)s->k[1], (long long)s->k[2]);
        if (s->n_out > 2) fprintf(o, ", %lld", (long long)s->k[3]);
        fprintf(o, " }, %d, v%d);\n", s->n_out, i);
    } else if (!strcmp(name, "unbind")) {
        fprintf(o, "rw_tensor *v%d[%d];\n            rw_unbind(t, ", i, s->n_out), print_name(p, s->in[0]);
        fprintf(o, ", %lld, v%d, %d);\n", (long long)s->k[0], s->n_out, i);
    } else if (!strcmp(name, "topk")) {
        fprintf(o, "rw_tensor *v%d[2];\n            rw_topk(t, ", i), print_name(p, s->in[0]);
        fprintf(o, ", %lld, %lld, v%d, v%d + 1);\n", (long long)s->k[1], (long long)s->k[0], i, i);
    } else if (!strcmp(name, "ssd_scan")) {
        fprintf(o, "rw_tensor *v%d[2];\n            v%d[0] = ", i, i), print_call(p, s), fprintf(o, "v%d + 1);\n", i);
    } else if (!strncmp(name, "fuzz_", 5) && !fz_op(s->op)->text) {
        if (s->n_out > 1) fprintf(o, "rw_tensor *v%d[%d];\n            rw_apply(t, &%s, &", i, s->n_out, name);
        else fprintf(o, "rw_tensor *const v%d = rw_apply(t, &%s, &", i, name);
        print_name(p, s->in[0]);
        fprintf(o, strcmp(name, "fuzz_jitter") ? ", 1, &(int64_t){ %d }, 8, " : ", 1, NULL, 0, ", i);
        if (s->n_out > 1) fprintf(o, "v%d);\n", i);
        else fprintf(o, "NULL);\n");
    } else {
        return false;
    }
    return true;
}

/* Prints the call of a statement. */
static void print_expression(const struct printer *p, const struct fz_statement *s)
{
    FILE *const o = p->out;
    const char *const name = fz_op(s->op)->name;
    if (fz_op(s->op)->text) {
        print_call(p, s);
    } else if (!strcmp(name, "attention")) {
        fprintf(o, "rw_attention(t, "), print_operands(p, s, 0);
        fprintf(o, ", &(rw_attention_params){ .causal = %lld, .scale = ", (long long)s->k[0]), print_number(o, s->f);
        fprintf(o, "f, .dropout = "), print_number(o, (double)s->k[1] / 8), fprintf(o, "f })");
    } else if (!strcmp(name, "concat")) {
        fprintf(o, "rw_concat(t, (rw_tensor *[]){ "), print_operands(p, s, 0),
            fprintf(o, " }, %d, %lld)", s->n_in, (long long)s->k[0]);
    } else if (!strcmp(name, "stack")) {
        fprintf(o, "rw_stack(t, (rw_tensor *[]){ "), print_operands(p, s, 0),
            fprintf(o, " }, %d, %lld)", s->n_in, (long long)s->k[0]);
    } else if (!strcmp(name, "permute")) {
        fprintf(o, "rw_permute(t, "), print_operands(p, s, 0), fprintf(o, ", (const int[]){ ");
        for (int i = 0; i < s->out[0].shape.rank; i++) fprintf(o, i ? ", %d" : "%d", (int)(s->k[0] >> 4 * i & 15));
        fprintf(o, " })");
    } else { /* loss_term */
        fprintf(o, "rw_cast(t, rw_scale(t, rw_sum(t, ");
        fprintf(o, s->k[0] == 0 ? "rw_mul(t, " : s->k[0] == 1 ? "rw_tanh(t, " : ""), print_operands(p, s, 0);
        if (s->k[0] == 0) fprintf(o, ", rw_tanh(t, "), print_operands(p, s, 0), fprintf(o, "))");
        fprintf(o, s->k[0] == 1 ? "), RW_ALL_AXES, false), " : ", RW_ALL_AXES, false), "), print_number(o, s->f),
            fprintf(o, "), RW_F32)");
    }
}

/* Prints a leaf's elements of all steps as an array. */
static void print_data(const struct printer *p, const struct fz_statement *s)
{
    static const char *const types[] = {
        [RW_F32] = "float", [RW_F64] = "double", [RW_BF16] = "uint16_t", [RW_I32] = "int32_t",
        [RW_BOOL] = "uint8_t"
    };
    const int64_t n = rw_shape_numel(s->out[0].shape);
    fprintf(p->out, "    static const %s ev%d[%d][%lld] = {", types[s->out[0].dtype], (int)(s - p->p->s), p->p->steps,
            (long long)(n ? n : 1));
    for (int step = 0; step < p->p->steps; step++) {
        fprintf(p->out, "%s{ ", step ? ", " : " ");
        for (int64_t i = 0; i < n; i++) {
            const double x = fz_element(p->p, s, step, i);
            const float f = (float)x;
            uint32_t bits;
            memcpy(&bits, &f, sizeof bits);
            if (i) fprintf(p->out, ", ");
            if (s->out[0].dtype == RW_BF16) fprintf(p->out, "0x%04x /* %g */", bits >> 16, x);
            else fprintf(p->out, "%g", x);
        }
        fprintf(p->out, n ? " }" : "0 }");
    }
    fprintf(p->out, " };\n");
}

static void print_statement(const struct printer *p, const struct fz_statement *s)
{
    const char *const indent = fz_op(s->op)->flags & FZ_CONTEXT ? "        " : "            ";
    fprintf(p->out, "%s", indent);
    if (print_special(p, s)) return;
    if (s->n_out) fprintf(p->out, "rw_tensor *const v%d = ", (int)(s - p->p->s));
    print_expression(p, s);
    fprintf(p->out, ";\n");
    if (fz_op(s->op)->flags & FZ_CONTEXT)
        fprintf(p->out, "%srw_generator_set(b.ctx, (rw_generator_state){ .seed = %u });\n", indent, s->word[0]);
    if (!strcmp(fz_op(s->op)->name, "param"))
        fprintf(p->out, "%srw_init_normal(v%d, 0, 0.5);\n", indent, (int)(s - p->p->s));
    if (!strcmp(fz_op(s->op)->name, "buffer"))
        fprintf(p->out, "%srw_init_uniform(v%d, -1, 1);\n", indent, (int)(s - p->p->s));
}

void fz_print_statement(FILE *out, const struct fz_program *p, int statement)
{
    print_statement(&(struct printer){ out, p }, &p->s[statement]);
}

/* Prints an action on the tape. */
static void print_action(const struct printer *p, const struct fz_action *a)
{
    FILE *const o = p->out;
    const char *const indent = "            ";
    const int loss = p->p->loss[a->loss] / FZ_OUTS;
    switch ((enum fz_action_kind)a->kind) {
    case FZ_ITEM: fprintf(o, "%sfound_item(&f, rw_item(t, v%d));\n", indent, loss); break;
    case FZ_BACKWARD: fprintf(o, "%sfound_backward(&f, t, v%d);\n", indent, loss); break;
    case FZ_VERIFY:
        fprintf(o, "%scr_assert_eq(ckpt_verify(t, v%d, NULL), RW_OK, \"%%s\", rw_error_message(b.ctx));\n", indent,
                loss);
        break;
    case FZ_READ: fprintf(o, "%sfound_read(&f, t, ", indent), print_name(p, a->value), fprintf(o, ");\n"); break;
    case FZ_EVAL:
        fprintf(o, "%srw_eval(t, (rw_tensor *[]){ ", indent), print_name(p, a->value),
            fprintf(o, ", v%d }, 2);\n", loss);
        break;
    case FZ_COST: fprintf(o, "%srw_tape_cost(t, v%d, &(rw_cost){ 0 });\n", indent, loss); break;
    default: fprintf(o, "%sckpt_explain(t, stdout);\n", indent);
    }
}

static void print_comment(const struct printer *p, const struct fz_verdict *v)
{
    static const char *const modes[] = { "", ", REWIND_VERIFY=1", ", REWIND_VERIFY=digest", ", REWIND_EAGER=1" };
    fprintf(p->out, "/*\n * %s: %s\n * Shrunk from REWIND_FUZZ_SEED=%llu REWIND_FUZZ_PROGRAMS=1%s%s%s%s%s.\n */\n",
            fz_failure_names[v->failure], v->text, (unsigned long long)p->p->seed, modes[p->p->mode],
            p->p->two_tapes ? ", the program on two tapes in turn" : "",
            p->p->clips ? ", rw_clip_grad_norm() after each step" : "",
            p->p->steps > 1 ? ", rw_optimizer_step() after each step" : "",
            p->p->accumulates ? ", gradients never cleared" : "");
}

/* Prints the loop over both policies. */
static void print_body(const struct printer *p)
{
    FILE *const o = p->out;
    const struct fz_program *const q = p->p;
    fprintf(o, "    struct found f = { 0 };\n    for (f.policy = 0; f.policy < 2; f.policy++) {\n");
    fprintf(o, "        struct fixture b = fixture_open(%llu, f.policy ? %d : 1);\n        rw_tape *const t = b.t;\n",
            (unsigned long long)q->numbers, q->threads[0]);
    for (int i = 0; i < q->n; i++)
        if (!q->s[i].dropped && (fz_op(q->s[i].op)->flags & FZ_CONTEXT)) print_statement(p, &q->s[i]);
    fprintf(o, "        rw_generator_set(b.ctx, (rw_generator_state){ .seed = %llu });\n",
            (unsigned long long)q->numbers);
    if (q->steps > 1)
        fprintf(
            o,
            "        rw_optimizer *opt = NULL;\n"
            "        rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 0.01 });\n");
    fprintf(o, "        for (int step = 0; step < %d; step++) {\n", q->steps);
    if (strcmp(q->policy[0], q->policy[1]) && q->steps > 1)
        fprintf(o, "            ckpt_set_policy(t, !f.policy ? \"none\" : step ? \"%s\" : \"%s\");\n", q->policy[1],
                q->policy[0]);
    else fprintf(o, "            ckpt_set_policy(t, f.policy ? \"%s\" : \"none\");\n", q->policy[0]);
    if (q->threads[0] != q->threads[1] && q->steps > 1)
        fprintf(o, "            if (f.policy && step) rw_context_set_threads(b.ctx, %d);\n", q->threads[1]);
    for (int i = 0; i < q->n; i++)
        if (!q->s[i].dropped && !(fz_op(q->s[i].op)->flags & FZ_CONTEXT)) print_statement(p, &q->s[i]);
    for (int i = 0; i < q->n_actions; i++)
        if (!q->action[i].dropped) print_action(p, &q->action[i]);
    if (q->clips) fprintf(o, "            rw_clip_grad_norm(b.ctx, 1, NULL);\n");
    if (q->steps > 1) fprintf(o, "            rw_optimizer_step(opt);\n            found_parameters(&f, b.ctx);\n");
    if (!q->accumulates) fprintf(o, "            rw_zero_grad(b.ctx);\n");
    fprintf(o, "            rw_tape_reset(t);\n        }\n");
    if (q->steps > 1) fprintf(o, "        rw_optimizer_destroy(&opt);\n");
    fprintf(o, "        fixture_close(&b);\n    }\n    found_finish(&f);\n");
}

char *fz_print(const struct fz_program *program, const struct fz_verdict *v)
{
    char *text = NULL;
    size_t size = 0;
    const struct printer p = { open_memstream(&text, &size), program };
    if (!p.out) abort();
    print_comment(&p, v);
    fprintf(p.out, "Test(found, seed_%llu)\n{\n", (unsigned long long)program->seed);
    for (int i = 0; i < program->n; i++) {
        const char *const t = fz_op(program->s[i].op)->text;
        if (!program->s[i].dropped && t && strstr(t, "$[step]")) print_data(&p, &program->s[i]);
    }
    print_body(&p);
    fprintf(p.out, "}\n");
    fclose(p.out);
    return text;
}
