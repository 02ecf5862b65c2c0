/*
 * Writers of TensorBoard event files and Prometheus text. Records:
 * https://www.tensorflow.org/tutorials/load_data/tfrecord (length, its checksum, data, its checksum); an event is a
 * protocol buffer of tensorflow/core/util/event.proto, of which four fields are written. Text:
 * https://prometheus.io/docs/instrumenting/exposition_formats/
 */
#include "io/monitor_tensorboard_prometheus.h"

#include "base/alloc.h"
#include "base/c_locale.h"
#include "base/file_descriptor_io.h"
#include "base/folder.h"
#include "base/atomic_file_replace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROOM 8192 /* bytes of a record: about forty readings */
#define TAG 320

void rw_readings_add(struct rw_readings *r, struct rw_reading one)
{
    assert(r->n < r->room);
    r->is_cut |= r->n >= r->room;
    if (r->n < r->room) r->reading[r->n++] = one;
}

/* ---- checksums ---- */

uint32_t rw_masked_crc(const void *data, size_t bytes)
{
    const unsigned char *const p = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protocol buffers ---- */

struct bytes {
    unsigned char data[ROOM];
    size_t n;
};

static void put(struct bytes *b, const void *data, size_t n)
{
    if (n > sizeof b->data - b->n) n = 0; /* readings are few and their names short */
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_little(struct bytes *b, uint64_t x, int n)
{
    for (int i = 0; i < n; i++) put(b, &(unsigned char){ (unsigned char)(x >> 8 * i) }, 1);
}

static void put_varint(struct bytes *b, uint64_t x)
{
    for (; x >= 128; x >>= 7) put_little(b, x | 128, 1);
    put_little(b, x, 1);
}

static void put_part(struct bytes *b, unsigned char key, const void *data, size_t n)
{
    put_little(b, key, 1);
    put_varint(b, n);
    put(b, data, n);
}

/* Event { double wall_time = 1; int64 step = 2; } */
static void begin_event(struct bytes *b, uint64_t step)
{
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &seconds, sizeof bits);
    put_little(b, 0x09, 1);
    put_little(b, bits, 8);
    put_little(b, 0x10, 1);
    put_varint(b, step);
}

/* Value { string tag = 1; float simple_value = 2; } */
static void put_value(struct bytes *summary, const struct rw_reading *r)
{
    struct bytes value;
    char tag[TAG];
    uint32_t bits;
    const float x = (float)r->value;
    value.n = 0;
    memcpy(&bits, &x, sizeof bits);
    snprintf(tag, sizeof tag, "%s%s%s", r->name, r->label ? "/" : "", r->label ? r->value_of_label : "");
    put_part(&value, 0x0a, tag, strlen(tag));
    put_little(&value, 0x15, 1);
    put_little(&value, bits, 4);
    put_part(summary, 0x0a, value.data, value.n);
}

static rw_status write_record(struct rw_event_file *f, const struct bytes *event)
{
    struct bytes record;
    record.n = 0;
    put_little(&record, event->n, 8);
    put_little(&record, rw_masked_crc(record.data, 8), 4);
    put(&record, event->data, event->n);
    put_little(&record, rw_masked_crc(event->data, event->n), 4);
    return rw_records_append(&f->records, record.data, record.n) ? RW_OK : RW_ERR_IO;
}

rw_status rw_event_file_open(struct rw_event_file *f, const char *folder)
{
    static const char version[] = "brain.Event:2";
    static unsigned files; /* of this process */
    char host[HOST_NAME_MAX + 1] = "host";
    const size_t room = strlen(folder) + sizeof host + 80;
    struct bytes event = { .n = 0 };
    *f = (struct rw_event_file){ .records.fd = -1, .path = rw_malloc(room) };
    if (!f->path) return RW_ERR_MEMORY;
    gethostname(host, sizeof host - 1);
    snprintf(f->path, room, "%s/events.out.tfevents.%lld.%s.%ld.%u", folder, (long long)time(NULL), host,
             (long)getpid(), __atomic_add_fetch(&files, 1, __ATOMIC_RELAXED));
    if (rw_folder_make(folder)) f->records.fd = rw_fd_open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0666);
    begin_event(&event, 0);
    put_part(&event, 0x1a, version, sizeof version - 1);
    const bool is_open = f->records.fd >= 0;
    const rw_status status = is_open ? write_record(f, &event) : RW_ERR_IO;
    const int reason = errno;
    if (status && is_open) unlink(f->path);
    if (status) rw_event_file_close(f);
    errno = reason;
    return status;
}

void rw_event_file_close(struct rw_event_file *f)
{
    if (f->path) rw_records_close(&f->records);
    rw_free(f->path);
    *f = (struct rw_event_file){ .records.fd = -1 };
}

rw_status rw_event_file_put(struct rw_event_file *f, uint64_t step, const struct rw_reading *readings, size_t n)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n;) {
        struct bytes event, summary;
        event.n = summary.n = 0;
        while (i < n && summary.n < ROOM - 2 * TAG) put_value(&summary, &readings[i++]);
        begin_event(&event, step);
        put_part(&event, 0x2a, summary.data, summary.n);
        status = write_record(f, &event);
    }
    return status;
}

/* ---- text ---- */

static void put_reading(FILE *f, const struct rw_reading *r, bool first)
{
    char value[40];
    const locale_t before = rw_c_locale_begin();
    snprintf(value, sizeof value, isnan(r->value) ? "NaN" : isinf(r->value) ? r->value > 0 ? "+Inf" : "-Inf" : "%.9g",
             r->value);
    rw_c_locale_end(before);
    if (first)
        fprintf(f, "# HELP rewind_%s %s\n# TYPE rewind_%s %s\n", r->name, r->help, r->name,
                r->counts ? "counter" : "gauge");
    fprintf(f, "rewind_%s", r->name);
    if (r->label) fprintf(f, "{%s=\"%s\"}", r->label, r->value_of_label);
    fprintf(f, " %s\n", value);
}

rw_status rw_prometheus_put(const char *path, const struct rw_reading *readings, size_t n, const char **ret_why)
{
    struct rw_replacement file;
    const rw_status status = rw_replace_begin(&file, path, ret_why);
    if (status) return status;
    FILE *const f = rw_replace_stream(&file);
    file.transient = true;
    for (size_t i = 0; f && i < n; i++)
        put_reading(f, &readings[i], !i || strcmp(readings[i].name, readings[i - 1].name));
    return rw_replace_end(&file, f ? RW_OK : RW_ERR_MEMORY);
}
