/*
 * Sets OpenMP's number of threads at run time. Rewind is not linked with OpenMP, so it looks up the functions of the
 * library that oneDNN has loaded.
 */
#include "device/cpu/onednn_single_thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static int (*get_max_threads)(void);
static void (*set_num_threads)(int n);

/* ISO C has no conversion between object and function pointers. */
static void find(const char *name, void *function)
{
    void *const symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void find_openmp(void)
{
    find("omp_get_max_threads", &get_max_threads);
    find("omp_set_num_threads", &set_num_threads);
}

int rw_onednn_threads_enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_openmp);
    const int allowed = get_max_threads && set_num_threads ? get_max_threads() : 1;
    if (allowed != 1) set_num_threads(1);
    return allowed;
}

void rw_onednn_threads_leave(int allowed)
{
    if (allowed != 1) set_num_threads(allowed);
}
