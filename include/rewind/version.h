/**
 * rewind/version.h - the version of these headers, and of the library that the program runs with.
 *
 * Before 1.0 a minor version may change names; CHANGELOG.md lists them.
 * Thread-safety: any thread.
 */
#ifndef REWIND_VERSION_H
#define REWIND_VERSION_H

#include <rewind/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_VERSION_MAJOR 0 ///< the headers' major version
#define RW_VERSION_MINOR 1 ///< the headers' minor version
#define RW_VERSION_PATCH 0 ///< the headers' patch version

/** The headers' version as one number, for comparisons: `#if RW_VERSION >= RW_VERSION_OF(0, 2, 0)`. */
#define RW_VERSION_OF(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
/** The headers' version, a constant of the preprocessor. */
#define RW_VERSION RW_VERSION_OF(RW_VERSION_MAJOR, RW_VERSION_MINOR, RW_VERSION_PATCH)

/** Returns the version of the loaded library as a constant string, "0.1.0"; never NULL. It differs from RW_VERSION if
    the program was compiled with the headers of another version. */
RW_API const char *rw_version(void);

#ifdef __cplusplus
}
#endif

#endif
