/* What a monitor writes beside its lines: numbers by name, as events for TensorBoard and as text for Prometheus. */
#ifndef RW_IO_MONITOR_FILES_H
#define RW_IO_MONITOR_FILES_H

#include <rewind/status.h>

#include <stddef.h>
#include <stdint.h>

/* A number of a step. Labels of one name stand one behind the other. */
struct rw_reading {
    const char *name, *label, *value_of_label; /* label: NULL for none */
    const char *help;
    double value;
    bool counts; /* it only grows */
};

struct rw_event_file {
    int fd;
    char *path;
};

/* Makes the folder, if it has to, and a new file there with its first record. RW_ERR_IO with errno, RW_ERR_MEMORY. */
rw_status rw_event_file_open(struct rw_event_file *f, const char *folder);
void rw_event_file_close(struct rw_event_file *f);

/* Events with all readings, of many several, each in one write(): what a reader finds at the end is whole, or not
   there. RW_ERR_IO. */
rw_status rw_event_file_put(struct rw_event_file *f, uint64_t step, const struct rw_reading *readings, size_t n);

/* Writes the file anew, aside, and puts it in its place. RW_ERR_IO with errno or a reason, RW_ERR_MEMORY. */
rw_status rw_prometheus_put(const char *path, const struct rw_reading *readings, size_t n, const char **ret_why);

/* CRC-32C, as records of events have it: rotated, and with a number added. */
uint32_t rw_masked_crc(const void *data, size_t bytes);

#endif
