/* Fibers: stacks with a guard page, and the switch between them. */
#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#else
#define VALGRIND_STACK_REGISTER(low, high) 0
#define VALGRIND_MAKE_MEM_UNDEFINED(at, size) 0
#endif

#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)

/* Saves the registers that a call preserves. All fibers have the same floating-point control words. */
__asm__(".text\n"
        ".globl cudasim_switch\n"
        ".hidden cudasim_switch\n"
        ".type cudasim_switch,@function\n"
        "cudasim_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size cudasim_switch,.-cudasim_switch\n");

static void *first_frame(char *top, void (*entry)())
{
    void **sp = reinterpret_cast<void **>(top);
    *--sp = nullptr; /* entry's return address: ends backtraces */
    *--sp = reinterpret_cast<void *>(entry); /* at a multiple of 16: the stack is then aligned as after a call */
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}

#elif defined(__aarch64__)

__asm__(".text\n"
        ".globl cudasim_switch\n"
        ".hidden cudasim_switch\n"
        ".type cudasim_switch,%function\n"
        "cudasim_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x2, sp\n    str x2, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size cudasim_switch,.-cudasim_switch\n");

static void *first_frame(char *top, void (*entry)())
{
    void **sp = reinterpret_cast<void **>(top - 160);
    memset(sp, 0, 160);
    sp[11] = reinterpret_cast<void *>(entry); /* x30, where the switch returns to */
    return sp;
}

#else
#error "the simulator switches fibers on x86-64 and aarch64"
#endif

extern "C" void cudasim_switch(void **from, void *to);

namespace cudasim {

#ifdef CUDASIM_ASAN
static const size_t stack_size = 256 << 10;
#else
static const size_t stack_size = 512 << 10; /* a translated kernel (../ptx) has all its registers there */
#endif

#ifdef CUDASIM_ASAN
static fiber *arriving_from; /* the fiber that is being left during a switch */
#endif

fiber *fiber_create(void (*entry)())
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *map = mmap(nullptr, stack_size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
    if (map == MAP_FAILED || mprotect(map, page, PROT_NONE) != 0) {
        fprintf(stderr, "cudasim: no memory for a fiber's stack\n");
        abort();
    }
    fiber *f = new fiber;
    f->bottom = static_cast<char *>(map) + page;
    f->size = stack_size;
    (void)VALGRIND_STACK_REGISTER(f->bottom, static_cast<char *>(f->bottom) + f->size - 1);
    fiber_reset(f, entry);
    return f;
}

void fiber_reset(fiber *f, void (*entry)())
{
#ifdef CUDASIM_ASAN
    __asan_unpoison_memory_region(f->bottom, f->size);
#endif
    (void)VALGRIND_MAKE_MEM_UNDEFINED(f->bottom, f->size);
    f->fake = nullptr;
    f->sp = first_frame(static_cast<char *>(f->bottom) + f->size, entry);
}

/* Completes a switch. AddressSanitizer reports the stack that was left, which is how a host thread's becomes known. */
static void arrive(void *fake)
{
#ifdef CUDASIM_ASAN
    const void *bottom = nullptr;
    __sanitizer_finish_switch_fiber(fake, &bottom, &arriving_from->size);
    arriving_from->bottom = const_cast<void *>(bottom);
#else
    (void)fake;
#endif
}

void fiber_entered()
{
    arrive(nullptr);
}

void fiber_switch(fiber *from, fiber *to)
{
#ifdef CUDASIM_ASAN
    arriving_from = from;
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
    cudasim_switch(&from->sp, to->sp);
    arrive(from->fake);
}

} // namespace cudasim
