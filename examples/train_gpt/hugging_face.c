/* Loads weights with Hugging Face's names. */
#include "hugging_face.h"

#include <stdio.h>
#include <string.h>

struct names {
    rw_load_part part[16 * MAX_LAYERS + 8];
    char text[16 * MAX_LAYERS + 8][2][96];
    size_t n;
    const char *prefix;
};

/* l below 0: of no layer. theirs has no prefix, and for a layer no number. */
static rw_load_part *name(struct names *s, int l, const char *ours, const char *theirs)
{
    const size_t i = s->n++;
    char layer[32] = "";
    snprintf(s->text[i][0], sizeof s->text[i][0], l < 0 ? "%s" : "layer.%2$d.%1$s", ours, l);
    if (l >= 0) snprintf(layer, sizeof layer, o.m.llama ? "layers.%d." : "h.%d.", l);
    snprintf(s->text[i][1], sizeof s->text[i][1], "%s%s%s", s->prefix, layer, theirs);
    s->part[i] = (rw_load_part){ .param = s->text[i][0], .name = s->text[i][1] };
    return &s->part[i];
}

/* GPT-2's products are [in, out]. */
static void name_gpt_layer(struct names *s, int l)
{
    static const char *const both[][2] = { { "norm1", "ln_1" },    { "qkv", "attn.c_attn" }, { "proj", "attn.c_proj" },
                                           { "norm2", "ln_2" },    { "up", "mlp.c_fc" },     { "down", "mlp.c_proj" } };
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        char ours[32], theirs[32];
        snprintf(theirs, sizeof theirs, "%s.weight", both[i][1]);
        name(s, l, both[i][0], theirs)->transposed = strncmp(both[i][1], "ln", 2) != 0;
        snprintf(ours, sizeof ours, "%s.bias", both[i][0]);
        snprintf(theirs, sizeof theirs, "%s.bias", both[i][1]);
        name(s, l, ours, theirs);
    }
}

/* The names of a Llama's layer, whose q, k and v are rows of one matrix here. */
static void name_llama_layer(struct names *s, int l)
{
    const int head = o.m.width / o.m.heads, rows[] = { 0, o.m.heads * head, (o.m.heads + o.m.kv_heads) * head };
    static const char *const parts[] = { "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                         "self_attn.v_proj.weight" };
    for (int i = 0; i < 3; i++) {
        rw_load_part *const p = name(s, l, "qkv", parts[i]);
        p->part = true;
        p->row = rows[i];
    }
    name(s, l, "norm1", "input_layernorm.weight");
    name(s, l, "proj", "self_attn.o_proj.weight");
    name(s, l, "norm2", "post_attention_layernorm.weight");
    name(s, l, "gate", "mlp.gate_proj.weight");
    name(s, l, "up", "mlp.up_proj.weight");
    name(s, l, "down", "mlp.down_proj.weight");
}

static rw_status load_names(rw_context *ctx, const char *path, const char *prefix)
{
    static struct names s;
    const bool llama = o.m.llama;
    s.n = 0;
    s.prefix = prefix;
    name(&s, -1, "table", llama ? "embed_tokens.weight" : "wte.weight");
    name(&s, -1, "norm", llama ? "norm.weight" : "ln_f.weight");
    if (!llama) name(&s, -1, "positions", "wpe.weight");
    if (!llama) name(&s, -1, "norm.bias", "ln_f.bias");
    for (int l = 0; l < o.m.layers; l++) (llama ? name_llama_layer : name_gpt_layer)(&s, l);
    s.prefix = "";
    if (llama && !o.m.tied) name(&s, -1, "head", "lm_head.weight");
    return rw_load_parts(ctx, path, s.part, s.n);
}

/* Files of GPT-2 may have a prefix or not. */
rw_status load_hf(rw_context *ctx, const char *path)
{
    rw_status status = load_names(ctx, path, o.m.llama ? "model." : "");
    if (status != RW_ERR_IO || o.m.llama) return status;
    char first[300];
    snprintf(first, sizeof first, "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    status = load_names(ctx, path, "transformer.");
    if (status == RW_ERR_IO) fprintf(stderr, "train_gpt: %s\n", first);
    return status;
}
