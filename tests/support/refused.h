/*
 * Checks an invalid call: it returns NULL, sets this status and a message, and leaves no node. `b` is a struct fixture
 * in scope; Criterion and record/tape.h must be included.
 */
#ifndef RW_TESTS_REFUSED_H
#define RW_TESTS_REFUSED_H

#define REFUSED(status, call)                                                                   \
    do {                                                                                        \
        const size_t nodes = b.t->n_nodes;                                                      \
        cr_expect_null(call, "%s", #call);                                                      \
        cr_expect_eq(rw_error_status(b.ctx), status, "%s: %s", #call, rw_error_message(b.ctx)); \
        rw_error_clear(b.ctx);                                                                  \
        cr_expect_eq(b.t->n_nodes, nodes, "%s leaves a node", #call);                           \
    } while (0)

#endif
