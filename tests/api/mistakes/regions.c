/* Invalid calls of rewind/recompute.h: regions, policies, decisions about values. */
#include "api/mistakes/table.h"

#include <rewind/rewind.h>

#include <stdlib.h>
#include <string.h>

/* A policy of n names, followed by the mistake. */
static const char *long_policy(size_t n)
{
    static char text[40000];
    strcpy(text, "selective:");
    for (size_t i = 0; i < n; i++) strcat(text, i ? ",block" : "block");
    strcat(text, ":x");
    return text;
}

/* Whether the message gives that column. */
static rw_status at_column(rw_status status, const rw_context *ctx, const char *column)
{
    return strstr(rw_error_message(ctx), column) ? status : RW_OK;
}

#define DECISION(fn, ...)                                                        \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, NULL __VA_ARGS__));                       \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(NULL, w->v __VA_ARGS__));                    \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, RW_NONE __VA_ARGS__));                    \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, w->dead __VA_ARGS__));                    \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, w->gone __VA_ARGS__));                    \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, w->foreign __VA_ARGS__));                 \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(w->other, w->v_grad __VA_ARGS__));           \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(w->other, w->dead_grad __VA_ARGS__));        \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, w->p __VA_ARGS__))

void mistakes_with_regions(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    FILE *const out = stderr;
    SILENT("ckpt_begin", RW_ERR_ARGUMENT, ckpt_begin(NULL, "r"));
    STATUS("ckpt_begin", RW_ERR_ARGUMENT, ckpt_begin(t, NULL));
    STATUS("ckpt_begin", RW_ERR_ARGUMENT, ckpt_begin(t, ""));
    STATUS("ckpt_begin", RW_ERR_ARGUMENT, ckpt_begin(t, "a/b"));
    STATUS("ckpt_begin", RW_ERR_ARGUMENT, ckpt_begin(t, "a,b"));
    SILENT("ckpt_end", RW_ERR_ARGUMENT, ckpt_end(NULL));
    STATUS("ckpt_end", RW_ERR_REGION, ckpt_end(t));
    STATUS_OF("ckpt_end", RW_ERR_REGION, (ckpt_begin(t, "r"), ckpt_end(t)), ckpt_end(t));
    SILENT("ckpt_policy_begin", RW_ERR_ARGUMENT, ckpt_policy_begin(NULL, "full"));
    STATUS("ckpt_policy_begin", RW_ERR_ARGUMENT, ckpt_policy_begin(t, NULL));
    STATUS("ckpt_policy_begin", RW_ERR_POLICY, ckpt_policy_begin(t, ""));
    STATUS("ckpt_policy_begin", RW_ERR_POLICY, at_column(ckpt_policy_begin(t, "full+discard:"), w->ctx, "column 14"));
    SILENT("ckpt_policy_end", RW_ERR_ARGUMENT, ckpt_policy_end(NULL));
    STATUS("ckpt_policy_end", RW_ERR_REGION, ckpt_policy_end(t));
    STATUS_OF("ckpt_policy_end", RW_ERR_REGION, (ckpt_policy_begin(t, "full"), ckpt_begin(t, "r")), ckpt_policy_end(t));
    const rw_recipe bf16 = { .kind = RW_RECIPE_BF16 }, odd = { .kind = (rw_recipe_kind)-1 };
    SILENT("rw_recipe_begin", RW_ERR_ARGUMENT, rw_recipe_begin(NULL, &bf16));
    STATUS("rw_recipe_begin", RW_ERR_ARGUMENT, rw_recipe_begin(t, NULL));
    STATUS("rw_recipe_begin", RW_ERR_ARGUMENT, rw_recipe_begin(t, &odd));
    SILENT("rw_recipe_end", RW_ERR_ARGUMENT, rw_recipe_end(NULL));
    STATUS("rw_recipe_end", RW_ERR_REGION, rw_recipe_end(t));
    STATUS_OF("rw_recipe_end", RW_ERR_REGION, (rw_recipe_begin(t, &bf16), ckpt_begin(t, "r")), rw_recipe_end(t));
    STATUS_OF("ckpt_end", RW_ERR_REGION, (ckpt_begin(t, "r"), rw_recipe_begin(t, &bf16)), ckpt_end(t));
    STATUS_OF("rw_backward", RW_ERR_REGION, rw_recipe_begin(t, &bf16), rw_backward(t, w->loss));
    STATUS_OF("ckpt_explain", RW_ERR_REGION, rw_recipe_begin(t, &bf16), ckpt_explain(t, out));
    STATUS_OF("ckpt_end", RW_ERR_REGION, (ckpt_begin(t, "r"), ckpt_policy_begin(t, "full")), ckpt_end(t));
    STATUS_OF("rw_backward", RW_ERR_REGION, ckpt_policy_begin(t, "full"), rw_backward(t, w->loss));
    STATUS_OF("ckpt_explain", RW_ERR_REGION, ckpt_policy_begin(t, "full"), ckpt_explain(t, out));
    SILENT("ckpt_set_policy", RW_ERR_ARGUMENT, ckpt_set_policy(NULL, "full"));
    STATUS("ckpt_set_policy", RW_ERR_ARGUMENT, ckpt_set_policy(t, NULL));
    STATUS("ckpt_set_policy", RW_ERR_POLICY, ckpt_set_policy(t, ""));
    STATUS("ckpt_set_policy", RW_ERR_POLICY, ckpt_set_policy(t, "fully"));
    STATUS("ckpt_set_policy", RW_ERR_POLICY, ckpt_set_policy(t, "uniform:-1"));
    STATUS("ckpt_set_policy", RW_ERR_POLICY, ckpt_set_policy(t, "block:99999999999999999999"));
    STATUS("ckpt_set_policy", RW_ERR_POLICY, ckpt_set_policy(t, "budget:110%"));
    STATUS("ckpt_set_policy", RW_ERR_UNSUPPORTED, ckpt_set_policy(t, "budget:40%+offload:block"));
    STATUS("ckpt_set_policy", RW_ERR_POLICY, ckpt_set_policy(t, long_policy(100)));
    STATUS("ckpt_set_policy", RW_ERR_POLICY,
           at_column(ckpt_set_policy(t, long_policy(300)), w->ctx, "column 1810"));
    STATUS("ckpt_set_policy", RW_ERR_POLICY,
           at_column(ckpt_set_policy(t, long_policy(5000)), w->ctx, "column 30010"));
    STATUS_OF("policy", RW_ERR_POLICY, ckpt_set_policy(t, "ops:no_such_op"), rw_backward(t, w->loss));
    ALLOWED("ckpt_policy", !*ckpt_policy(NULL));
    DECISION(ckpt_name, , "n");
    TENSOR("ckpt_name", RW_ERR_ARGUMENT, ckpt_name(t, w->v, NULL));
    TENSOR("ckpt_name", RW_ERR_ARGUMENT, ckpt_name(t, w->v, ""));
    DECISION(ckpt_keep);
    DECISION(ckpt_recompute);
    DECISION(ckpt_offload);
    SILENT("ckpt_explain", RW_ERR_ARGUMENT, ckpt_explain_with(NULL, out, 0));
    STATUS("ckpt_explain", RW_ERR_ARGUMENT, ckpt_explain_with(t, NULL, 0));
    STATUS("ckpt_explain", RW_ERR_ARGUMENT, ckpt_explain_with(t, out, 2));
    SILENT("ckpt_explain", RW_ERR_ARGUMENT, ckpt_explain(NULL, out));
    STATUS("ckpt_explain", RW_ERR_ARGUMENT, ckpt_explain(t, NULL));
    STATUS("ckpt_explain", RW_ERR_ARGUMENT, ckpt_explain(w->alien_t, out));
    STATUS_OF("ckpt_explain", RW_ERR_REGION, ckpt_begin(t, "r"), ckpt_explain(t, out));
    SILENT("ckpt_verify", RW_ERR_ARGUMENT, ckpt_verify(NULL, w->loss, (ckpt_report *)(void *)w->out));
    STATUS("ckpt_verify", RW_ERR_ARGUMENT, ckpt_verify(t, NULL, (ckpt_report *)(void *)w->out));
    STATUS("ckpt_verify", RW_ERR_ARGUMENT, ckpt_verify(t, w->dead, NULL));
    STATUS("ckpt_verify", RW_ERR_SHAPE, ckpt_verify(t, w->v, (ckpt_report *)(void *)w->out));
    STATUS_OF("ckpt_verify", RW_ERR_REGION, ckpt_begin(t, "r"), ckpt_verify(t, w->loss, NULL));
    ALLOWED("ckpt_report_print", (ckpt_report_print(NULL, out), ckpt_report_print(NULL, NULL), true));
    ALLOWED("ckpt_cause_name", ckpt_cause_name((ckpt_cause)99) && ckpt_cause_name((ckpt_cause)-1));
}
