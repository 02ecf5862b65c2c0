/* sweep.csv and sweep.json: the same columns that bench/peers writes. */
#include "sweep.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *open_in(const struct sweep_options *o, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", o->out, name);
    return fopen(path, "w");
}

bool sweep_write_csv(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    FILE *const f = open_in(o, "sweep.csv");
    if (!f) return false;
    fprintf(f, "model,preset,device,dtype,threads,batch,seq,policy,step_ms,ratio,kept_bytes,peak_bytes,predicted_peak_bytes,"
               "replayed_nodes,loss,identical\n");
    for (int i = 0; i < n; i++) {
        const struct sweep_row *const r = &rows[i];
        fprintf(f, "%s,%s,%s,%s,%d,%d,%d,\"%s\",%.3f,%.4f,%zu,%zu,%zu,%zu,%.9g,%s\n", model_name(o->model.kind), o->preset, o->device,
                rw_dtype_name(o->model.dtype), o->threads, o->batch, r->seq, r->policy, r->step_ms, r->ratio, r->kept, r->peak,
                r->predicted, r->replayed, r->loss, r->identical ? "true" : "false");
    }
    return fclose(f) == 0;
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
    cJSON_AddNumberToObject(j, "replayed_nodes", (double)r->replayed);
    cJSON_AddNumberToObject(j, "loss", r->loss);
    cJSON_AddBoolToObject(j, "identical", r->identical);
    cJSON_AddItemToArray(array, j);
}

bool sweep_write_json(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    cJSON *const array = cJSON_CreateArray();
    for (int i = 0; i < n; i++) add_row(array, o, &rows[i]);
    char *const text = cJSON_Print(array);
    FILE *const f = text ? open_in(o, "sweep.json") : NULL;
    const bool ok = f && fprintf(f, "%s\n", text) > 0 && fclose(f) == 0;
    cJSON_free(text);
    cJSON_Delete(array);
    return ok;
}
