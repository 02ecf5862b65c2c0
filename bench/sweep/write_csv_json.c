/* Writes sweep.csv and sweep.json: the columns of bench/peers and more: resident memory, predictions, and everything on
   which a row depends, with the command that reproduces it. */
#include "sweep/sweep_structs.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRIES = 100 };

/* Of the open file: there is one at a time. */
static char part[SWEEP_PATH + 64];

/* The file that is replaced, with links resolved. */
static void path_of(const struct sweep_options *o, const char *name, char path[SWEEP_PATH])
{
    snprintf(path, SWEEP_PATH, "%s/%s", o->out, name);
    char *const real = realpath(path, NULL);
    if (real && strlen(real) < SWEEP_PATH) snprintf(path, SWEEP_PATH, "%s", real);
    free(real);
}

/* An existing file, whatever it is, is not touched. A sweep that is killed leaves at most one such file. */
FILE *sweep_open(const struct sweep_options *o, const char *name)
{
    char path[SWEEP_PATH];
    FILE *f = NULL;
    path_of(o, name, path);
    errno = EEXIST;
    for (int i = 0; !f && errno == EEXIST && i < TRIES; i++) {
        snprintf(part, sizeof part, "%s.%ld.%d.part", path, (long)getpid(), i);
        f = fopen(part, "wx");
    }
    return f;
}

bool sweep_close(FILE *f, const struct sweep_options *o, const char *name)
{
    char path[SWEEP_PATH];
    path_of(o, name, path);
    errno = 0;
    const bool whole = !fflush(f) && !ferror(f);
    int error = errno;
    const bool closed = !fclose(f);
    if (whole && closed && !rename(part, path)) return true;
    if (whole) error = errno;
    unlink(part);
    errno = error ? error : EIO;
    return false;
}

static void put(char *text, size_t size, size_t *n, const char *word)
{
    if (*n < size) *n += (size_t)snprintf(text + *n, size - *n, "%s", word);
}

void sweep_put_word(char *text, size_t size, size_t *n, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+=:,./%@";
    const bool is_plain = *word && !word[strspn(word, plain)];
    if (!is_plain) put(text, size, n, "'");
    for (; !is_plain && *word; word++) put(text, size, n, *word == '\'' ? "'\\''" : (const char[]){ *word, '\0' });
    put(text, size, n, is_plain ? word : "'");
}

static void put_text(char *text, size_t size, size_t *n, const char *option, const char *value)
{
    put(text, size, n, " --");
    put(text, size, n, option);
    put(text, size, n, " ");
    sweep_put_word(text, size, n, value);
}

static void put_int(char *text, size_t size, size_t *n, const char *option, int value)
{
    if (*n < size) *n += (size_t)snprintf(text + *n, size - *n, " --%s %d", option, value);
}

/* The fewest digits that give the same float: 0.1, not 0.100000001. */
static void dropout_text(float dropout, char text[32])
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, 32, "%.*g", digits, (double)dropout);
        if (strtof(text, NULL) == dropout) return;
    }
}

void sweep_row_command(const struct sweep_options *o, const struct sweep_row *r, char *text, size_t size)
{
    const struct model_config *const m = &o->model;
    const bool has_layers = sweep_has_layers(o);
    const char *const store = getenv("REWIND_OFFLOAD");
    char dropout[32];
    size_t n = 0;
    if (store && *store) {
        put(text, size, &n, "REWIND_OFFLOAD=");
        sweep_put_word(text, size, &n, store);
        put(text, size, &n, " ");
    }
    put(text, size, &n, "recompute_sweep");
    put_text(text, size, &n, "model", model_name(m->kind));
    put_text(text, size, &n, "preset", o->preset);
    if (o->custom && has_layers) put_int(text, size, &n, "layers", m->layers);
    if (o->custom) put_int(text, size, &n, "width", m->width);
    if (o->custom && has_layers) put_int(text, size, &n, "heads", m->heads);
    if (o->custom && m->kind == MODEL_LLAMA) put_int(text, size, &n, "kv-heads", m->kv_heads);
    put_text(text, size, &n, "dtype", rw_dtype_name(m->dtype));
    dropout_text(m->dropout, dropout);
    if (has_layers) put_text(text, size, &n, "dropout", dropout);
    if (has_layers) put_text(text, size, &n, "attention", m->scores ? "scores" : "flash");
    if (n < size) n += (size_t)snprintf(text + n, size - n, " --seed %llu", (unsigned long long)o->seed);
    put_int(text, size, &n, "batch", o->batch);
    put_int(text, size, &n, "seq", r->seq);
    put_int(text, size, &n, "steps", o->steps);
    put_int(text, size, &n, "threads", o->threads);
    put_text(text, size, &n, "device", o->device);
    if (strcmp(o->data, REWIND_DATA)) put_text(text, size, &n, "data", o->data);
    put_text(text, size, &n, "costs", o->costs); /* plans of budgets depend on them */
    put_text(text, size, &n, "policy", r->policy);
}

/* Writes a field of CSV. */
static void put_field(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

bool sweep_write_csv(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    FILE *const f = sweep_open(o, "sweep.csv");
    if (!f) return false;
    fprintf(
        f,
        "model,preset,device,dtype,threads,batch,seq,policy,step_ms,ratio,kept_bytes,peak_bytes,"
        "predicted_peak_bytes,device_bytes,replayed_nodes,tflops,ceiling_tflops,utilisation_percent,loss,identical,"
        "resident_bytes,predicted_ms,layers,width,heads,kv_heads,dropout,attention,seed,steps,command\n");
    for (int i = 0; i < n; i++) {
        const struct sweep_row *const r = &rows[i];
        const struct model_config *const m = &o->model;
        char command[SWEEP_COMMAND], dropout[32] = "";
        fprintf(f, "%s,%s,%s,%s,%d,%d,%d,", model_name(m->kind), o->custom ? "custom" : o->preset, o->device,
                rw_dtype_name(m->dtype), o->threads, o->batch, r->seq);
        put_field(f, r->policy);
        fputc(',', f);
        fprintf(f, "%.3f,%.4f,%zu,%zu,%zu,", r->step_ms, r->ratio, r->kept, r->peak, r->predicted);
        if (r->device) fprintf(f, "%zu", r->device);
        fprintf(f, ",%zu,%.5g,%.5g,%.2f,%.9g,%s,", r->replayed, r->tflops, o->ceiling, sweep_utilisation(o, r),
                r->loss, r->identical ? "true" : "false");
        if (r->resident) fprintf(f, "%zu", r->resident);
        if (sweep_has_dropout(o)) dropout_text(sweep_dropout(o), dropout);
        fprintf(f, ",%.3f,", r->predicted_ms);
        if (sweep_has_layers(o)) fprintf(f, "%d,%d,%d,%d,", m->layers, m->width, m->heads, m->kv_heads);
        else fprintf(f, ",%d,,,", m->width);
        fprintf(f, "%s,%s,%llu,%d,", dropout, !sweep_has_attention(o) ? "" : m->scores ? "scores" : "flash",
                (unsigned long long)o->seed, o->steps);
        sweep_row_command(o, r, command, sizeof command);
        put_field(f, command);
        fputc('\n', f);
    }
    return sweep_close(f, o, "sweep.csv");
}

static void add_if(cJSON *j, const char *name, bool has, double value)
{
    if (has) cJSON_AddNumberToObject(j, name, value);
    else cJSON_AddNullToObject(j, name);
}

/* Null for a property that the model does not have, or that is not one number. */
static void add_model(cJSON *j, const struct sweep_options *o)
{
    const struct model_config *const m = &o->model;
    const bool has_layers = sweep_has_layers(o);
    char dropout[32];
    dropout_text(sweep_dropout(o), dropout);
    add_if(j, "layers", has_layers, m->layers);
    add_if(j, "width", true, m->width);
    add_if(j, "heads", has_layers, m->heads);
    add_if(j, "kv_heads", has_layers, m->kv_heads);
    add_if(j, "dropout", sweep_has_dropout(o), strtod(dropout, NULL));
    if (sweep_has_attention(o)) cJSON_AddStringToObject(j, "attention", m->scores ? "scores" : "flash");
    else cJSON_AddNullToObject(j, "attention");
}

/* Appends a row to the array of sweep.json. */
static void add_row(cJSON *array, const struct sweep_options *o, const struct sweep_row *r)
{
    cJSON *const j = cJSON_CreateObject();
    char text[SWEEP_COMMAND];
    cJSON_AddStringToObject(j, "model", model_name(o->model.kind));
    cJSON_AddStringToObject(j, "preset", o->custom ? "custom" : o->preset);
    cJSON_AddStringToObject(j, "device", o->device);
    cJSON_AddStringToObject(j, "dtype", rw_dtype_name(o->model.dtype));
    cJSON_AddNumberToObject(j, "threads", o->threads);
    cJSON_AddNumberToObject(j, "batch", o->batch);
    cJSON_AddNumberToObject(j, "seq", r->seq);
    cJSON_AddStringToObject(j, "policy", r->policy);
    cJSON_AddNumberToObject(j, "step_ms", r->step_ms);
    cJSON_AddNumberToObject(j, "ratio", r->ratio);
    cJSON_AddNumberToObject(j, "kept_bytes", (double)r->kept);
    cJSON_AddNumberToObject(j, "peak_bytes", (double)r->peak);
    cJSON_AddNumberToObject(j, "predicted_peak_bytes", (double)r->predicted);
    if (r->device) cJSON_AddNumberToObject(j, "device_bytes", (double)r->device);
    else cJSON_AddNullToObject(j, "device_bytes");
    cJSON_AddNumberToObject(j, "replayed_nodes", (double)r->replayed);
    cJSON_AddNumberToObject(j, "tflops", r->tflops);
    cJSON_AddNumberToObject(j, "ceiling_tflops", o->ceiling);
    cJSON_AddNumberToObject(j, "utilisation_percent", sweep_utilisation(o, r));
    cJSON_AddNumberToObject(j, "loss", r->loss);
    cJSON_AddBoolToObject(j, "identical", r->identical);
    if (r->resident) cJSON_AddNumberToObject(j, "resident_bytes", (double)r->resident);
    else cJSON_AddNullToObject(j, "resident_bytes");
    cJSON_AddNumberToObject(j, "predicted_ms", r->predicted_ms);
    add_model(j, o);
    snprintf(text, sizeof text, "%llu", (unsigned long long)o->seed); /* a double has 53 bits */
    cJSON_AddStringToObject(j, "seed", text);
    cJSON_AddNumberToObject(j, "steps", o->steps);
    sweep_row_command(o, r, text, sizeof text);
    cJSON_AddStringToObject(j, "command", text);
    cJSON_AddItemToArray(array, j);
}

bool sweep_write_json(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    cJSON *const array = cJSON_CreateArray();
    for (int i = 0; i < n; i++) add_row(array, o, &rows[i]);
    char *const text = cJSON_Print(array);
    FILE *const f = text ? sweep_open(o, "sweep.json") : NULL;
    if (f) fprintf(f, "%s\n", text);
    const bool ok = f && sweep_close(f, o, "sweep.json");
    cJSON_free(text);
    cJSON_Delete(array);
    return ok;
}
