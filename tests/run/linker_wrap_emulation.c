/* The redirection of the linker's --wrap, for a library that is linked statically; for a shared one, the program's
   functions take precedence. */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/types.h>

ssize_t __wrap_pwrite64(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t n);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument);

#define FUNCTION(type, name, parameters, arguments)            \
    type name##_called parameters __asm__(#name);              \
    type name##_called parameters                              \
    {                                                          \
        return __wrap_##name arguments;                        \
    }                                                          \
    type __real_##name parameters;                             \
    type __real_##name parameters                              \
    {                                                          \
        type(*next) parameters;                                \
        *(void **)&next = dlsym(RTLD_NEXT, #name);             \
        return next arguments;                                 \
    }

FUNCTION(ssize_t, pwrite64, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
FUNCTION(ssize_t, pread64, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
FUNCTION(int, fallocate64, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
FUNCTION(int, pthread_create,
         (pthread_t * thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument),
         (thread, attr, start, argument))
