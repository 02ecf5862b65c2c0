/* See unknown_entries.h. A safetensors file begins with eight bytes, the length of its JSON header in little-endian
   order; each member of that object is an entry. */
#include "unknown_entries.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES_MAX = 100 << 20 }; /* as in rw_load() */

/* The header as text; NULL if there is none. */
static char *read_header(const char *path)
{
    unsigned char length[8];
    FILE *const f = fopen(path, "rb");
    uint64_t n = 0;
    if (!f) return NULL;
    const bool has_length = fread(length, sizeof length, 1, f) == 1;
    for (int i = 0; has_length && i < 8; i++) n |= (uint64_t)length[i] << 8 * i;
    char *text = n && n <= HEADER_BYTES_MAX ? malloc((size_t)n + 1) : NULL;
    if (text && fread(text, (size_t)n, 1, f) == 1) text[n] = '\0';
    else free(text), text = NULL;
    fclose(f);
    return text;
}

/* Scales are created after the weights are loaded, and only by a run that uses them. */
static bool is_state(const char *name)
{
    return !strcmp(name, "__metadata__") || !strncmp(name, "rewind:", 7) || !strcmp(name, "scaler") ||
           !strcmp(name, "fp8.scale") || !strcmp(name, "fp8.history") || !strcmp(name, "fp8.amax");
}

size_t unknown_entries(const rw_context *ctx, const char *path, char *ret_first, size_t size)
{
    char *const text = read_header(path);
    cJSON *const json = text ? cJSON_Parse(text) : NULL;
    size_t n = 0;
    for (const cJSON *x = json ? json->child : NULL; x; x = x->next) {
        if (!x->string || is_state(x->string) || rw_param_find(ctx, x->string)) continue;
        if (!n++) snprintf(ret_first, size, "%s", x->string);
    }
    cJSON_Delete(json);
    free(text);
    return n;
}
