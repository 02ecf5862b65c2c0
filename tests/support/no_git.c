/*
 * Criterion asks libgit2 for the difference of two texts that should be equal, and makes it ready in each test's
 * process: it reads all certificates of the system, which takes longer than most tests run. These stand before the
 * library's functions: nothing is made ready until a difference is asked for.
 */
#include <dlfcn.h>
#include <stddef.h>

/* As in <git2/diff.h>, which need not be there; what is not looked at here is a pointer. */
typedef int differ(const void *from, size_t from_bytes, const char *from_name, const void *to, size_t to_bytes,
                   const char *to_name, const void *options, void *file, void *binary, void *hunk, void *line,
                   void *arg);

differ git_diff_buffers;
int git_libgit2_init(void);
int git_libgit2_shutdown(void);

int git_libgit2_init(void)
{
    return 1;
}

int git_libgit2_shutdown(void)
{
    return 0;
}

int git_diff_buffers(const void *from, size_t from_bytes, const char *from_name, const void *to, size_t to_bytes,
                     const char *to_name, const void *options, void *file, void *binary, void *hunk, void *line,
                     void *arg)
{
    int (*const make_ready)(void) = (int (*)(void))dlsym(RTLD_NEXT, "git_libgit2_init");
    differ *const difference = (differ *)dlsym(RTLD_NEXT, "git_diff_buffers");
    make_ready();
    return difference(from, from_bytes, from_name, to, to_bytes, to_name, options, file, binary, hunk, line, arg);
}
