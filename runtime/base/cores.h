/* The number of cores that this process may use: its affinity mask, which taskset, cpusets and containers set. */
#ifndef RW_BASE_CORES_H
#define RW_BASE_CORES_H

/* At least 1. Any thread. */
int rw_cores(void);

#endif
