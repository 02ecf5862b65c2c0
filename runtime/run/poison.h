/*
 * AddressSanitizer builds on the CPU: poisons arena memory that no live buffer uses, to the byte. A kernel that writes
 * past its output, or reads a buffer after its last use, then stops with a report. Not for runs that the verifier
 * observes, which fills the same memory with patterns.
 */
#ifndef RW_RUN_POISON_H
#define RW_RUN_POISON_H

#include "record/context.h"

/* Observes the context's runs; does nothing in other builds. RW_ERR_MEMORY. */
rw_status rw_poison_attach(rw_context *ctx);

#endif
