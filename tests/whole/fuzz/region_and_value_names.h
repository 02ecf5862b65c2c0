/* Names of regions and tagged values of random programs, which policies choose from. */
#ifndef FUZZ_REGION_AND_VALUE_NAMES_H
#define FUZZ_REGION_AND_VALUE_NAMES_H

#define FZ_NAMES 3
extern const char *const fz_region_names[FZ_NAMES];
extern const char *const fz_tag_names[FZ_NAMES];

#endif
