/*
 * Dispatch by instruction set: one kernel source is compiled once per set, and the set is chosen when the process
 * starts.
 *
 * Kernel files (ops/FAMILY/NAME_cpu.c) are compiled with RW_ISA set to base, v3 (AVX2, FMA) or v4 (AVX-512) and define
 *     rw_status RW_ISA_NAME(rw_gelu_cpu)(const rw_kernel *k)
 * The op's own file (NAME.c) has RW_CPU_KERNEL(rw_gelu_cpu) once, outside of any function, and uses rw_gelu_cpu in its
 * rw_op_def.
 */
#ifndef RW_DEVICE_CPU_ISA_H
#define RW_DEVICE_CPU_ISA_H

#include <rewind/op.h>

enum rw_isa { RW_ISA_BASE, RW_ISA_V3, RW_ISA_V4 };

/* The best instruction set that both this build and this processor have. REWIND_ISA=base|v3|v4 lowers it. */
enum rw_isa rw_cpu_isa(void);

/*
 * Is there also the matrix unit for bfloat16 (Intel AMX)? The operating system has to allow it. REWIND_ISA=v4 turns it
 * off.
 */
bool rw_cpu_has_amx(void);

#ifdef RW_FAULTS
/*
 * Tests set this before the first question: a signal handler (tests/support/amx_emulator.h) then executes the unit's
 * instructions.
 */
extern bool rw_cpu_emulates_amx;
#endif

/* Is a product in bfloat16 faster than in float32? Intel processors without the matrix unit have instructions for it,
   but they take twice as long. False if REWIND_ISA is below v4. */
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

/* Without the baseline's kernels (-Dcpu_base=false) v3 is the minimum. */
#ifdef RW_NO_ISA_BASE
#define RW_ISA_MIN(name) name##_v3(k)
#else
#define RW_ISA_MIN(name) name##_base(k)
#endif

#define RW_CPU_KERNEL(name)                      \
    rw_status name##_base(const rw_kernel *k);   \
    rw_status name##_v3(const rw_kernel *k);     \
    rw_status name##_v4(const rw_kernel *k);     \
    static rw_status name(const rw_kernel *k)    \
    {                                            \
        RW_ISA_CASE_V4(name)                     \
        RW_ISA_CASE_V3(name)                     \
        return RW_ISA_MIN(name);               \
    }

#endif
