/* Switches the current device, by the driver's stack of contexts where that is possible. */
#include "device/cuda/current_device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/*
 * On a device without a context cudaSetDevice() creates one, of about 500 MB. Restoring a device that a thread never
 * used would do the same, and device 0 is current in every new thread. Pushing our context on the driver's stack and
 * popping it leaves everything as it was. The driver is already loaded, because the runtime uses it.
 */
static struct {
    int (*get)(void **); /* cuCtxGetCurrent */
    int (*push)(void *);
    int (*pop)(void **);
} driver;

enum { PUSHED = -2, NOTHING = -1 };

static void find_driver(void)
{
#ifdef RW_CUDASIM
    void *const handle = dlopen(NULL, RTLD_NOW); /* the simulator's functions are part of the program */
#else
    void *const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#endif
    void *const found[] = { handle ? dlsym(handle, "cuCtxGetCurrent") : NULL,
                            handle ? dlsym(handle, "cuCtxPushCurrent_v2") : NULL,
                            handle ? dlsym(handle, "cuCtxPopCurrent_v2") : NULL };
    if (!found[0] || !found[1] || !found[2]) return;
    memcpy(&driver.get, &found[0], sizeof found[0]);
    memcpy(&driver.push, &found[1], sizeof found[1]);
    memcpy(&driver.pop, &found[2], sizeof found[2]);
}

void rw_cuda_note_context(struct rw_cuda *cuda)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    if (!driver.get || driver.get(&cuda->context)) cuda->context = NULL;
}

/* A failure is not reported here: the next call fails too, on a stream of another device, and reports it. */
int rw_cuda_enter(const struct rw_cuda *cuda)
{
    int previous = NOTHING;
    cudaGetLastError(); /* the program may share the runtime: its own errors are not this call's */
    if (cudaGetDevice(&previous) == cudaSuccess && previous == cuda->ordinal) return NOTHING;
    if (cuda->context && !driver.push(cuda->context)) return PUSHED;
    if (cudaSetDevice(cuda->ordinal) != cudaSuccess) cudaGetLastError();
    return previous;
}

void rw_cuda_leave(int previous)
{
    void *own;
    if (previous == PUSHED) driver.pop(&own);
    else if (previous >= 0 && cudaSetDevice(previous) != cudaSuccess) cudaGetLastError();
}
