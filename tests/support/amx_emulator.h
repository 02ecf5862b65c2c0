/*
 * Emulates Intel's matrix unit (AMX) on machines without one: a handler of SIGILL executes the instructions that the
 * library uses (ops/matmul/gemm_amx_cpu.c), on tile registers that each thread has. Code compiled for the unit then
 * runs unchanged on any Linux machine with AVX-512 and its bfloat16 instructions.
 *
 * The programs amx_NAME are suite NAME linked with this file (amx_suite_hooks.c). On a machine with the unit they use
 * the unit.
 */
#ifndef RW_TESTS_AMX_EMULATOR_H
#define RW_TESTS_AMX_EMULATOR_H

#include <stdbool.h>
#include <stdint.h>

enum amx_kind { AMX_CONFIGURE, AMX_RELEASE, AMX_ZERO, AMX_LOAD, AMX_STORE, AMX_MULTIPLY, AMX_KINDS };

/* Number of emulated instructions, by kind. Handlers add to it: it may be memory that processes share. */
extern uint64_t *amx_counts;

/* Emulates from now on, for this process. Returns false and does nothing if the processor has the unit, or lacks the
   other instructions that its code needs. */
bool amx_emulate(void);

#endif
