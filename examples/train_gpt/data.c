/* See data.h. */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_WORDS = 256, MAGIC = 20240520, MAGIC_32 = 20240801 };

/* The file's magic number determines its format, not its name: a file of tokens read as text would be learned byte by
   byte, including the header. */
static bool is_tokens(const unsigned char *file, size_t n, const char *path)
{
    const size_t length = strlen(path);
    int32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, file, sizeof magic);
    if (magic == MAGIC_32)
        die("%s: expected tokens of 16 bits, got tokens of 32 bits, as llm.c writes them for Llama 3", path);
    if (magic != MAGIC && length > 4 && !strcmp(path + length - 4, ".bin"))
        die("%s: expected a file of tokens, which begins with llm.c's 20240520 (a text file must not be named .bin)",
            path);
    return magic == MAGIC;
}

/* llm.c's format: 256 words of 32 bits, which begin with 20240520, the version and the number of tokens; then the
   tokens. */
static size_t count_tokens(const unsigned char *file, size_t n, const char *path)
{
    int32_t head[HEAD_WORDS];
    if (n < sizeof head) die("%s: too short for a file of tokens", path);
    memcpy(head, file, sizeof head);
    const size_t there = (n - sizeof head) / sizeof(uint16_t), count = (size_t)(uint32_t)head[2];
    if (head[1] != 1) die("%s: expected a file of tokens of version 1, got another version", path);
    if (count > there) die("%s: the file of tokens is truncated", path);
    return count;
}

static void unpack(struct tokens *d, const unsigned char *file, size_t n, const char *path)
{
    const size_t head = HEAD_WORDS * sizeof(int32_t);
    d->bytes = !is_tokens(file, n, path);
    d->n = d->bytes ? n : count_tokens(file, n, path);
    d->t = malloc((d->n + 1) * sizeof *d->t);
    for (size_t i = 0; d->t && i < d->n; i++)
        d->t[i] = d->bytes ? file[i] : (uint16_t)(file[head + 2 * i] | file[head + 2 * i + 1] << 8);
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
    char text[500];
    if (d->n < (size_t)o.m.seq + 2) {
        snprintf(text, sizeof text, "%.300s: %zu tokens, at least %d are needed: --seq %d and two more%s", path, d->n,
                 o.m.seq + 2, o.m.seq, o.val ? "" : " (the last tenth of --data is held back for validation)");
        die("%s", text);
    }
    for (size_t i = 0; i < d->n; i++) {
        if (d->t[i] < o.vocab) continue;
        snprintf(text, sizeof text, "%.300s: token %d at %zu is beyond --vocab %d", path, d->t[i], i, o.vocab);
        die("%s", text);
    }
}

int top_token(const struct tokens *d)
{
    int top = 0;
    for (size_t i = 0; i < d->n; i++) top = d->t[i] > top ? d->t[i] : top;
    return top;
}

uint64_t digest_tokens(const struct tokens *d)
{
    uint64_t h = d->n;
    for (size_t i = 0; i < d->n; i++) h = (h ^ d->t[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    return h;
}

size_t count_windows(const struct tokens *d, size_t tokens)
{
    const size_t seq = (size_t)o.m.seq, most = (d->n - 1) / seq, asked = (tokens + seq - 1) / seq;
    return asked < most ? asked : most;
}

void fill_windows(const struct tokens *d, size_t of, size_t first, int n, int32_t *in, int32_t *out)
{
    const size_t seq = (size_t)o.m.seq, room = d->n - seq; /* a window begins at 0 to room - 1 */
    for (size_t b = 0; b < (size_t)n; b++) {
        const uint16_t *const from = d->t + (of > 1 ? (room - 1) / (of - 1) * (first + b) : 0);
        for (size_t i = 0; i < seq; i++) in[b * seq + i] = from[i], out[b * seq + i] = from[i + 1];
    }
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
    const size_t seq = (size_t)o.m.seq, batch = (size_t)o.batch;
    for (size_t b = 0; b < batch; b++) {
        const uint16_t *const from = d->t + number_of(seed, n * batch + b) % (d->n - seq);
        for (size_t i = 0; i < seq; i++) in[b * seq + i] = from[i], out[b * seq + i] = from[i + 1];
    }
}
