/* Fibers: stacks and the switch between them. Under AddressSanitizer every switch is announced to it. */
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <stddef.h>

#if defined(CUDASIM_ASAN) /* not sanitized itself: meson.build */
#elif defined(__SANITIZE_ADDRESS__)
#define CUDASIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDASIM_ASAN 1
#endif
#endif

namespace cudasim {

struct fiber {
    void *sp = nullptr;
    void *bottom = nullptr; /* lowest address of the stack */
    size_t size = 0;
    void *fake = nullptr;   /* AddressSanitizer's */
};

/* A fiber that calls entry(), which must not return. */
fiber *fiber_create(void (*entry)());
/* Makes an abandoned fiber start again at its next switch. */
void fiber_reset(fiber *f, void (*entry)());
/* Switches from the running fiber `from` to `to`. Returns at a switch back. */
void fiber_switch(fiber *from, fiber *to);
/* A fiber's entry function calls it first. */
void fiber_entered();

} // namespace cudasim

#endif
