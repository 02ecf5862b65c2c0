/* The command line of recompute_sweep. */
#include "sweep.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "recompute_sweep: trains a model under several checkpointing policies and shows what memory costs in time.\n"
    "Every row is verified: losses, gradients and parameters must be the bytes of policy `none`.\n\n"
    "  --model gpt|llama       [gpt]\n"
    "  --preset tiny|small|gpt2-124m  [small]\n"
    "  --layers N --width N --heads N --kv-heads N   instead of the preset's\n"
    "  --policy LIST           policies separated by blanks, e.g. \"none full selective:core_attn,mlp uniform:2\"\n"
    "  --seq LIST              sequence lengths separated by commas [256,512]\n"
    "  --batch N               [4]\n"
    "  --steps N               steps per row, one more to warm up [20]\n"
    "  --dtype f32|bf16|f64    [f32]\n"
    "  --dropout P             [0.1 for gpt, 0 for llama]\n"
    "  --attention flash|scores  [flash]\n"
    "  --threads N             [all cores]\n"
    "  --device auto|cpu|cuda  [auto]\n"
    "  --seed N                [42]\n"
    "  --data FILE             trains byte by byte on any file [the shipped text]\n"
    "  --out DIR               writes sweep.csv, .json, .html and .svg there [out]\n";

enum { LAYERS = 256, WIDTH, HEADS, KV_HEADS, POLICY, SEQ, BATCH, STEPS, DTYPE, DROPOUT, ATTENTION, THREADS, DEVICE, SEED, DATA, OUT,
       MODEL, PRESET, HELP };

static const struct option names[] = {
    { "model", 1, 0, MODEL },     { "preset", 1, 0, PRESET },   { "layers", 1, 0, LAYERS },       { "width", 1, 0, WIDTH },
    { "heads", 1, 0, HEADS },     { "kv-heads", 1, 0, KV_HEADS }, { "policy", 1, 0, POLICY },     { "seq", 1, 0, SEQ },
    { "batch", 1, 0, BATCH },     { "steps", 1, 0, STEPS },     { "dtype", 1, 0, DTYPE },         { "dropout", 1, 0, DROPOUT },
    { "attention", 1, 0, ATTENTION }, { "threads", 1, 0, THREADS }, { "device", 1, 0, DEVICE },   { "seed", 1, 0, SEED },
    { "data", 1, 0, DATA },       { "out", 1, 0, OUT },         { "help", 0, 0, HELP },           { 0 },
};

static int refuse(const char *what, const char *value)
{
    fprintf(stderr, "recompute_sweep: %s: \"%s\" (--help lists the options)\n", what, value);
    return 3;
}

static bool number(const char *text, int least, int *ret)
{
    char *end;
    const long n = strtol(text, &end, 10);
    if (*end || end == text || n < least || n > 1 << 24) return false;
    *ret = (int)n;
    return true;
}

static bool read_policies(struct sweep_options *o, const char *list)
{
    for (int i = 0; i < o->n_policies; i++) free(o->policies[i]);
    o->n_policies = 0;
    char *const copy = strdup(list);
    for (char *p = strtok(copy, " \t\n"); p && o->n_policies < SWEEP_MOST; p = strtok(NULL, " \t\n"))
        o->policies[o->n_policies++] = strdup(p);
    free(copy);
    return o->n_policies > 0;
}

static bool read_seqs(struct sweep_options *o, const char *list)
{
    o->n_seqs = 0;
    char *const copy = strdup(list);
    bool ok = true;
    for (char *p = strtok(copy, ", "); p && ok && o->n_seqs < SWEEP_MOST; p = strtok(NULL, ", ")) ok = number(p, 1, &o->seqs[o->n_seqs++]);
    free(copy);
    return ok && o->n_seqs > 0;
}

/* What the other options start from. */
static int take_base(struct sweep_options *o, int option, const char *value)
{
    if (option == '?') return 3;
    if (option == PRESET) {
        o->preset = value;
        return model_preset(&o->model, value) ? 0 : refuse("unknown preset", value);
    }
    o->model.kind = !strcmp(value, "llama") ? MODEL_LLAMA : MODEL_GPT;
    return !strcmp(value, "llama") || !strcmp(value, "gpt") ? 0 : refuse("unknown model", value);
}

static int take(struct sweep_options *o, int option, const char *value)
{
    struct model_config *const m = &o->model;
    bool ok = true;
    char *end;
    switch (option) {
    case MODEL: case PRESET: break; /* read before the others */
    case LAYERS: ok = number(value, 1, &m->layers) && m->layers <= MODEL_MAX_LAYERS; break;
    case WIDTH: ok = number(value, 1, &m->width); break;
    case HEADS: ok = number(value, 1, &m->heads); m->kv_heads = m->kind == MODEL_GPT ? m->heads : m->kv_heads; break;
    case KV_HEADS: ok = number(value, 1, &m->kv_heads); break;
    case POLICY: ok = read_policies(o, value); break;
    case SEQ: ok = read_seqs(o, value); break;
    case BATCH: ok = number(value, 1, &o->batch); break;
    case STEPS: ok = number(value, 1, &o->steps); break;
    case THREADS: ok = number(value, 1, &o->threads); break;
    case DROPOUT: m->dropout = strtof(value, &end); ok = end != value && !*end && m->dropout >= 0 && m->dropout < 1; break;
    case DEVICE: o->device = value; ok = !strcmp(value, "auto") || !strcmp(value, "cpu") || !strcmp(value, "cuda"); break;
    case SEED: o->seed = strtoull(value, &end, 10); ok = end != value && !*end && *value != '-'; break;
    case DATA: o->data = value; break;
    case OUT: o->out = value; break;
    case ATTENTION: m->scores = !strcmp(value, "scores"); ok = m->scores || !strcmp(value, "flash"); break;
    case DTYPE:
        m->dtype = !strcmp(value, "bf16") ? RW_BF16 : !strcmp(value, "f64") ? RW_F64 : RW_F32;
        ok = !strcmp(value, rw_dtype_name(m->dtype));
        break;
    case HELP: fputs(usage, stdout); return 1;
    default: return 3;
    }
    return ok ? 0 : refuse("a value that the option does not take", value);
}

static int check(struct sweep_options *o)
{
    struct model_config *const m = &o->model;
    if (m->width % m->heads || m->heads % m->kv_heads || (m->kind == MODEL_LLAMA && m->width / m->heads % 2)) {
        fprintf(stderr, "recompute_sweep: width must be a multiple of heads, heads of kv-heads%s\n",
                m->kind == MODEL_LLAMA ? ", and width / heads even" : "");
        return 3;
    }
    for (int i = 0; i < o->n_seqs; i++)
        if (o->seqs[i] > m->max_seq) m->max_seq = o->seqs[i];
    return 0;
}

int sweep_options_read(struct sweep_options *o, int argc, char **argv)
{
    *o = (struct sweep_options){ .preset = "small", .device = "auto", .data = REWIND_DATA, .out = "out", .batch = 4, .steps = 20, .seed = 42 };
    for (int i = 0; i < argc; i++)
        snprintf(o->command + strlen(o->command), sizeof o->command - strlen(o->command), "%s%s", i ? " " : "",
                 i ? argv[i] : "recompute_sweep");
    model_preset(&o->model, "small");
    int option, status = 0;
    /* First the model and the preset, wherever they stand: the other options change what these two set. */
    while (!status && (option = getopt_long(argc, argv, "", names, NULL)) != -1)
        if (option == MODEL || option == PRESET || option == '?') status = take_base(o, option, optarg);
    if (status) return status;
    model_preset(&o->model, o->preset);
    o->model.dropout = o->model.kind == MODEL_GPT ? 0.1f : 0;
    optind = 0; /* getopt_long starts again */
    read_seqs(o, "256,512");
    read_policies(o, "none full uniform:2 block:3 selective:core_attn selective:mlp ops:linear,attention names:save=qkv,attn_out");
    while (!status && (option = getopt_long(argc, argv, "", names, NULL)) != -1) status = take(o, option, optarg);
    if (!status && optind < argc) status = refuse("unexpected argument", argv[optind]);
    return status ? status : check(o);
}

void sweep_options_finish(struct sweep_options *o)
{
    for (int i = 0; i < o->n_policies; i++) free(o->policies[i]);
}
