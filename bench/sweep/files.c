/* sweep.csv and sweep.json: the columns that bench/peers writes, and two more: what the process touched, and what was
   predicted. */
#include "sweep/sweep.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

FILE *sweep_open(const struct sweep_options *o, const char *name)
{
    char path[SWEEP_PATH];
    snprintf(path, sizeof path, "%s/%s", o->out, name);
    return fopen(path, "w");
}

bool sweep_close(FILE *f)
{
    const bool good = !fflush(f) && !ferror(f);
    const int error = errno;
    const bool closed = !fclose(f);
    if (!good) errno = error ? error : EIO;
    return good && closed;
}

bool sweep_write_csv(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    FILE *const f = sweep_open(o, "sweep.csv");
    if (!f) return false;
    fprintf(
        f,
        "model,preset,device,dtype,threads,batch,seq,policy,step_ms,ratio,kept_bytes,peak_bytes,"
        "predicted_peak_bytes,device_bytes,replayed_nodes,tflops,ceiling_tflops,utilisation_percent,loss,identical,"
        "resident_bytes,predicted_ms\n");
    for (int i = 0; i < n; i++) {
        const struct sweep_row *const r = &rows[i];
        fprintf(f, "%s,%s,%s,%s,%d,%d,%d,\"%s\",", model_name(o->model.kind), o->preset, o->device,
                rw_dtype_name(o->model.dtype), o->threads, o->batch, r->seq, r->policy);
        fprintf(f, "%.3f,%.4f,%zu,%zu,%zu,", r->step_ms, r->ratio, r->kept, r->peak, r->predicted);
        if (r->device) fprintf(f, "%zu", r->device);
        fprintf(f, ",%zu,%.5g,%.5g,%.2f,%.9g,%s,", r->replayed, r->tflops, o->ceiling, sweep_utilisation(o, r),
                r->loss, r->identical ? "true" : "false");
        if (r->resident) fprintf(f, "%zu", r->resident);
        fprintf(f, ",%.3f\n", r->predicted_ms);
    }
    return sweep_close(f);
}

static void add_row(cJSON *array, const struct sweep_options *o, const struct sweep_row *r)
{
    cJSON *const j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "model", model_name(o->model.kind));
    cJSON_AddStringToObject(j, "preset", o->preset);
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
    cJSON_AddItemToArray(array, j);
}

bool sweep_write_json(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    cJSON *const array = cJSON_CreateArray();
    for (int i = 0; i < n; i++) add_row(array, o, &rows[i]);
    char *const text = cJSON_Print(array);
    FILE *const f = text ? sweep_open(o, "sweep.json") : NULL;
    if (f) fprintf(f, "%s\n", text);
    const bool ok = f && sweep_close(f);
    cJSON_free(text);
    cJSON_Delete(array);
    return ok;
}
