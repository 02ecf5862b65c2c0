/* Checks that a call that returns a tensor is refused with a status and a text, and leaves nothing on the tape. */
#ifndef RW_TESTS_REFUSES_H
#define RW_TESTS_REFUSES_H

#include "support/support.h"

#include "record/tape_mark.h"

#include <criterion/criterion.h>

static inline void refuses(struct fixture *b, rw_tensor *y, rw_status status, const char *text, size_t nodes)
{
    cr_expect_null(y, "%s", text);
    cr_expect_eq(rw_error_status(b->ctx), status, "%s: %s", text, rw_error_message(b->ctx));
    cr_expect(message_has(rw_error_message(b->ctx), text), "\"%s\" is not in: %s", text, rw_error_message(b->ctx));
    cr_expect_eq(rw_tape_mark(b->t).nodes, nodes, "%s: the tape has grown", text);
    rw_error_clear(b->ctx);
}

#endif
