/*
 * The part of Criterion's interface that the suites use, for ThreadSanitizer and qemu-user, under which Criterion's own
 * processes do not start. Each test runs in a fork of the program; the output is TAP. --filter SUITE/NAME selects tests
 * by a pattern of fnmatch(3); others count as skipped, as in Criterion. Only the -Dtsan_suites build includes this.
 */
#ifndef RW_TESTS_TSAN_CRITERION_H
#define RW_TESTS_TSAN_CRITERION_H

#include <fnmatch.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct tsan_options {
    void (*init)(void), (*fini)(void);
    int timeout, signal, exit_code;
    bool disabled;
};

struct tsan_suite {
    const char *name;
    struct tsan_options options;
    struct tsan_suite *next;
};

struct tsan_test {
    const char *suite, *name;
    void (*run)(void);
    struct tsan_options options;
    struct tsan_test *next;
};

/* Common to all files of a program. */
__attribute__((weak)) struct tsan_suite *tsan_suites;
__attribute__((weak)) struct tsan_test *tsan_tests;
__attribute__((weak)) int tsan_failed;

#define TestSuite(suite_, ...)                                                                        \
    static struct tsan_suite tsan_suite_##suite_ = { #suite_, { __VA_ARGS__ }, NULL };                \
    __attribute__((constructor)) static void tsan_add_suite_##suite_(void)                            \
    {                                                                                                 \
        tsan_suite_##suite_.next = tsan_suites;                                                       \
        tsan_suites = &tsan_suite_##suite_;                                                           \
    }                                                                                                 \
    struct tsan_suite

#define Test(suite_, name_, ...)                                                                                     \
    static void suite_##_##name_(void);                                                                              \
    static struct tsan_test tsan_##suite_##_##name_ = { #suite_, #name_, suite_##_##name_, { __VA_ARGS__ }, NULL };  \
    __attribute__((constructor)) static void tsan_add_##suite_##_##name_(void)                                       \
    {                                                                                                                \
        tsan_##suite_##_##name_.next = tsan_tests;                                                                   \
        tsan_tests = &tsan_##suite_##_##name_;                                                                       \
    }                                                                                                                \
    static void suite_##_##name_(void)

/* Reports the condition that did not hold; with a format, that text too. */
#define TSAN_SAY(file, line, text, ...)                       \
    do {                                                      \
        fprintf(stderr, "%s:%d: %s:", file, line, text);      \
        fprintf(stderr, " " __VA_ARGS__);                     \
        fputc('\n', stderr);                                  \
    } while (0)
#define TSAN_ASSERT(condition, text, ...)                     \
    do {                                                      \
        if (!(condition)) {                                   \
            TSAN_SAY(__FILE__, __LINE__, text, __VA_ARGS__);  \
            exit(1);                                          \
        }                                                     \
    } while (0)
#define TSAN_EXPECT(condition, text, ...)                     \
    do {                                                      \
        if (!(condition)) {                                   \
            TSAN_SAY(__FILE__, __LINE__, text, __VA_ARGS__);  \
            tsan_failed = 1;                                  \
        }                                                     \
    } while (0)

#define cr_assert(c, ...) TSAN_ASSERT(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) TSAN_ASSERT(!(c), "not " #c, __VA_ARGS__)
#define cr_assert_fail(...) TSAN_ASSERT(false, "failed", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) TSAN_ASSERT((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) TSAN_ASSERT((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) TSAN_ASSERT((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) TSAN_ASSERT((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) TSAN_ASSERT((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) TSAN_ASSERT((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...) TSAN_ASSERT((a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) TSAN_ASSERT((a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) TSAN_ASSERT(!strcmp(a, b), #a " is the text " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) TSAN_ASSERT(fabs((double)((a) - (b))) <= (e), #a " near " #b, __VA_ARGS__)
#define cr_expect(c, ...) TSAN_EXPECT(c, #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) TSAN_EXPECT((a) == (b), #a " == " #b, __VA_ARGS__)
#define TSAN_SAME(a, b, n) (!memcmp(a, b, n))
#define cr_assert_arr_eq(a, b, n, ...) TSAN_ASSERT(TSAN_SAME(a, b, n), #a " has the bytes of " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...) TSAN_EXPECT(TSAN_SAME(a, b, n), #a " has the bytes of " #b, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, n, ...) TSAN_EXPECT(!TSAN_SAME(a, b, n), #a " has other bytes than " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...) TSAN_EXPECT(fabs((double)((a) - (b))) <= (e), #a " near " #b, __VA_ARGS__)
#define cr_expect_not(c, ...) TSAN_EXPECT(!(c), "not " #c, __VA_ARGS__)
#define cr_expect_fail(...) TSAN_EXPECT(false, "failed", __VA_ARGS__)
#define cr_expect_neq(a, b, ...) TSAN_EXPECT((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) TSAN_EXPECT((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) TSAN_EXPECT((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) TSAN_EXPECT((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) TSAN_EXPECT((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_null(a, ...) TSAN_EXPECT((a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) TSAN_EXPECT((a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) TSAN_EXPECT(!strcmp(a, b), #a " is the text " #b, __VA_ARGS__)
#define cr_log_info(...)                                      \
    do {                                                      \
        fprintf(stderr, __VA_ARGS__);                         \
        fputc('\n', stderr);                                  \
    } while (0)
#define TSAN_SKIPPED 77
#define cr_skip_test(...) exit(TSAN_SKIPPED)

static void tsan_run(const struct tsan_test *t)
{
    struct tsan_options o = t->options;
    for (const struct tsan_suite *s = tsan_suites; s; s = s->next) {
        if (strcmp(s->name, t->suite)) continue;
        if (!o.init) o.init = s->options.init;
        if (!o.fini) o.fini = s->options.fini;
    }
    if (o.init) o.init();
    t->run();
    if (o.fini) o.fini();
    exit(tsan_failed);
}

static bool tsan_is_selected(const struct tsan_test *t, int argc, char **argv)
{
    char name[512];
    snprintf(name, sizeof name, "%s/%s", t->suite, t->name);
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--filter") && fnmatch(argv[i + 1], name, FNM_EXTMATCH)) return false;
    return true;
}

/* One test per process, as in Criterion: changes of the environment end with the test. */
__attribute__((weak)) int main(int argc, char **argv)
{
    int n = 0, failures = 0;
    for (const struct tsan_test *t = tsan_tests; t; t = t->next) {
        const bool selected = tsan_is_selected(t, argc, argv);
        fflush(NULL);
        const pid_t child = selected ? fork() : 0;
        if (selected && !child) tsan_run(t);
        int status = selected ? 1 : 0;
        if (child > 0) waitpid(child, &status, 0);
        const bool skipped = !selected || (WIFEXITED(status) && WEXITSTATUS(status) == TSAN_SKIPPED);
        const bool bad = status && !skipped;
        failures += bad;
        printf("%s %d - %s::%s%s\n", bad ? "not ok" : "ok", ++n, t->suite, t->name, skipped ? " # SKIP" : "");
    }
    printf("1..%d\n", n);
    return failures != 0;
}

#endif
