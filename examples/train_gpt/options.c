/* Parses and checks the options. */
#include "options.h"

#include "paths.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "train_gpt: trains GPT-2 or a Llama.\n\n"
    "  --preset P            tiny, gpt2-124m, gpt2-350m, llama-tiny, llama-110m, llama-1b [tiny]; sizes over it:\n"
    "  --layers N --width N --heads N --kv-heads N --hidden N --seq N --vocab N\n"
    "  --data FILE           text, byte by byte, or a .bin file of tokens as llm.c writes them [the shipped text]\n"
    "  --val FILE            to evaluate on [the last tenth of the data]\n"
    "  --batch N --accum N   sequences at a time, and so many times before an update [8, 1]\n"
    "  --dtype T             of the weights: f32, bf16, f16 (with dynamic loss scaling); master copies and gradients\n"
    "                        are float32. fp8: float32 weights, the blocks' products of 8-bit codes, the last one's\n"
    "                        of bf16 [f32]\n"
    "  --scaling S           of --dtype fp8: tensor, 1x128, mx, delayed [tensor]\n"
    "  --policy P            what is kept for backward: none, full, selective:mlp, budget:60%, budget:2GiB ... [full]\n"
    "  --graph               the step is recorded once and launched; for --accum 1\n"
    "  --update-inside       with --graph: parameters are updated inside backward, gradients take little memory, and\n"
    "                        backward runs twice: to clip, and to scale the loss, it has to see them all\n"
    "  --steps N             stop there [200]\n"
    "  --total-steps N       the schedule's length [--steps]\n"
    "  --optimizer O         adamw, adam, sgd, lion [adamw]\n"
    "  --moments T           of adamw and adam: f32, or bf16, which takes half of their memory [f32]\n"
    "  --schedule S          cosine, linear, constant [cosine]\n"
    "  --lr X --min-lr X --warmup N --decay X --clip X --dropout X   [1e-3, a tenth, total / 20, 0.1, 1, 0.1]\n"
    "  --eval-every N --eval-tokens N   the validation loss, on N tokens in evenly spaced windows, the same in each\n"
    "                        run; 0: never [100, 64 windows of --seq]\n"
    "  --checkpoint DIR --save-every N --keep N   checkpoints, every so many steps and at the end [none, 100, 3]\n"
    "                        of a run of its own: a folder with checkpoints is refused, but for --resume of it\n"
    "  --replace-checkpoints they may be another run's: each is removed when --keep newer ones are there\n"
    "  --resume DIR          go on from the newest whole checkpoint there; one must be there\n"
    "  --resume-if-there     with --resume: begin from the beginning where there is none\n"
    "  --log FILE            a line of JSON for each step; it is added to\n"
    "  --tensorboard DIR --prometheus FILE  the same for others to read\n"
    "  --peak-flops X        what the machine can do in a second: the log says which share of it the run takes\n"
    "  --dashboard FILE      a page for a browser, renewed while the run goes on; a run that goes on takes what was\n"
    "                        before from --log\n"
    "  --good FILE           the --log of a run that is known to be good: the page shows it, too\n"
    "  --on ALERT=WHAT       note, skip (the update), lower (the rate to a half), roll_back (to the last checkpoint,\n"
    "                        and lower), stop; again for each alert. slow_step, updates and zeros come after the\n"
    "                        update, and cannot skip it [loss_nonfinite=stop, grad_nonfinite=skip,\n"
    "                        with --graph stop, of f16 note; others note]. Stopped by numbers that are not finite:\n"
    "                        status 3, nothing is saved; by another alert: status 4, saved as at the last step\n"
    "  --load FILE --save FILE   weights before and after, safetensors. SIGINT, SIGTERM and SIGHUP finish the step\n"
    "                        and save: status 130, 143 and 129\n"
    "  --load-hf FILE        weights of a GPT-2 or a Llama as Hugging Face names them, in one file of the type of\n"
    "                        --dtype; the config.json beside it must be one that is implemented, --vocab, --seq and\n"
    "                        sizes its own\n"
    "  --sample N --temperature X           bytes, or tokens as numbers, written at the end [200, 0.8]\n"
    "  --seed N --threads N  [42, all]\n"
    "  --quick               a few steps of a tiny model\n";

static const struct size presets[] = {
    { "tiny", false, 4, 4, 0, 128, 512, 128, false },
    { "gpt2-124m", false, 12, 12, 0, 768, 3072, 1024, false },
    { "gpt2-350m", false, 24, 16, 0, 1024, 4096, 1024, false },
    { "llama-tiny", true, 4, 4, 2, 128, 352, 128, false },
    { "llama-110m", true, 12, 12, 12, 768, 2048, 1024, false },
    { "llama-1b", true, 16, 32, 8, 2048, 8192, 2048, false },
};

struct options o = {
    .data = REWIND_DATA,
    .policy = "full",
    .optimizer = "adamw",
    .schedule = "cosine",
    .batch = 8,
    .accum = 1,
    .steps = 200,
    .warmup = -1,
    .eval_every = 100,
    .eval_tokens = -1,
    .save_every = 100,
    .keep = 3,
    .sample = 200,
    .lr = 1e-3,
    .min_lr = -1,
    .decay = 0.1,
    .clip = 1,
    .dropout = 0.1,
    .temperature = 0.8,
    .seed = 42,
    .on = { RW_RECOVERY_STOP },
    .lock = -1,
};

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "train_gpt: ");
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

static double number(const char *option, double least, double most)
{
    char *end, text[128];
    const bool whole = least == floor(least) && most == floor(most) && most > 1;
    const double x = strtod(optarg, &end);
    if (end != optarg && !*end && x >= least && x <= most && (!whole || x == floor(x))) return x;
    snprintf(text, sizeof text, "--%.20s takes a %snumber from %g to %g, not \"%.40s\"", option, whole ? "whole " : "",
             least, most, optarg);
    die("%s", text);
    return 0;
}

static const char *one_of(const char *option, const char *words)
{
    char text[200];
    for (const char *w = words; *w; w += strspn(w, " ")) {
        const size_t n = strcspn(w, " ");
        if (strlen(optarg) == n && !strncmp(w, optarg, n)) return optarg;
        w += n;
    }
    snprintf(text, sizeof text, "--%.20s takes one of %.80s, not \"%.40s\"", option, words, optarg);
    die("%s", text);
    return NULL;
}

static void read_preset(void)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (!strcmp(optarg, presets[i].preset)) o.m = presets[i];
    if (!strcmp(optarg, o.m.preset)) return;
    fprintf(stderr, "train_gpt: --preset takes one of");
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) fprintf(stderr, " %s", presets[i].preset);
    fprintf(stderr, ", not \"%s\"\n", optarg);
    exit(2);
}

static rw_dtype read_dtype(void)
{
    const char *const word = one_of("dtype", "f32 bf16 f16 fp8");
    o.fp8 = !strcmp(word, "fp8");
    return !strcmp(word, "bf16") ? RW_BF16 : !strcmp(word, "f16") ? RW_F16 : RW_F32;
}

static void read_scaling(void)
{
    const char *const word = one_of("scaling", "tensor 1x128 mx delayed");
    o.delayed = !strcmp(word, "delayed");
    o.scaling = !strcmp(word, "1x128") ? RW_SCALING_1X128 : !strcmp(word, "mx") ? RW_SCALING_MX : RW_SCALING_TENSOR;
}

static bool said[ALERTS]; /* by --on */

static void refuse_policy(void)
{
    fprintf(stderr, "train_gpt: --on takes ALERT=WHAT, not \"%s\". WHAT is one of", optarg);
    for (int i = 0; i <= RW_RECOVERY_STOP; i++) fprintf(stderr, " %s", rw_recovery_name((rw_recovery)i));
    fprintf(stderr, ", ALERT one of");
    for (int i = 0; i < ALERTS; i++) fprintf(stderr, " %s", rw_alert_name(1u << i));
    fprintf(stderr, "\n");
    exit(2);
}

static void read_policy(void)
{
    const char *const what = strchr(optarg, '=');
    int alert = 0, recovery = 0;
    const size_t n = what ? (size_t)(what - optarg) : 0;
    for (; alert < ALERTS; alert++) {
        const char *const name = rw_alert_name(1u << alert);
        if (strlen(name) == n && !strncmp(name, optarg, n)) break;
    }
    while (what && recovery <= RW_RECOVERY_STOP && strcmp(rw_recovery_name((rw_recovery)recovery), what + 1))
        recovery++;
    if (!what || alert == ALERTS || recovery > RW_RECOVERY_STOP) refuse_policy();
    o.on[alert] = (rw_recovery)recovery;
    said[alert] = true;
}

/* Gradients that are not finite ruin the weights: their update must be skipped. A graph has already updated; a scaler
   skips it by itself, and continues. */
static void choose_rest(void)
{
    for (int i = 0; i < ALERTS; i++)
        if (!said[i] && 1u << i == RW_ALERT_GRAD_NONFINITE && o.dtype != RW_F16)
            o.on[i] = o.graph ? RW_RECOVERY_STOP : RW_RECOVERY_SKIP;
}

/* Numbers by name; the sizes of the model are applied after the preset and --quick, wherever those are. */
static const struct {
    const char *name;
    int *whole;
    double *real;
    double least, most;
} numbers[] = {
    { "layers", &o.m.layers, 0, 1, MAX_LAYERS },    { "width", &o.m.width, 0, 2, 65536 },
    { "heads", &o.m.heads, 0, 1, 1024 },            { "kv-heads", &o.m.kv_heads, 0, 1, 1024 },
    { "hidden", &o.m.hidden, 0, 1, 1 << 20 },       { "seq", &o.m.seq, 0, 2, 1 << 20 },
    { "vocab", &o.vocab, 0, 2, 65536 },             { "batch", &o.batch, 0, 1, 65536 },
    { "accum", &o.accum, 0, 1, 1 << 20 },           { "steps", &o.steps, 0, 0, 1e9 },
    { "total-steps", &o.total, 0, 1, 1e9 },         { "warmup", &o.warmup, 0, 0, 1e9 },
    { "eval-every", &o.eval_every, 0, 1, 1e9 },     { "eval-tokens", &o.eval_tokens, 0, 0, 1e9 },
    { "save-every", &o.save_every, 0, 1, 1e9 },     { "keep", &o.keep, 0, 1, 1e6 },
    { "sample", &o.sample, 0, 0, 1e6 },             { "threads", &o.threads, 0, 1, RW_MAX_THREADS },
    { "lr", 0, &o.lr, 1e-12, 1e3 + 0.5 },           { "min-lr", 0, &o.min_lr, 0, 1e3 + 0.5 },
    { "decay", 0, &o.decay, 0, 1e3 + 0.5 },         { "clip", 0, &o.clip, 1e-12, 1e9 + 0.5 },
    { "dropout", 0, &o.dropout, 0, 0.99 },          { "temperature", 0, &o.temperature, 0.01, 100.5 },
    { "peak-flops", 0, &o.peak, 0, 1e30 },
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static const struct {
    const char *name;
    const char **text;
} texts[] = { { "data", &o.data }, { "val", &o.val }, { "policy", &o.policy }, { "checkpoint", &o.checkpoint },
              { "resume", &o.resume }, { "load", &o.load }, { "save", &o.save }, { "log", &o.log },
              { "tensorboard", &o.tensorboard }, { "prometheus", &o.prometheus }, { "dashboard", &o.dashboard },
              { "good", &o.good }, { "load-hf", &o.load_hf } };
enum { TEXTS = sizeof texts / sizeof *texts };

static void quick(void)
{
    o.steps = 3, o.m.layers = 2, o.m.width = 64, o.m.seq = 32, o.m.hidden = 128, o.sample = 20, o.eval_tokens = 256;
}

/* Applies one option, or ends the program with a message. */
static void take(const char *name, int index)
{
    if (index < NUMBERS) {
        const double x = number(name, numbers[index].least, numbers[index].most);
        if (numbers[index].whole) *numbers[index].whole = (int)x;
        else *numbers[index].real = x;
    } else if (index < NUMBERS + TEXTS) {
        *texts[index - NUMBERS].text = optarg;
    } else if (!strcmp(name, "dtype")) {
        o.dtype = read_dtype();
    } else if (!strcmp(name, "scaling")) {
        read_scaling();
    } else if (!strcmp(name, "optimizer")) {
        o.optimizer = one_of(name, "adamw adam sgd lion");
    } else if (!strcmp(name, "moments")) {
        o.moments = strcmp(one_of(name, "f32 bf16"), "bf16") ? RW_F32 : RW_BF16;
    } else if (!strcmp(name, "schedule")) {
        o.schedule = one_of(name, "cosine linear constant");
    } else if (!strcmp(name, "seed")) {
        o.seed = (uint64_t)number(name, 0, 9007199254740992.0);
    } else if (!strcmp(name, "on")) {
        read_policy();
    } else if (!strcmp(name, "graph")) {
        o.graph = true;
    } else if (!strcmp(name, "update-inside")) {
        o.inside = true;
    } else if (!strcmp(name, "resume-if-there")) {
        o.resume_if_there = true;
    } else if (!strcmp(name, "replace-checkpoints")) {
        o.replace = true;
    } else if (!strcmp(name, "help")) {
        exit(fputs(usage, stdout) < 0);
    }
}

static void die_of(const char *option, const char *path, const char *why)
{
    char text[400];
    snprintf(text, sizeof text, "%s %.200s: %s", option, path, why);
    die("%s", text);
}

/* Checks files that the program writes or reads, before hours of training and not after. */
static void check_files(void)
{
    const struct path_option files[] = {
        { "--save", o.save, PATH_OUTPUT },             { "--dashboard", o.dashboard, PATH_OUTPUT },
        { "--data", o.data, PATH_INPUT },              { "--prometheus", o.prometheus, PATH_OUTPUT },
        { "--val", o.val, PATH_INPUT },                { "--good", o.good, PATH_INPUT },
        { "--load", o.load, PATH_INPUT },              { "--load-hf", o.load_hf, PATH_INPUT },
        { "--log", o.log, PATH_LOG },                  { "--tensorboard", o.tensorboard, PATH_FOLDER },
        { "--checkpoint", o.checkpoint, PATH_FOLDER }, { "--resume", o.resume, PATH_FOLDER }
    };
    enum { FILES = sizeof files / sizeof *files };
    char text[400];
    for (int i = 0; i < FILES; i++) {
        const char *const why = path_option_fault(&files[i]);
        if (why) die_of(files[i].option, files[i].path, why);
    }
    struct stat s;
    if (o.tensorboard && !stat(o.tensorboard, &s) && !S_ISDIR(s.st_mode))
        die_of("--tensorboard", o.tensorboard, "not a folder");
    if (path_shared_fault(files, FILES, text, sizeof text)) die("%s", text);
}

/* The lock comes before the count of the checkpoints in it: a run that has not saved yet has none. */
static void check_folder(const char *path)
{
    struct stat s;
    bool taken;
    if (!path) return;
    if (mkdir(path, 0777) && errno != EEXIST) die_of("--checkpoint", path, strerror(errno));
    if (stat(path, &s) || !S_ISDIR(s.st_mode)) die_of("--checkpoint", path, "not a folder");
    if (access(path, W_OK | X_OK)) die_of("--checkpoint", path, "cannot be written to");
    o.lock = path_lock_folder(path, &taken);
    if (taken) die_of("--checkpoint", path, "another run saves to this folder");
}

/* Two runs must not share a folder by mistake: retention would remove the files of the first, and a roll-back would
   load them. */
static void check_checkpoints(void)
{
    char text[200];
    const size_t resumable = o.resume ? path_count_checkpoints(o.resume) : 0;
    if (o.resume && !resumable && !o.resume_if_there)
        die_of("--resume", o.resume, "no checkpoint there; --resume-if-there begins a new run then");
    if (o.resume_if_there && !o.resume) die("%s", "--resume-if-there needs --resume DIR");
    if (o.resume && (o.load || o.load_hf) && !o.resume_if_there)
        die("%s: expected no other weights than those of --resume; with --resume-if-there a run that begins from the "
            "beginning loads them", o.load ? "--load" : "--load-hf");
    check_folder(o.checkpoint);
    const size_t others = o.checkpoint ? path_count_checkpoints(o.checkpoint) : 0;
    if (!others || o.replace || (o.resume && path_is_same(o.resume, o.checkpoint))) return;
    snprintf(text, sizeof text, "%zu checkpoints of another run are there: --resume continues that run, "
             "--replace-checkpoints allows their removal", others);
    die_of("--checkpoint", o.checkpoint, text);
}

/* A rate that rises to --min-lr, or that never reaches --lr, is certainly a mistake. */
static void check_rates(void)
{
    const int total = o.total ? o.total : o.steps;
    if (o.min_lr > o.lr) die("--min-lr: expected at most --lr %g, got %g", o.lr, o.min_lr);
    if (o.warmup > total && o.warmup > o.steps) /* a schedule is never shorter than its warm-up */
        fprintf(stderr, "train_gpt: --warmup %d is longer than the run of %d steps: the rate never reaches --lr\n",
                o.warmup, o.steps);
}

void read_options(int argc, char **argv)
{
    const unsigned after_update = RW_ALERT_SLOW_STEP | RW_ALERT_UPDATES | RW_ALERT_ZEROS;
    static const char *const rest[] = { "preset", "dtype", "scaling", "optimizer", "moments", "schedule", "seed", "on",
                                        "graph", "update-inside", "resume-if-there", "replace-checkpoints", "quick",
                                        "help" };
    enum { REST = sizeof rest / sizeof *rest };
    struct option names[NUMBERS + TEXTS + REST + 1] = { 0 };
    int n = 0, index = 0;
    for (int i = 0; i < NUMBERS; i++) names[n++] = (struct option){ numbers[i].name, 1, 0, 0 };
    for (int i = 0; i < TEXTS; i++) names[n++] = (struct option){ texts[i].name, 1, 0, 0 };
    for (int i = 0; i < REST; i++) names[n++] = (struct option){ rest[i], i < 8, 0, 0 };
    bool is_quick = false;
    opterr = 0; /* prints its own message of one line */
    o.m = presets[0];
    for (int pass = 0; pass < 2; pass++) {
        optind = 1;
        if (pass == 1 && is_quick) quick();
        for (int c; (c = getopt_long(argc, argv, ":h", names, &index)) != -1;) {
            if (c == 'h') exit(fputs(usage, stdout) < 0);
            if (c == '?') die("%s: unknown option, or the beginning of several (--help lists them)", argv[optind - 1]);
            if (c == ':') die("%s: a value is missing (--help lists the options)", argv[optind - 1]);
            if (pass == 0 && !strcmp(names[index].name, "preset")) read_preset();
            is_quick |= !strcmp(names[index].name, "quick");
            if (pass == 1) take(names[index].name, index);
        }
    }
    if (!o.m.kv_heads) o.m.kv_heads = o.m.heads;
    if (optind < argc) die("unknown argument \"%s\"; --help lists the options", argv[optind]);
    if ((int64_t)o.batch * o.m.seq > STEP_TOKENS)
        die("%s", "--batch, --seq: expected at most 2^30 tokens at a time; use --accum for more");
    if (o.m.width % o.m.heads || o.m.width / o.m.heads % 2)
        die("--width: expected an even multiple of --heads %d, got %d", o.m.heads, o.m.width);
    if (o.m.heads % o.m.kv_heads) die("--heads: expected a multiple of --kv-heads %d, got %d", o.m.kv_heads, o.m.heads);
    choose_rest();
    check_rates();
    for (int i = 0; i < ALERTS; i++) {
        if (o.graph && o.on[i] == RW_RECOVERY_SKIP)
            die("%s", "--on ALERT=skip cannot be used with --graph, which updates before the alert");
        if (o.on[i] == RW_RECOVERY_SKIP && (after_update >> i & 1))
            die("--on %s=skip: expected another action, because the update comes before this alert",
                rw_alert_name(1u << i));
        if (!o.checkpoint && o.on[i] == RW_RECOVERY_ROLL_BACK) die("%s", "--on ALERT=roll_back needs --checkpoint DIR");
    }
    if ((o.delayed || o.scaling) && !o.fp8) die("%s", "--scaling needs --dtype fp8");
    if (o.moments && o.optimizer[0] != 'a') die("--moments needs --optimizer adamw or adam, got %s", o.optimizer);
    if (o.inside && !o.graph) die("%s", "--update-inside needs --graph");
    if (o.graph && o.accum > 1) die("%s", "--graph needs --accum 1");
    check_files();
    check_checkpoints();
}
