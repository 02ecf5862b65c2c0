/* Helpers that the libFuzzer harnesses share. Each harness is a program of its own: scripts/fuzz.sh builds and runs
   them. */
#ifndef FUZZ_H
#define FUZZ_H

#include <rewind/rewind.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A condition that must hold; if not, libFuzzer keeps the input. */
#define HOLDS(condition, ...)                                        \
    do {                                                             \
        if (!(condition)) {                                          \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
            fprintf(stderr, __VA_ARGS__);                            \
            fputc('\n', stderr);                                     \
            abort();                                                 \
        }                                                            \
    } while (0)

/* A status other than RW_OK comes with one line of text that sticks, and vice versa. */
static inline void status_and_message_agree(const rw_context *ctx, const char *call)
{
    const char *const message = rw_error_message(ctx);
    HOLDS((rw_error_status(ctx) != RW_OK) == (*message != '\0'), "%s: status %d, message \"%s\"", call,
          (int)rw_error_status(ctx), message);
    for (const char *c = message; *c; c++) HOLDS(*c != '\n', "%s: a message of two lines: %s", call, message);
}

#endif
