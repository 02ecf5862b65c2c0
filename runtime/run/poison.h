/*
 * In a build with AddressSanitizer, on the CPU: what lies in an arena and is not in use at the moment is poisoned, to
 * the byte. A kernel that writes behind its output, or reads what nobody needs any more, ends the program there with a
 * report. A run that a verification watches is left alone: it fills the same memory with patterns.
 */
#ifndef RW_RUN_POISON_H
#define RW_RUN_POISON_H

#include "record/context.h"

/* Watches the context's runs; nothing in other builds. RW_ERR_MEMORY. */
rw_status rw_poison_attach(rw_context *ctx);

#endif
