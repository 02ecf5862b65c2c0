/*
 * Replaces the initialization of libgit2. Criterion uses libgit2 to show the difference of two texts that should be
 * equal, and initializes it in each test's process. That reads all certificates of the system, which takes longer than
 * most tests run. The functions below override those of the library, so that initialization happens only when a
 * difference is shown.
 */
#include <dlfcn.h>
#include <stddef.h>

/* As in <git2/diff.h>, which may be absent; types that are not used here are plain pointers. */
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
