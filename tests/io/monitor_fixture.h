/* Parameters of each type with an optimizer, a monitor attached to it, and the lines that it writes. */
#ifndef IO_MONITOR_FIXTURE_H
#define IO_MONITOR_FIXTURE_H

#include "support/support.h"

#include <cjson/cJSON.h>

enum { N = 5, LONG = 9001 }; /* number of parameters of a zoo, and elements of the last one */

/* How updates are performed. */
enum how { CALLS, GRAPH, INSIDE, SCALER };

struct zoo {
    struct fixture b;
    rw_tensor *w[N];
    rw_optimizer *opt;
};

extern const rw_dtype zoo_dtypes[N];
extern char zoo_path[128]; /* of the monitor's file */

/* Without parameters; with them. */
struct zoo zoo_empty(int threads);
struct zoo zoo_open(int threads);
void zoo_close(struct zoo *z);

/* rule: 0 AdamW, 1 Lion, 2 SGD with momentum. */
void zoo_optimizer(struct zoo *z, int rule, bool by_chance);
int64_t zoo_size(const struct zoo *z, int k);

/* The gradient is 3 w^2, except for every fifth element, whose gradient is zero. */
rw_tensor *zoo_loss(struct zoo *z);
void zoo_backward(struct zoo *z);

rw_monitor *zoo_watch(struct zoo *z, const rw_monitor_group *groups, size_t n);

/* A step of two seconds. Returns its alerts. */
unsigned monitor_step(rw_monitor *m, double norm);

/* The last line of the file; a number in a line; one to its nine digits; a group's numbers. */
cJSON *line_last(void);
double line_number(const cJSON *j, const char *name);
void line_expect(const cJSON *j, const char *name, double want);
const cJSON *line_group(const cJSON *line, const char *name);

/* The elements of a tensor; the caller frees. */
double *tensor_numbers(rw_tensor *x, int64_t n);

#endif
