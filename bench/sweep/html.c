/* Writes sweep.html: one self-contained page with the memory-time chart, the loss curve and the table; and
   sweep.svg. */
#include "sweep/sweep_structs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#define LIGHT "--ink:#1b1f24;--soft:#667085;--line:#d5d9e0;--bg:#fff;--a:#0b6bcb;--b:#c2410c"
#define DARK "--ink:#e6e8ec;--soft:#9aa3af;--line:#363b45;--bg:#15181d;--a:#5aa9ff;--b:#ff9d66"
#define CHART                                                                                                          \
    "text{fill:var(--ink);font:12px system-ui,sans-serif}.soft{fill:var(--soft)}.grid{stroke:var(--line)}"             \
    ".label{stroke:var(--bg);stroke-width:4px;paint-order:stroke}"                                                     \
    ".predicted{fill:none;stroke:var(--ink);stroke-width:1.5}.moved{fill:none;stroke:var(--b);stroke-width:1.5}"       \
    ".bound{fill:none;stroke:var(--soft);stroke-dasharray:6 4}.ring{fill:none;stroke:var(--ink)}"                      \
    ".frontier{fill:none;stroke:var(--a);stroke-width:1.5;stroke-dasharray:2 4}"                                       \
    "path.key{stroke-width:2}"

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
    "<title>Rewind: what memory costs in time</title>\n"
    "<style>\n:root{color-scheme:light dark;" LIGHT "}\n@media(prefers-color-scheme:dark){:root{" DARK "}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--bg);max-width:72rem;margin:2rem auto;"
    "padding:0 1rem;box-sizing:border-box}\n"
    ".wide{overflow-x:auto}.soft{color:var(--soft)}code{font-size:13px;overflow-wrap:anywhere}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13px;white-space:nowrap}\n"
    "td,th{padding:.3rem .45rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:bottom}\n"
    "td:nth-child(2),th:nth-child(2){text-align:left}td b{color:var(--b)}\n"
    "tr.first td{border-top:2px solid var(--line)}\n"
    "svg{width:100%;height:auto;display:block}.narrow{display:none}.busy{color:var(--b)}\n"
    "@media(max-width:640px){svg.narrow{display:block}svg.large{display:none}}\n" CHART "\n</style></head><body>\n";

static const char standalone[] =
    "<style>:root{" LIGHT "}@media(prefers-color-scheme:dark){:root{" DARK "}}" CHART
    "</style><rect width=\"100%\" height=\"100%\" fill=\"var(--bg)\" />";

/* "model name" of the first processor, for the reader of the page. */
static void read_cpu(char *cpu, size_t size)
{
    char line[256];
    FILE *const info = fopen("/proc/cpuinfo", "r");
    *cpu = '\0';
    while (info && !*cpu && fgets(line, sizeof line, info)) {
        const char *const colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(cpu, size, "%s", colon + strspn(colon, ": "));
        cpu[strcspn(cpu, "\n")] = '\0';
    }
    if (info) fclose(info);
}

/* Explains the columns of rates and of memory. */
static void describe_rates(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    const struct sweep_unit rate = sweep_rate_unit(o->ceiling);
    double most = 0;
    for (int i = 0; i < n; i++)
        if (sweep_utilisation(o, &rows[i]) > most) most = sweep_utilisation(o, &rows[i]);
    fprintf(f, "<h2>All rows</h2>\n<p class=\"soft\">%s are the operations of one forward and one backward per "
               "second of a step: what is replayed does not count. A plain product of square matrices reaches %.3g "
               "%s on this device in this type, measured in the same run: the ceiling. Peak is that of the "
               "activations, by the plan; in use is what the device's driver counts, parameters, library and other "
               "processes included; on a CPU what one step in a context of its own added to the process's resident "
               "memory.%s</p>\n", rate.name, o->ceiling / rate.of, rate.name,
            most > 100 ? " The ceiling is too low: the machine was busy while it was measured." : "");
}

static void describe(FILE *f, const struct sweep_options *o)
{
    struct utsname u;
    char cpu[256];
    read_cpu(cpu, sizeof cpu);
    fprintf(f, "<p class=\"soft\">%s, ", model_name(o->model.kind));
    if (sweep_has_layers(o)) fprintf(f, "%d layers of ", o->model.layers);
    fprintf(f, "width %d, %s, batch %d; device %s, %d thread%s on ", o->model.width, rw_dtype_name(o->model.dtype),
            o->batch, o->device, o->threads, o->threads > 1 ? "s" : "");
    sweep_escape(f, cpu[0] ? cpu : "an unnamed processor");
    if (!uname(&u)) fprintf(f, ", %s %s", u.sysname, u.machine);
    fprintf(f, ". Step time is that of forward and backward by the device's clock, the median of %d steps; all rows in "
               "turn, a step each.<br><code>", o->steps);
    sweep_escape(f, o->command);
    fprintf(f, "</code></p>\n");
}

static void put_costs(FILE *f, const struct sweep_options *o)
{
    if (o->measures_costs) {
        fputs("measured in this run", f);
        return;
    }
    fputs("read from <code>", f);
    sweep_escape(f, o->costs);
    fputs("</code>", f);
}

static void put_busy(FILE *f, const struct sweep_row *busy)
{
    if (!busy) return;
    const struct sweep_unit unit = sweep_time_unit(fmax(busy->step_ms, busy->predicted_ms));
    fputs("<p class=\"busy\">The machine was probably busy: <code>", f);
    sweep_escape(f, busy->policy);
    fprintf(f, "</code> was predicted to take %.4g %s and took %.4g, by costs of the same run. Run it again when it is "
               "idle.</p>\n", busy->predicted_ms / unit.of, unit.name,
            busy->step_ms / unit.of);
}

/* A chart only if there is a difference to see. */
static void put_losses(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    const struct outcome *const x = &rows[0].outcome;
    if (sweep_losses_differ(rows, n)) {
        sweep_chart_loss(f, o, rows, n, false, "large");
        sweep_chart_loss(f, o, rows, n, true, "narrow");
        return;
    }
    fprintf(f, "<p class=\"soft\">%s the same loss in every step: %.5f at first, %.5f after %d.</p>\n",
            n > 1 ? "All rows have" : "This row and <code>none</code> have", x->losses[0], x->losses[x->steps - 1],
            x->steps - 1);
}

/* Writes the charts of one sequence length. */
static void section(FILE *f, const struct sweep_options *o, int seq, const struct sweep_row *rows,
                    const struct sweep_curve *curve)
{
    const int n = o->n_policies;
    int same = 0;
    for (int i = 0; i < n; i++) same += rows[i].identical;
    fprintf(f, "<h2>%s %d</h2>\n", model_is_of_images(o->model.kind) ? "Pictures of side" : "Sequence length", seq);
    put_busy(f, curve->busy);
    sweep_chart_memory(f, rows, n, curve, false, "large", "");
    sweep_chart_memory(f, rows, n, curve, true, "narrow", "");
    fprintf(f, "<p class=\"soft\">Down and left is better. The dotted line joins the rows that no other beats in both. "
               "The solid line is predicted by planning alone, %zu points from the least memory to <code>none</code>, "
               "with costs of nodes ", curve->n);
    put_costs(f, o);
    fprintf(f, ".%s A point shows its numbers under the pointer.%s</p>\n",
            curve->has_bound ? " By the same costs no plan of a budget is below the dashed line, where there is one; a "
                               "measured time may be."
                             : "",
            curve->n_moved ? " Budgets with <code>+offload</code> may also move values out of the device's memory: the "
                             "dashed line is no bound of these."
                           : "");
    put_losses(f, o, rows, n);
    fprintf(f, "<p class=\"soft\">%d of %d rows have the bytes of <code>none</code>: loss, gradients, buffers and the "
               "number of random blocks of every step, all from the same state; and parameters, buffers and random "
               "state in the first steps of a run of its own, with its own updates.</p>\n", same, n);
}

/* Units that fit the largest numbers of the table. */
struct units {
    struct sweep_unit time, rate, bytes;
};

static struct units units_of(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    double ms = 0;
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        ms = fmax(ms, rows[i].step_ms);
        if (rows[i].peak > bytes) bytes = rows[i].peak;
    }
    return (struct units){ sweep_time_unit(ms), sweep_rate_unit(o->ceiling), sweep_byte_unit(bytes) };
}

static void table_row(FILE *f, const struct sweep_options *o, const struct units *u, const struct sweep_row *r,
                      bool first)
{
    fprintf(f, "<tr%s><td>%d<td><code>", first ? " class=\"first\"" : "", r->seq);
    sweep_escape(f, r->policy);
    fprintf(f, "</code><td>%.1f<td>%.3f<td>%.3g<td>%.1f<td>%.2f<td>%.2f<td>%.2f<td>", r->step_ms / u->time.of, r->ratio,
            r->tflops / u->rate.of, sweep_utilisation(o, r), (double)r->kept / u->bytes.of,
            (double)r->peak / u->bytes.of, (double)r->predicted / u->bytes.of);
    const size_t used = r->device ? r->device : r->resident;
    if (used) fprintf(f, "%.1f", (double)used / u->bytes.of);
    else fputs("\xe2\x80\x93", f);
    fprintf(f, "<td>%.1f<td>%zu<td>%.6f<td>%s</tr>\n", r->predicted_ms / u->time.of, r->replayed, r->loss,
            r->identical ? "yes" : "<b>NO</b>");
}

static void table(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    const struct units u = units_of(o, rows, n);
    const char *const time = u.time.name, *const bytes = u.bytes.name;
    fprintf(f, "<div class=\"wide\"><table>\n"
               "<tr><th>%s<th>policy<th>step,<br>%s<th>ratio<th>%s<th>%% of<br>ceiling<th>kept,<br>%s"
               "<th>peak,<br>%s<th>predicted,<br>%s<th>in use,<br>%s<th>predicted,<br>%s<th>nodes<br>replayed"
               "<th>last<br>loss<th>identical</tr>\n", sweep_seq_name(o), time, u.rate.name, bytes, bytes, bytes, bytes,
            time);
    for (int i = 0; i < n; i++) table_row(f, o, &u, &rows[i], i && rows[i].seq != rows[i - 1].seq);
    fprintf(f, "</table></div>\n</body></html>\n");
}

bool sweep_write_html(const struct sweep_options *o, const struct sweep_row *rows, int n,
                      const struct sweep_curve *curves)
{
    FILE *const f = sweep_open(o, "sweep.html");
    if (!f) return false;
    fputs(head, f);
    fprintf(f, "<h1>What memory costs in time</h1>\n");
    describe(f, o);
    for (int i = 0; i < o->n_seqs; i++) section(f, o, o->seqs[i], rows + i * o->n_policies, &curves[i]);
    describe_rates(f, o, rows, n);
    table(f, o, rows, n);
    return sweep_close(f, o, "sweep.html");
}

/* The chart of the first sequence length as a file of its own, for a page that cannot hold HTML. */
bool sweep_write_svg(const struct sweep_options *o, const struct sweep_row *rows, int n,
                     const struct sweep_curve *curves)
{
    FILE *const f = sweep_open(o, "sweep.svg");
    if (!f) return false;
    sweep_chart_memory(f, rows, n < o->n_policies ? n : o->n_policies, curves, false, "large", standalone);
    return sweep_close(f, o, "sweep.svg");
}
