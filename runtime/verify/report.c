/* The report of a verification, as numbers and as text. */
#include "verify/report.h"

#include "base/sigpipe_safe_output.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *ckpt_cause_name(ckpt_cause cause)
{
    RW_LOOKS_ONLY;
    switch (cause) {
    case CKPT_CAUSE_NONE: return "none";
    case CKPT_CAUSE_TICKET: return "the replay drew different random numbers";
    case CKPT_CAUSE_INPUT_CHANGED: return "a parameter, input or buffer that it reads changed between the runs";
    case CKPT_CAUSE_NONDETERMINISTIC: return "the kernel gives different bytes for the same inputs";
    case CKPT_CAUSE_ORDER: return "gradient contributions were added in another order";
    case CKPT_CAUSE_MOVED: return "it was offloaded and read back with different bytes";
    case CKPT_CAUSE_CORRUPTION: return "its memory was overwritten, or the kernel depends on more than its inputs";
    case CKPT_CAUSE_UNWRITTEN: return "the kernel leaves part of an output unwritten";
    case CKPT_CAUSE_OUTSIDE: return "the kernel writes outside its outputs";
    case CKPT_CAUSE_INPUT_WRITTEN: return "the kernel writes over an input";
    case CKPT_CAUSE_UNDEFINED_READ: return "the kernel reads or adds to memory that is undefined before it runs";
    case CKPT_CAUSE_RULE: return "the op's gradient rule recorded different ops the second time";
    }
    return "unknown";
}

void rw_report_place(const rw_tape *t, const rw_plan *plan, const struct rw_node *node, bool replay,
                     ckpt_report *report)
{
    const rw_site at = rw_plan_site(t, plan, node);
    snprintf(report->op, sizeof report->op, "%s", t->ctx->ops[node->op]->name);
    snprintf(report->site, sizeof report->site, "%s:%d", rw_file_of(at), (int)at.line);
    rw_region_path(t, rw_node_region(t, node), report->region, sizeof report->region);
    report->replay = replay;
}

/* Maps the bits of a float to an integer that counts representable numbers in order. */
static int64_t ordered(uint64_t bits, int width)
{
    const uint64_t sign = (uint64_t)1 << (width - 1);
    return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

double rw_report_number(const void *data, size_t i, rw_dtype dtype, uint64_t *ret_bits)
{
    const size_t size = rw_dtype_size(dtype);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + i * size, size);
    *ret_bits = bits;
    if (dtype == RW_I32) return (int32_t)bits;
    if (dtype == RW_BOOL || rw_dtype_is_code(dtype)) return (double)bits;
    if (dtype == RW_F64) {
        double d;
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    if (dtype == RW_F16) {
        _Float16 h;
        memcpy(&h, &bits, sizeof h);
        return (double)h;
    }
    const uint32_t word = dtype == RW_BF16 ? (uint32_t)bits << 16 : (uint32_t)bits;
    float f;
    memcpy(&f, &word, sizeof f);
    return f;
}

void rw_report_element(const void *expected, const void *got, size_t bytes, rw_dtype dtype, ckpt_report *report)
{
    const size_t size = rw_dtype_size(dtype);
    for (size_t i = 0; i < bytes / size; i++) {
        if (!memcmp((const char *)expected + i * size, (const char *)got + i * size, size)) continue;
        uint64_t a, b;
        report->element = (int64_t)i;
        report->expected = rw_report_number(expected, i, dtype, &a);
        report->got = rw_report_number(got, i, dtype, &b);
        const int width = (int)size * 8;
        const int64_t x = ordered(a, width), y = ordered(b, width);
        const bool nan = isnan(report->expected) || isnan(report->got);
        report->ulp = nan ? UINT64_MAX : x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x;
        return;
    }
}

/* For a fault that isolated execution found, not the comparison of two plans. */
static bool is_of_one_node(const ckpt_report *r)
{
    return *r->detail && r->cause != CKPT_CAUSE_CORRUPTION && r->cause != CKPT_CAUSE_INPUT_CHANGED;
}

void rw_report_text(const ckpt_report *r, char *text, size_t size)
{
    if (r->identical) {
        snprintf(text, size, "identical: %zu gradients and %zu replayed values have the same bytes", r->gradients,
                 r->replayed);
        return;
    }
    char values[160] = "";
    const bool alone = is_of_one_node(r), has_values = r->expected != 0 || r->got != 0 || r->ulp;
    if (has_values)
        snprintf(values, sizeof values, ", element %" PRId64 ": %.9g %s, %.9g %s, %" PRIu64 " ulp apart", r->element,
                 r->expected, alone ? "first" : "without recompute", r->got, alone ? "then" : "with", r->ulp);
    snprintf(text, size, "%s: %zu values differ. First at %s of %s%s%s%s (%s), region \"%s\"%s. Likely cause: %s%s%s",
             alone ? "an op is not a function of its inputs" : "recompute changes bytes", r->mismatches,
             r->replay ? "the replay" : "the first run", r->op, *r->value ? " \"" : "", r->value, *r->value ? "\"" : "",
             r->site, r->region, values, ckpt_cause_name(r->cause), *r->detail ? ": " : "", r->detail);
}

void ckpt_report_print(const ckpt_report *report, FILE *out)
{
    RW_ENTER_ANYWHERE;
    if (!report || !out) return;
    char text[1024];
    struct rw_printing printing = rw_printing_begin(out);
    rw_report_text(report, text, sizeof text);
    fprintf(out, "%s\n", text);
    if (report->kept_nondeterministic)
        fprintf(out, "%zu values of non-deterministic ops were kept and not compared\n", report->kept_nondeterministic);
    rw_printing_end(&printing);
}
