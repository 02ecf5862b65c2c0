/* The version of the build: that of the header, which is compared with Meson's when a build is configured. */
#include <rewind/version.h>

#include "record/api_entry.h"

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

const char *rw_version(void)
{
    RW_LOOKS_ONLY;
    return TEXT(RW_VERSION_MAJOR) "." TEXT(RW_VERSION_MINOR) "." TEXT(RW_VERSION_PATCH);
}
