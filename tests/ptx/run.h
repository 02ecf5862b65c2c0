/*
 * The runtime of a translated kernel: memory, the threads of its block and warp, and the table of translated kernels.
 * The threads are fibers of the CUDA simulator (../cudasim), which also implements the barriers.
 */
#ifndef RW_TESTS_PTX_RUN_H
#define RW_TESTS_PTX_RUN_H

#include "isa.h"

#include "cudasim_device.h"
#include "cudasim_warp.h"

#include <vector>

namespace ptx {

/* ---- the table ---- */

struct kernel {
    const char *name; /* the symbol by the host's compiler */
    void (*thread)(const char *parameters);
    size_t parameters, shared; /* bytes; shared: of the static arrays */
    bool approximate;          /* contains fma or .approx: may differ from the simulator in the last bits */
};

/* All kernels of a .cu file; created before main() by the file that translate.py writes. */
struct module {
    module(const char *file_, const kernel *kernels_, size_t n_);
    const char *file;
    const kernel *kernels;
    size_t n;
    module *next;
};

/* A variable of a .cu file, in global or constant memory; created before main() likewise. */
struct module_variable {
    module_variable(const void *at_, size_t size_);
    uintptr_t at;
    size_t size;
    module_variable *next;
};

/* The kernel of the host function at that address; null: it has no translation. */
const kernel *find(const void *function);

/* Whether the mistake with this number was planted (faults.txt); records that it was reached. */
extern int planted;
void reach_fault();
PTX_INLINE bool fault(int number)
{
    if (__builtin_expect(planted != number, 1)) return false;
    reach_fault();
    return true;
}

bool is_rough();  /* ex2.approx errs by the ISA's maximum */
bool is_eager();  /* cp.async copies at once, instead of at the wait */
void set_eager(bool eager);

/* ---- memory ---- */

/* Ends the kernel with a report. */
[[noreturn]] void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Called before a kernel runs: sets up its static and dynamic shared memory. */
void begin_kernel(const kernel *k, size_t dynamic);

/* The host's address of n bytes that a thread reads or writes; reports accesses that are out of bounds, not aligned to
   n, or in another address space than the instruction's. */
char *global_at(uint64_t address, size_t n);
char *shared_at(uint64_t address, size_t n);
char *generic_at(uint64_t address, size_t n);
/* In a depot of `size` bytes in local memory. */
char *local_at(uint64_t address, size_t n, const char *depot, size_t size);
/* In the parameters: not checked, because the translation determines their layout. */
static inline char *param_at(uint64_t address, size_t) { return reinterpret_cast<char *>(address); }

/* n float32 or float64 numbers were written there: twin.cc may compare them as numbers. */
void note_numbers(const char *at, size_t size, size_t n);
struct number {
    const char *at;
    size_t size;
};
/* The numbers recorded for the running kernel, or for the last one. */
const std::vector<number> &noted_numbers();

/* Generic addresses are the host's; those of shared memory count from its beginning. */
uint64_t generic_of_shared(uint64_t address);
uint64_t shared_of_generic(uint64_t address);
uint32_t dynamic_offset(); /* offset of dynamic shared memory, after the static arrays */

template <typename T> PTX_INLINE typename T::result load(const char *from)
{
    typename T::result r;
    memcpy(&r, from, sizeof r);
    return r;
}
template <typename T> PTX_INLINE void store(char *to, typename T::bits x) { memcpy(to, &x, sizeof x); }

template <typename T> PTX_INLINE typename T::result atom_add(char *at, typename T::bits x)
{
    const typename T::result old = load<T>(at);
    store<T>(at, static_cast<typename T::bits>(old + x));
    return old;
}

template <typename T> PTX_INLINE typename T::result atom_max(char *at, typename T::bits x)
{
    const typename T::result old = load<T>(at);
    store<T>(at, static_cast<typename T::bits>(max<T>(static_cast<typename T::bits>(old), x)));
    return old;
}

void copy_async(char *to, const char *from, uint32_t size, uint32_t read);
void copy_commit();
void copy_wait(uint32_t left);
void end_thread(); /* reports copies without a wait: they might arrive after the memory was reused */

/* ---- threads ---- */

void barrier(uint32_t number);
void warp_barrier(uint32_t mask);
/* c: the clamp in bits 0 to 4, the segment's mask in bits 8 to 12. in_range: whether the value came from another
   lane. */
uint32_t shuffle_up(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range);
uint32_t shuffle_down(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range);
uint32_t shuffle_bfly(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range);
uint32_t shuffle_idx(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range);
uint32_t reduce_max(uint32_t a, uint32_t mask);
uint32_t match_any(uint32_t a, uint32_t mask);

/* Loads four matrices of 8 x 8 16-bit numbers. row: the address in shared memory that this lane gives. */
void load_matrices(uint32_t (&d)[4], uint64_t row, bool transposed);
/* d = a b + c, m16n8k16; brain: bf16, else f16. */
void multiply(uint32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const uint32_t (&c)[4], bool brain);

} // namespace ptx

#endif
