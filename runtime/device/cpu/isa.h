/*
 * One kernel source, compiled once per instruction set, chosen when the process starts.
 *
 * Kernel files (ops/FAMILY/NAME_cpu.c) are compiled with RW_ISA set to base, v3 (AVX2, FMA) or v4 (AVX-512) and define
 *     rw_status RW_ISA_NAME(rw_gelu_cpu)(const rw_kernel *k)
 * The op's own file (NAME.c) writes RW_CPU_KERNEL(rw_gelu_cpu) once, outside any function, and puts rw_gelu_cpu into
 * its rw_op_def.
 */
#ifndef RW_DEVICE_CPU_ISA_H
#define RW_DEVICE_CPU_ISA_H

#include <rewind/op.h>

enum rw_isa { RW_ISA_BASE, RW_ISA_V3, RW_ISA_V4 };

/* The best instruction set that both this build and this processor have. REWIND_ISA=base|v3|v4 lowers it. */
enum rw_isa rw_cpu_isa(void);

/* And beside v4 the matrix unit for bfloat16 (Intel AMX), which the system has to allow? REWIND_ISA=v4 does without. */
bool rw_cpu_has_amx(void);

#ifdef RW_FAULTS
/* A handler of the tests (tests/support/amx.h) carries out the unit's instructions. Set before anybody asks. */
extern bool rw_cpu_emulates_amx;
#endif

/* Does the processor multiply bfloat16 faster than float32? Intel's without the matrix unit have instructions for it
   that take twice as long. REWIND_ISA below v4: no. */
bool rw_cpu_multiplies_bf16(void);

#define RW_ISA_JOIN_(name, isa) name##_##isa
#define RW_ISA_JOIN(name, isa) RW_ISA_JOIN_(name, isa)
#define RW_ISA_NAME(name) RW_ISA_JOIN(name, RW_ISA)

#ifdef RW_HAVE_ISA_V3
#define RW_ISA_CASE_V3(name) if (rw_cpu_isa() == RW_ISA_V3) return name##_v3(k);
#else
#define RW_ISA_CASE_V3(name)
#endif
#ifdef RW_HAVE_ISA_V4
#define RW_ISA_CASE_V4(name) if (rw_cpu_isa() == RW_ISA_V4) return name##_v4(k);
#else
#define RW_ISA_CASE_V4(name)
#endif

/* Without the baseline's kernels (-Dcpu_base=false) v3 is the least. */
#ifdef RW_NO_ISA_BASE
#define RW_ISA_LEAST(name) name##_v3(k)
#else
#define RW_ISA_LEAST(name) name##_base(k)
#endif

#define RW_CPU_KERNEL(name)                      \
    rw_status name##_base(const rw_kernel *k);   \
    rw_status name##_v3(const rw_kernel *k);     \
    rw_status name##_v4(const rw_kernel *k);     \
    static rw_status name(const rw_kernel *k)    \
    {                                            \
        RW_ISA_CASE_V4(name)                     \
        RW_ISA_CASE_V3(name)                     \
        return RW_ISA_LEAST(name);               \
    }

#endif
