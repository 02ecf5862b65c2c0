/* See data.h. */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* llm.c: 256 words of 32 bits, which begin with 20240520, the version and the number of tokens; then the tokens. */
static void unpack(struct tokens *d, unsigned char *file, size_t n, const char *path)
{
    int32_t head[256];
    const size_t length = strlen(path);
    d->bytes = length < 4 || strcmp(path + length - 4, ".bin") != 0;
    if (!d->bytes) {
        if (n < sizeof head) die("%s: too short for a file of tokens", path);
        memcpy(head, file, sizeof head);
        d->n = (n - sizeof head) / sizeof(uint16_t);
        if (head[0] != 20240520 || head[1] != 1 || (size_t)(uint32_t)head[2] > d->n)
            die("%s: not a file of tokens, or cut off", path);
        d->n = (size_t)(uint32_t)head[2];
    } else {
        d->n = n;
    }
    d->t = malloc((d->n + 1) * sizeof *d->t);
    for (size_t i = 0; d->t && i < d->n; i++)
        d->t[i] = d->bytes ? file[i]
                           : (uint16_t)(file[sizeof head + 2 * i] | file[sizeof head + 2 * i + 1] << 8);
}

struct tokens read_tokens(const char *path)
{
    struct tokens d = { 0 };
    FILE *const f = fopen(path, "rb");
    unsigned char *file = NULL;
    long n = -1;
    if (f && !fseek(f, 0, SEEK_END) && (n = ftell(f)) >= 0) {
        rewind(f);
        file = malloc((size_t)n + 1);
        if (file && fread(file, 1, (size_t)n, f) == (size_t)n) unpack(&d, file, (size_t)n, path);
    }
    if (f) fclose(f);
    free(file);
    if (!d.t) die("%s: cannot be read", path);
    return d;
}

void check_tokens(const struct tokens *d, const char *path)
{
    if (d->n < (size_t)o.m.seq + 2) die("%s: fewer tokens than a sequence has", path);
    for (size_t i = 0; i < d->n; i++)
        if (d->t[i] >= o.vocab) die("%s: a token beyond --vocab", path);
}

/* splitmix64 */
uint64_t number_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void fill_batch(const struct tokens *d, uint64_t seed, uint64_t n, int32_t *in, int32_t *out)
{
    const int seq = o.m.seq;
    for (int b = 0; b < o.batch; b++) {
        const uint16_t *const from = d->t + number_of(seed, n * (uint64_t)o.batch + (uint64_t)b) %
                                                (d->n - (size_t)seq);
        for (int i = 0; i < seq; i++) in[b * seq + i] = from[i], out[b * seq + i] = from[i + 1];
    }
}
