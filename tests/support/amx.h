/*
 * Intel's matrix unit for machines without: a handler of SIGILL carries out the instructions that the library has
 * (ops/matmul/gemm_amx_cpu.c), on registers of the thread's own. What is compiled for the unit then runs, as it is,
 * wherever there are AVX-512 and its instructions for bfloat16, on Linux.
 *
 * The programs amx_NAME are suite NAME with this beside it (amx_suites.c). Where there is a unit they run on that.
 */
#ifndef RW_TESTS_AMX_H
#define RW_TESTS_AMX_H

#include <stdbool.h>
#include <stdint.h>

enum amx_kind { AMX_CONFIGURE, AMX_RELEASE, AMX_ZERO, AMX_LOAD, AMX_STORE, AMX_MULTIPLY, AMX_KINDS };

/* What has been carried out, by kind. Handlers add to it: it may be memory that processes share. */
extern uint64_t *amx_counts;

/* From now on, for the process. Where the processor has the unit, or not what its code needs beside it: false, and
   nothing happens. */
bool amx_emulate(void);

#endif
