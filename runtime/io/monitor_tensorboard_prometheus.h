/* Output formats of a monitor in addition to JSON lines: named numbers as TensorBoard events and as Prometheus text. */
#ifndef RW_IO_MONITOR_TENSORBOARD_PROMETHEUS_H
#define RW_IO_MONITOR_TENSORBOARD_PROMETHEUS_H

#include "base/append_only_file.h"

#include <rewind/status.h>

/* A number of a step. Labels of one name are adjacent. */
struct rw_reading {
    const char *name, *label, *value_of_label; /* label: NULL for none */
    const char *help;
    double value;
    bool counts; /* it only grows */
};

struct rw_readings {
    struct rw_reading *reading;
    size_t n, room;
    bool is_cut; /* there were more than the array holds, which is an internal error */
};
void rw_readings_add(struct rw_readings *r, struct rw_reading one);

struct rw_event_file {
    struct rw_records records;
    char *path; /* NULL: none */
};

/* Creates the folder if necessary, and a new file in it with its first record. RW_ERR_IO with errno, RW_ERR_MEMORY. */
rw_status rw_event_file_open(struct rw_event_file *f, const char *folder);
void rw_event_file_close(struct rw_event_file *f);

/* Writes events with all readings, several if there are many. A reader finds only complete events; a failed one is
   removed. RW_ERR_IO with errno. */
rw_status rw_event_file_put(struct rw_event_file *f, uint64_t step, const struct rw_reading *readings, size_t n);

/* Replaces the file atomically. RW_ERR_IO with errno or a reason, RW_ERR_MEMORY. */
rw_status rw_prometheus_put(const char *path, const struct rw_reading *readings, size_t n, const char **ret_why);

/* CRC-32C as in records of events: rotated, plus a constant. */
uint32_t rw_masked_crc(const void *data, size_t bytes);

#endif
