/*
 * Runs the example of each header (by_header.h) in a temporary folder.
 *
 *   by_header [NAME]      all of them, or that of rewind/NAME.h
 */
#include "by_header.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    bool (*run)(rw_context *ctx, rw_tape *t);
} examples[] = {
#define EXAMPLE_ROW(name) { #name, example_##name },
    EXAMPLES(EXAMPLE_ROW)
};

static bool run(size_t i)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    bool ok = !rw_context_create(&ctx, NULL) && !rw_tape_create(&t, ctx);
    printf("-- rewind/%s.h\n", examples[i].name);
    ok = ok && examples[i].run(ctx, t) && !rw_error_status(ctx);
    if (!ok) fprintf(stderr, "by_header: rewind/%s.h failed: %s\n", examples[i].name, rw_error_message(ctx));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return ok;
}

static int delete(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    return remove(path);
}

int main(int argc, char **argv)
{
    const char *const only = argc > 1 && strcmp(argv[1], "--quick") ? argv[1] : NULL;
    char folder[] = "/tmp/by_header_XXXXXX";
    if (!mkdtemp(folder) || chdir(folder)) {
        perror(folder);
        return 1;
    }
    size_t ran = 0, failed = 0;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        if (!only || !strcmp(only, examples[i].name)) ran++, failed += !run(i);
    nftw(folder, delete, 8, FTW_DEPTH | FTW_PHYS);
    printf("%zu examples, %zu failed\n", ran, failed);
    return !ran || failed || fflush(stdout) || ferror(stdout);
}
