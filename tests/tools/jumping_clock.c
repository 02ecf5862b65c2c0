/* To be preloaded: CLOCK_MONOTONIC goes on by 1,000 s whenever the process' first thread opens a file for writing or a
   checkpoint, renames a file, or starts a thread. The number of jumps is written to the file that JUMPS names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int jumps;

__attribute__((destructor)) static void tell(void)
{
    const char *const name = getenv("JUMPS");
    FILE *const f = name ? fopen(name, "w") : NULL;
    if (f) fprintf(f, "%d\n", jumps), fclose(f);
}

static void jump(void)
{
    if (gettid() == getpid()) jumps++;
}

static void jump_if_slow(const char *path, int flags)
{
    if ((flags & O_ACCMODE) != O_RDONLY || strstr(path, ".safetensors")) jump();
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const int r = real(clock, t);
    if (clock == CLOCK_MONOTONIC) t->tv_sec += 1000 * jumps;
    return r;
}

#define OPENING(name)                                                                          \
    int name(const char *path, int flags, ...)                                                 \
    {                                                                                          \
        va_list rest;                                                                          \
        va_start(rest, flags);                                                                 \
        const unsigned mode = flags & O_CREAT ? va_arg(rest, unsigned) : 0;                    \
        va_end(rest);                                                                          \
        jump_if_slow(path, flags);                                                             \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode);  \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                                \
    int name(int folder, const char *path, int flags, ...)                                              \
    {                                                                                                   \
        va_list rest;                                                                                   \
        va_start(rest, flags);                                                                          \
        const unsigned mode = flags & O_CREAT ? va_arg(rest, unsigned) : 0;                             \
        va_end(rest);                                                                                   \
        jump_if_slow(path, flags);                                                                      \
        return ((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name))(folder, path, flags, mode); \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

#define OPENING_STREAM(name)                                                                       \
    FILE *name(const char *path, const char *mode)                                                 \
    {                                                                                              \
        jump_if_slow(path, *mode == 'r' ? O_RDONLY : O_WRONLY);                                    \
        return ((FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, #name))(path, mode);      \
    }
OPENING_STREAM(fopen)
OPENING_STREAM(fopen64)

int rename(const char *from, const char *to)
{
    jump();
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
    typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    jump();
    return ((create *)dlsym(RTLD_NEXT, "pthread_create"))(thread, attr, start, argument);
}
