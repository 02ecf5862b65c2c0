/* Parses the command line of recompute_sweep. */
#include "sweep/sweep_structs.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "recompute_sweep: trains a model under several checkpointing policies and shows what memory costs in time.\n"
    "Every row is verified against policy `none`, byte by byte: loss, gradients, buffers and the number of random\n"
    "blocks of every step; and, in three steps of a run of its own, parameters, buffers and random state after its\n"
    "own updates.\n\n"
    "  --model gpt|llama|deepseek|mamba2|t5|vit|resnet50|vgg16|mobilenet|densenet121|unet\n"
    "                          [gpt]\n"
    "  --preset tiny|small     [small], or a published size: of gpt gpt2-124m, gpt2-1.5b; of llama\n"
    "                          tinyllama-1.1b, llama3-8b; of deepseek v2-lite, v3; of mamba2 mamba2-130m,\n"
    "                          mamba2-2.7b; of t5 t5-small, t5-v1.1-small; of networks for images\n"
    "                          published, and their --seq is a side\n"
    "  --layers N --width N --heads N --kv-heads N   instead of the preset's\n"
    "  --policy LIST           policies separated by blanks, e.g. \"none budget:50% full selective:core_attn,mlp\"\n"
    "  --budget LIST           a row more for each budget, separated by commas: 75%,50%,256MiB\n"
    "  --fit SIZE              answers the largest batch (--grow seq: length or side) of which all that the device\n"
    "                          holds fits into SIZE (as 4GiB), for each length or side of --seq under each policy,\n"
    "                          by planning alone; then runs it once, if the machine has so much. Without --policy\n"
    "                          also under total:SIZE, and where REWIND_OFFLOAD names a folder,\n"
    "                          total:SIZE+offload\n"
    "  --grow batch|seq        [batch]\n"
    "  --advise                says what fills memory, what would help and what it grows with, by planning alone: the\n"
    "                          batch twice, and from the first length or side of --seq to each longer one, at most\n"
    "                          7, or twice\n"
    "  --all                   with --advise: a line for every value, also where layers are equal\n"
    "  --costs FILE            times of nodes: read when it is there, else measured and written. Without --costs a\n"
    "                          sweep measures them anew and replaces OUT/costs.txt; --fit and --advise take the\n"
    "                          machine's ceilings\n"
    "  --seq LIST              sequence lengths separated by commas [256,512; of networks for images 64]\n"
    "  --batch N               [4]\n"
    "  --steps N               steps per row, one more to warm up [20]\n"
    "  --dtype f32|bf16|f16|f64  [f32]\n"
    "  --dropout P             [0.1 for gpt and t5, else 0; vgg16 has its own, 0.5]\n"
    "  --attention flash|scores  [flash]\n"
    "  --threads N             [all cores]\n"
    "  --device auto|cpu|cuda  [auto]\n"
    "  --seed N                [42]\n"
    "  --data FILE             trains byte by byte on any file [the shipped text]\n"
    "  --out DIR               writes sweep.csv, .json, .html and .svg there, after each length or side [out]\n";

enum {
    LAYERS = 256,
    WIDTH,
    HEADS,
    KV_HEADS,
    POLICY,
    SEQ,
    BATCH,
    STEPS,
    DTYPE,
    DROPOUT,
    ATTENTION,
    THREADS,
    DEVICE,
    SEED,
    DATA,
    OUT,
    MODEL,
    PRESET,
    BUDGET,
    FIT,
    GROW,
    COSTS,
    ADVISE,
    ALL,
    HELP
};

static const struct option names[] = {
    { "layers", 1, 0, LAYERS },       { "width", 1, 0, WIDTH },     { "heads", 1, 0, HEADS },
    { "kv-heads", 1, 0, KV_HEADS },   { "policy", 1, 0, POLICY },   { "seq", 1, 0, SEQ },
    { "batch", 1, 0, BATCH },         { "steps", 1, 0, STEPS },     { "dtype", 1, 0, DTYPE },
    { "dropout", 1, 0, DROPOUT },     { "attention", 1, 0, ATTENTION }, { "threads", 1, 0, THREADS },
    { "device", 1, 0, DEVICE },       { "seed", 1, 0, SEED },       { "data", 1, 0, DATA },
    { "out", 1, 0, OUT },             { "model", 1, 0, MODEL },     { "preset", 1, 0, PRESET },
    { "budget", 1, 0, BUDGET },       { "fit", 1, 0, FIT },         { "grow", 1, 0, GROW },
    { "costs", 1, 0, COSTS },         { "advise", 0, 0, ADVISE },   { "all", 0, 0, ALL },
    { "help", 0, 0, HELP },
    { 0 },
};

/* The expected value of each option, for the message that refuses one. */
static const char *const wanted[] = {
    [LAYERS - LAYERS] = "1 to 128, and needs a model that has them (a network of convolutions has its own)",
    [WIDTH - LAYERS] = "1 to 16777216",
    [HEADS - LAYERS] = "1 to 16777216, and needs a model that has them",
    [KV_HEADS - LAYERS] = "1 to 16777216 and needs --model llama (gpt has as many as heads)",
    [POLICY - LAYERS] = "1 to 64 policies separated by blanks",
    [SEQ - LAYERS] = "1 to 64 lengths of 1 to 16777216 separated by commas",
    [BATCH - LAYERS] = "1 to 16777216",
    [STEPS - LAYERS] = "1 to 16777216",
    [DTYPE - LAYERS] = "f32, bf16, f16 or f64",
    [DROPOUT - LAYERS] = "a number of 0 or more and less than 1, and needs a model that has it (a network of "
                         "convolutions has its own)",
    [ATTENTION - LAYERS] = "flash or scores, and needs a model that has attention",
    [THREADS - LAYERS] = "1 to 1024",
    [DEVICE - LAYERS] = "auto, cpu or cuda",
    [SEED - LAYERS] = "a whole number below 2^64",
    [DATA - LAYERS] = "a file",
    [OUT - LAYERS] = "a folder, at most 4000 bytes",
    [MODEL - LAYERS] = "gpt, llama, deepseek, mamba2, t5, vit, resnet50, vgg16, mobilenet, densenet121 or unet",
    [PRESET - LAYERS] = "tiny or small; of gpt gpt2-124m or gpt2-1.5b; of llama tinyllama-1.1b or llama3-8b; of "
                        "deepseek v2-lite or v3; of mamba2 mamba2-130m or mamba2-2.7b; of t5 t5-small or "
                        "t5-v1.1-small; for images published",
    [BUDGET - LAYERS] = "1 to 64 budgets separated by commas, as 75%,256MiB",
    [FIT - LAYERS] = "a size, as 4GiB or 1536MiB",
    [GROW - LAYERS] = "batch or seq",
    [COSTS - LAYERS] = "a file",
};

/* "none,full": a comma belongs to a policy's own list, so it cannot be followed by a policy. */
static bool joined_by_commas(const char *list)
{
    static const char *const first[] = { "none", "full", "selective:", "uniform:", "block:", "ops:", "names:",
                                         "discard:", "megatron:", "budget:", "total:" };
    bool found = false;
    for (const char *p = strchr(list, ','); p; p = strchr(p + 1, ','))
        for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
            const size_t n = strlen(first[i]);
            found |= !strncmp(p + 1, first[i], n) && (first[i][n - 1] == ':' || strchr(", \t\n", p[1 + n]));
        }
    return found;
}

static int refuse(int option, const char *value)
{
    if (option == POLICY && joined_by_commas(value)) {
        fprintf(stderr, "recompute_sweep: policies are separated by blanks, in quotes: --policy \"none full "
                        "selective:mlp,attn\"\n");
        return 3;
    }
    fprintf(stderr, "recompute_sweep: --%s takes %s, not \"%.80s\" (--help lists the options)\n",
            names[option - LAYERS].name, wanted[option - LAYERS], value);
    return 3;
}

/* option: the result of getopt_long(), '?' or ':'. */
static int refuse_word(const char *word, int option)
{
    fprintf(stderr, "recompute_sweep: %s: %s (--help lists the options)\n", word,
            option == ':' ? "a value is missing" : "unknown option, or the beginning of several");
    return 3;
}

static bool number(const char *text, int least, int most, int *ret)
{
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (errno || *end || end == text || n < least || n > most) return false;
    *ret = (int)n;
    return true;
}

static bool size(const char *text, int *ret)
{
    return number(text, 1, 1 << 24, ret);
}

static bool read_policies(struct sweep_options *o, const char *list)
{
    for (int i = 0; i < o->n_policies; i++) free(o->policies[i]);
    o->n_policies = 0;
    char *const copy = strdup(list);
    bool ok = copy;
    for (char *p = ok ? strtok(copy, " \t\n") : NULL; p && ok; p = strtok(NULL, " \t\n")) {
        ok = o->n_policies < SWEEP_MAX && (o->policies[o->n_policies] = strdup(p));
        o->n_policies += ok;
    }
    free(copy);
    return ok && o->n_policies > 0 && !joined_by_commas(list);
}

/* With the regions and tags that the model has: other names are refused. */
static const char *default_policies(enum model_kind kind)
{
    switch (kind) {
    case MODEL_MAMBA2: return "none full uniform:2 block:3 selective:ssd ops:linear";
    case MODEL_VGG16:
    case MODEL_UNET: return "none full uniform:2 block:3 discard:relu ops:conv2d";
    case MODEL_RESNET50:
    case MODEL_MOBILENET:
    case MODEL_DENSENET121: return "none full uniform:2 block:3 discard:bn ops:conv2d";
    default:
        return "none full uniform:2 block:3 selective:core_attn selective:mlp ops:linear,attention "
               "names:keep=qkv,attn_out";
    }
}

/* The column, from 1, of a comma without an entry before it, or of the end without a last entry; 0: none. */
static size_t find_gap(const char *list)
{
    bool filled = false;
    size_t i = 0;
    for (; list[i] && (filled || list[i] != ','); i++) filled = list[i] != ',' && (filled || !strchr(" \t\n", list[i]));
    return filled ? 0 : i + 1;
}

/* Each budget becomes a policy, after the existing ones. */
static bool read_budgets(struct sweep_options *o, const char *list)
{
    char *const copy = strdup(list);
    bool ok = copy;
    for (char *p = ok ? strtok(copy, ", \t\n") : NULL; p && ok; p = strtok(NULL, ", \t\n")) {
        const size_t n = strlen("budget:") + strlen(p) + 1;
        char *const policy = o->n_policies < SWEEP_MAX ? malloc(n) : NULL;
        if (!(ok = policy)) break;
        snprintf(policy, n, "budget:%s", p);
        o->policies[o->n_policies++] = policy;
    }
    free(copy);
    return ok;
}

static int take_budgets(struct sweep_options *o, const char *list)
{
    const size_t gap = find_gap(list);
    if (!gap) return read_budgets(o, list) ? 0 : refuse(BUDGET, list);
    fprintf(stderr, "recompute_sweep: --budget \"%.80s\", column %zu: a budget is missing; it takes %s\n", list, gap,
            wanted[BUDGET - LAYERS]);
    return 3;
}

/* 4GiB, 1.5MiB; a fraction of a byte is invalid. */
static bool read_size(const char *text, size_t *ret)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    char *end;
    const size_t digits = strspn(text, "0123456789.");
    double x = digits ? strtod(text, &end) : 0;
    for (size_t i = 0; digits && end == text + digits && i < sizeof units / sizeof *units; i++, x *= 1024) {
        if (strcmp(end, units[i])) continue;
        *ret = (size_t)x;
        return x >= 1 && x < 0x1p48;
    }
    return false;
}

static bool read_seqs(struct sweep_options *o, const char *list)
{
    o->n_seqs = 0;
    char *const copy = find_gap(list) ? NULL : strdup(list);
    bool ok = copy;
    for (char *p = ok ? strtok(copy, ", ") : NULL; p && ok; p = strtok(NULL, ", "))
        ok = o->n_seqs < SWEEP_MAX && size(p, &o->seqs[o->n_seqs++]);
    free(copy);
    return ok && o->n_seqs > 0;
}

/* The options from which the others start. */
static int take_base(struct sweep_options *o, int option, const char *value)
{
    bool ok = true;
    if (option == PRESET) o->preset = value;
    if (option == MODEL) {
        o->model.kind = MODEL_GPT;
        while (o->model.kind + 1 < MODEL_KINDS && strcmp(value, model_name(o->model.kind))) o->model.kind++;
        ok = !strcmp(value, model_name(o->model.kind));
    }
    return ok ? 0 : refuse(option, value);
}

static bool take_dtype(struct model_config *m, const char *value)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    m->dtype = RW_F32;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(value, rw_dtype_name(types[i]))) m->dtype = types[i];
    return !strcmp(value, rw_dtype_name(m->dtype));
}

static bool take_dropout(struct model_config *m, const char *value)
{
    char *end;
    m->dropout = strtof(value, &end);
    return end != value && !*end && m->dropout >= 0 && m->dropout < 1;
}

static bool take_attention(struct model_config *m, const char *value)
{
    m->scores = !strcmp(value, "scores");
    return m->scores || !strcmp(value, "flash");
}

static bool take_seed(struct sweep_options *o, const char *value)
{
    char *end;
    errno = 0;
    o->seed = strtoull(value, &end, 10);
    return !errno && end != value && !*end && !strchr(value, '-');
}

static bool is_device(const char *value)
{
    return !strcmp(value, "auto") || !strcmp(value, "cpu") || !strcmp(value, "cuda");
}

/* Applies one option. 0: go on; otherwise the exit status plus one. */
static int take(struct sweep_options *o, int option, const char *value)
{
    struct model_config *const m = &o->model;
    const bool has_layers = sweep_has_layers(o);
    bool ok = true;
    switch (option) {
    case LAYERS: ok = has_layers && number(value, 1, MODEL_MAX_LAYERS, &m->layers); break;
    case WIDTH: ok = size(value, &m->width); break;
    case HEADS: ok = has_layers && size(value, &m->heads); break;
    case KV_HEADS: ok = m->kind == MODEL_LLAMA && size(value, &m->kv_heads); break;
    case POLICY: ok = o->names_policies = read_policies(o, value); break;
    case SEQ: ok = o->names_seqs = read_seqs(o, value); break;
    case BATCH: ok = o->names_batch = size(value, &o->batch); break;
    case STEPS: ok = size(value, &o->steps); break;
    case THREADS: ok = number(value, 1, 1024, &o->threads); break;
    case DTYPE: ok = take_dtype(m, value); break;
    case DROPOUT: ok = has_layers && take_dropout(m, value); break;
    case ATTENTION: ok = has_layers && take_attention(m, value); break;
    case DEVICE: o->device = value, ok = is_device(value); break;
    case SEED: ok = take_seed(o, value); break;
    case DATA: o->data = value, ok = *value; break;
    case OUT: o->out = value, ok = *value && strlen(value) <= 4000; break;
    case FIT: ok = read_size(value, &o->fit); break;
    case GROW: o->fit_seq = !strcmp(value, "seq"), ok = o->fit_seq || !strcmp(value, "batch"); break;
    case COSTS: o->costs = value, ok = *value; break;
    case ADVISE: o->advise = true; break;
    case ALL: o->all = true; break;
    case MODEL: case PRESET: case BUDGET: break; /* read before the others, or after them */
    case 'h': case HELP: fputs(usage, stdout); return 1;
    default: return 3;
    }
    o->custom |= option == LAYERS || option == WIDTH || option == HEADS || option == KV_HEADS;
    return ok ? 0 : refuse(option, value);
}

/* One of the steps that the first is compared with has the larger batch. */
static int check_advised(const struct sweep_options *o)
{
    int longer = 0;
    for (int i = 1; i < o->n_seqs; i++) longer += o->seqs[i] > o->seqs[0];
    if (!o->advise || longer < CKPT_SCALED_STEPS_MAX) return 0;
    fprintf(stderr, "recompute_sweep: --advise: expected at most %d longer %ss than the first of --seq, got %d\n",
            CKPT_SCALED_STEPS_MAX - 1, sweep_seq_name(o), longer);
    return 3;
}

/* --fit answers one of the two sizes: it must not be given. --advise reads the batch itself. */
static int check_fit(const struct sweep_options *o)
{
    if (!o->fit || (o->fit_seq ? !o->names_seqs || o->n_seqs == 1 : !o->names_batch) || o->advise) return 0;
    if (o->fit_seq)
        fprintf(stderr, "recompute_sweep: --fit with --grow seq answers one %s: expected at most one in --seq, got "
                        "%d\n", sweep_seq_name(o), o->n_seqs);
    else fprintf(stderr, "recompute_sweep: --fit answers the batch: expected no --batch, got %d\n", o->batch);
    return 3;
}

/* Checks combinations of options. */
static int check(struct sweep_options *o)
{
    struct model_config *const m = &o->model;
    if (m->kind != MODEL_LLAMA) m->kv_heads = m->heads;
    if (o->all && !o->advise) {
        fprintf(stderr, "recompute_sweep: --all says how much --advise explains: give both\n");
        return 3;
    }
    if (m->kind == MODEL_MAMBA2 && m->scores) return refuse(ATTENTION, "scores (there is no attention)");
    if (m->kind == MODEL_DEEPSEEK && m->scores) return refuse(ATTENTION, "scores (latent attention is fused)");
    if ((!m->head_width && m->width % m->heads) || m->heads % m->kv_heads ||
        (m->kind == MODEL_LLAMA && m->width / m->heads % 2)) {
        fprintf(stderr, "recompute_sweep: width %d, %d heads, %d kv-heads: width must be a multiple of heads, "
                        "heads of kv-heads%s\n",
                m->width, m->heads, m->kv_heads, m->kind == MODEL_LLAMA ? ", and width / heads even" : "");
        return 3;
    }
    for (int i = 0; i < o->n_seqs; i++) {
        if (o->seqs[i] % model_side_step(m->kind)) {
            fprintf(stderr, "recompute_sweep: --seq %d: the sides that %s takes are multiples of %d\n", o->seqs[i],
                    model_name(m->kind), model_side_step(m->kind));
            return 3;
        }
        if ((int64_t)o->batch * o->seqs[i] <= INT32_MAX / 2) continue;
        fprintf(stderr, "recompute_sweep: expected at most 2^30 tokens in a step, got batch %d of %s %d\n", o->batch,
                sweep_seq_name(o), o->seqs[i]);
        return 3;
    }
    const int status = check_fit(o);
    return status ? status : check_advised(o);
}

static void note_command(struct sweep_options *o, int argc, char **argv)
{
    size_t n = (size_t)snprintf(o->command, sizeof o->command, "recompute_sweep");
    for (int i = 1; i < argc && n + 1 < sizeof o->command; i++) {
        o->command[n++] = ' ';
        sweep_put_word(o->command, sizeof o->command, &n, argv[i]);
    }
}

int sweep_options_read(struct sweep_options *o, int argc, char **argv)
{
    *o = (struct sweep_options){ .preset = "small", .device = "auto", .data = REWIND_DATA, .out = "out",
                                 .batch = 4, .steps = 20, .seed = 42 };
    note_command(o, argc, argv);
    int option, status = 0;
    /* First the model and the preset, wherever they are: the other options modify what these two set. */
    opterr = 0; /* prints its own message of one line */
    while (!status && (option = getopt_long(argc, argv, ":h", names, NULL)) != -1)
        status = option == '?' || option == ':' ? refuse_word(argv[optind - 1], option) : take_base(o, option, optarg);
    if (status) return status;
    if (!model_preset(&o->model, o->preset)) return refuse(PRESET, o->preset);
    o->model.dropout = o->model.kind == MODEL_GPT || o->model.kind == MODEL_T5 ? 0.1f : 0;
    read_seqs(o, model_is_of_images(o->model.kind) ? "64" : "256,512");
    read_policies(o, default_policies(o->model.kind));
    optind = 0; /* restarts getopt_long */
    while (!status && (option = getopt_long(argc, argv, ":h", names, NULL)) != -1) status = take(o, option, optarg);
    optind = 0; /* budgets follow the policies, wherever they were given */
    while (!status && (option = getopt_long(argc, argv, ":h", names, NULL)) != -1)
        if (option == BUDGET) status = take_budgets(o, optarg);
    if (!status && optind < argc) {
        fprintf(stderr, "recompute_sweep: unknown argument \"%s\" (--help lists the options; a list with blanks needs "
                        "quotes)\n",
                argv[optind]);
        status = 3;
    }
    return status ? status : check(o);
}

void sweep_options_finish(struct sweep_options *o)
{
    for (int i = 0; i < o->n_policies; i++) free(o->policies[i]);
}
