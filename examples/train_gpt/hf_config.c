/* Reads the config.json next to a file of weights (hugging_face.h). Every field must have a value that the model here
   supports, or be one on which no forward pass depends; any other is refused by its name. */
#include "hugging_face.h"
#include "paths.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fields on which a forward pass does not depend: provenance, names, text generation, and dropout, which --dropout
   sets. */
static const char *const ignored[] = {
    "_name_or_path", "architectures", "attention_dropout", "attn_pdrop", "bos_token_id", "cls_token_id", "dtype",
    "embd_pdrop", "eos_token_id", "finetuning_task", "initializer_range", "max_position_embeddings", "model_type",
    "n_ctx", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "resid_pdrop",
    "return_dict", "sep_token_id", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "task_specific_params", "torch_dtype", "transformers_version", "use_cache",
};

struct config {
    const char *path;
    const cJSON *json;
};

static void refuse(const struct config *c, const char *field, const char *why)
{
    char text[400], value[80] = "nothing";
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(c->json, field);
    char *const printed = x ? cJSON_PrintUnformatted(x) : NULL;
    if (printed) snprintf(value, sizeof value, "%.75s", printed);
    cJSON_free(printed);
    snprintf(text, sizeof text, "%.180s: \"%.60s\" is %s: %.80s", c->path, field, value, why);
    die("%s", text);
}

/* A number that must be `value`; it may be absent if that is its default. */
static void want_number(const struct config *c, const char *field, double value, bool has_default, const char *why)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(c->json, field);
    if ((!x || cJSON_IsNull(x)) && has_default) return;
    if (!cJSON_IsNumber(x) || fabs(x->valuedouble - value) > 1e-9 * fabs(value)) refuse(c, field, why);
}

static void want_size(const struct config *c, const char *field, int value, bool has_default, const char *option)
{
    char why[60];
    snprintf(why, sizeof why, "--%s is %d", option, value);
    want_number(c, field, value, has_default, why);
}

static bool reads_true(const struct config *c, const char *field, bool otherwise)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(c->json, field);
    if (!x || cJSON_IsNull(x)) return otherwise;
    if (!cJSON_IsBool(x)) refuse(c, field, "expected true or false");
    return cJSON_IsTrue(x);
}

static void want_bool(const struct config *c, const char *field, bool value, const char *why)
{
    if (reads_true(c, field, value) != value) refuse(c, field, why);
}

/* words: the allowed values, separated by blanks; the first is the default. */
static void want_word(const struct config *c, const char *field, const char *words)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(c->json, field);
    char why[80];
    if (!x) return;
    for (const char *w = words; cJSON_IsString(x) && *w; w += strspn(w, " ")) {
        const size_t n = strcspn(w, " ");
        if (strlen(x->valuestring) == n && !strncmp(w, x->valuestring, n)) return;
        w += n;
    }
    snprintf(why, sizeof why, "only %s is implemented", words);
    refuse(c, field, why);
}

/* Stops if a GPT-2 configuration differs from the model's options or needs what is not implemented. */
static void check_gpt2(const struct config *c)
{
    want_size(c, "n_embd", o.m.width, false, "width");
    want_size(c, "n_layer", o.m.layers, false, "layers");
    want_size(c, "n_head", o.m.heads, false, "heads");
    if (o.m.kv_heads != o.m.heads) die("%s", "--kv-heads: expected as many as --heads for GPT-2");
    want_size(c, "n_inner", o.m.hidden, o.m.hidden == 4 * o.m.width, "hidden");
    want_size(c, "n_positions", o.m.seq, false, "seq");
    want_number(c, "layer_norm_epsilon", 1e-5, true, "only 1e-5 is implemented");
    want_word(c, "activation_function", "gelu_new gelu_pytorch_tanh");
    want_bool(c, "scale_attn_weights", true, "only true is implemented");
    want_bool(c, "scale_attn_by_inverse_layer_idx", false, "only false is implemented");
    want_bool(c, "reorder_and_upcast_attn", false, "only false is implemented");
    want_bool(c, "add_cross_attention", false, "only false is implemented");
    want_bool(c, "tie_word_embeddings", true, "only true is implemented for GPT-2");
}

/* Older files have rope_scaling and rope_theta, newer ones rope_parameters with both. */
static void check_rope(const struct config *c, const char *field)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(c->json, field);
    if (!x || cJSON_IsNull(x)) return;
    if (!cJSON_IsObject(x)) refuse(c, field, "only the default rope is implemented");
    for (const cJSON *part = x->child; part; part = part->next) {
        const bool kind = !strcmp(part->string, "rope_type") || !strcmp(part->string, "type");
        const bool good = kind ? cJSON_IsString(part) && !strcmp(part->valuestring, "default")
                               : !strcmp(part->string, "rope_theta") && cJSON_IsNumber(part) &&
                                     fabs(part->valuedouble - 10000) < 1e-6;
        if (!good) refuse(c, field, "only rope_type default of rope_theta 10000 is implemented");
    }
}

/* Checks all fields of a Llama's config. */
static void check_llama(const struct config *c)
{
    const cJSON *const positions = cJSON_GetObjectItemCaseSensitive(c->json, "max_position_embeddings");
    want_size(c, "hidden_size", o.m.width, false, "width");
    want_size(c, "num_hidden_layers", o.m.layers, false, "layers");
    want_size(c, "num_attention_heads", o.m.heads, false, "heads");
    want_size(c, "num_key_value_heads", o.m.kv_heads, o.m.kv_heads == o.m.heads, "kv-heads");
    want_size(c, "intermediate_size", o.m.hidden, false, "hidden");
    want_number(c, "head_dim", o.m.width / o.m.heads, true, "only the width over the heads is implemented");
    if (cJSON_IsNumber(positions) && positions->valuedouble < o.m.seq)
        refuse(c, "max_position_embeddings", "--seq is longer");
    want_number(c, "rms_norm_eps", 1e-5, false, "only 1e-5 is implemented");
    want_number(c, "rope_theta", 10000, true, "only 10000 is implemented");
    check_rope(c, "rope_scaling");
    check_rope(c, "rope_parameters");
    want_word(c, "hidden_act", "silu");
    want_bool(c, "attention_bias", false, "only false is implemented");
    want_bool(c, "mlp_bias", false, "only false is implemented");
    o.m.tied = reads_true(c, "tie_word_embeddings", false);
}

/* Fields that the checks above have read. */
static const char *const read_of_gpt2[] = { "n_embd", "n_layer", "n_head", "n_inner", "n_positions",
                                            "layer_norm_epsilon", "activation_function", "scale_attn_weights",
                                            "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn",
                                            "add_cross_attention", "tie_word_embeddings", "vocab_size" };
static const char *const read_of_llama[] = { "hidden_size", "num_hidden_layers", "num_attention_heads",
                                             "num_key_value_heads", "intermediate_size", "head_dim", "rms_norm_eps",
                                             "rope_theta", "rope_scaling", "rope_parameters", "hidden_act",
                                             "attention_bias", "mlp_bias", "tie_word_embeddings", "vocab_size" };

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

static void check_unknown(const struct config *c)
{
    const char *const *const names = o.m.llama ? read_of_llama : read_of_gpt2;
    const size_t n = o.m.llama ? sizeof read_of_llama / sizeof *names : sizeof read_of_gpt2 / sizeof *names;
    for (const cJSON *x = c->json->child; x; x = x->next)
        if (!is_one_of(x->string, ignored, sizeof ignored / sizeof *ignored) && !is_one_of(x->string, names, n))
            refuse(c, x->string, "not implemented");
}

/* "a/b.safetensors" -> "a/config.json" */
static void path_beside(const char *file, char ret[PATH_SIZE])
{
    const char *const slash = strrchr(file, '/');
    snprintf(ret, PATH_SIZE, "%.*s%s", slash ? (int)(slash + 1 - file) : 0, file, "config.json");
}

static char *read_text(const char *path)
{
    FILE *const f = path_input_fault(path) ? NULL : fopen(path, "rb");
    char *const text = f ? calloc(1, 1 << 20) : NULL;
    if (text && fread(text, 1, (1 << 20) - 1, f) == 0) text[0] = '\0';
    if (f) fclose(f);
    return text;
}

static void check_type(const struct config *c)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(c->json, "model_type");
    const bool gpt2 = cJSON_IsString(x) && !strcmp(x->valuestring, "gpt2");
    const bool llama = cJSON_IsString(x) && !strcmp(x->valuestring, "llama");
    if (!gpt2 && !llama) refuse(c, "model_type", "only gpt2 and llama are implemented");
    if (llama != o.m.llama) refuse(c, "model_type", o.m.llama ? "--preset is a Llama" : "--preset is a GPT-2");
}

void read_hf_config(const char *file)
{
    char path[PATH_SIZE], text[400];
    path_beside(file, path);
    char *const bytes = read_text(path);
    if (!bytes) {
        snprintf(text, sizeof text, "--load-hf needs %.200s, which says what the model is: %.80s", path,
                 path_input_fault(path) ? path_input_fault(path) : "cannot be read");
        die("%s", text);
    }
    cJSON *const json = cJSON_Parse(bytes);
    const struct config c = { path, json };
    if (!cJSON_IsObject(json)) die("%s: not a JSON object", path);
    check_type(&c);
    (o.m.llama ? check_llama : check_gpt2)(&c);
    want_size(&c, "vocab_size", o.vocab, false, "vocab");
    check_unknown(&c);
    cJSON_Delete(json);
    free(bytes);
}
