/* Runs launches by PTX and by the simulator's compilation, and compares memory afterwards (twin.h). */
#include "twin.h"

#include "run.h"
#include "runtime.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace ptx {

static ptx_how how;
static ptx_counts counts;
static std::string first_difference;

bool is_rough()
{
    static const char *const rough = getenv("CUDASIM_PTX_ROUGH");
    return rough && *rough == '1';
}

/* ---- images of memory ---- */

struct image {
    std::vector<std::pair<void *, size_t>> places;
    std::vector<std::vector<char>> bytes;
};

static image take_image()
{
    image i;
    i.places = cudasim::live_allocations();
    for (const auto &p : i.places)
        i.bytes.emplace_back(static_cast<char *>(p.first), static_cast<char *>(p.first) + p.second);
    return i;
}

static void put_back(const image &i)
{
    for (size_t p = 0; p < i.places.size(); p++) memcpy(i.places[p].first, i.bytes[p].data(), i.places[p].second);
}

/* Calls f(now, wanted) for each allocation whose bytes differ from the image. */
template <typename F> static void for_each_difference(image *i, F f)
{
    for (size_t p = 0; p < i->places.size(); p++) {
        char *const now = static_cast<char *>(i->places[p].first), *const wanted = i->bytes[p].data();
        if (memcmp(now, wanted, i->places[p].second) != 0) f(now, wanted, i->places[p].second);
    }
}

static double allowed;

/* Whether a number is within the allowed error. */
template <typename T> static bool is_near(const char *at, const char *wanted)
{
    T x, y;
    memcpy(&x, at, sizeof x);
    memcpy(&y, wanted, sizeof y);
    const double unit = static_cast<double>(std::nextafter(fabs(y), std::numeric_limits<T>::infinity()) - fabs(y));
    const double off = fabs(static_cast<double>(x) - static_cast<double>(y)), most = allowed + unit;
    if (!(off <= most)) return false;
    counts.used = fmax(counts.used, off / most);
    return true;
}

/* Replaces floating-point numbers that a kernel wrote, if they are within the allowed error, by the expected ones. */
static void forgive(image *i)
{
    for_each_difference(i, [](char *now, char *wanted, size_t size) {
        for (const number &n : noted_numbers()) {
            if (n.at < now || n.at >= now + size) continue;
            char *const want = wanted + (n.at - now);
            if (memcmp(n.at, want, n.size) == 0) continue;
            if (n.size == 4 ? is_near<float>(n.at, want) : is_near<double>(n.at, want))
                memcpy(now + (n.at - now), want, n.size);
        }
    });
}

static size_t differing_bytes(image *i)
{
    size_t n = 0;
    for_each_difference(i, [&n](const char *now, const char *wanted, size_t size) {
        for (size_t b = 0; b < size; b++) n += now[b] != wanted[b];
    });
    return n;
}

/* ---- the log ---- */

static void note(const char *what, const kernel *k, const char *name)
{
    static const char *const path = getenv("CUDASIM_PTX_LOG");
    static std::set<std::string> noted;
    if (!path || !noted.insert(std::string(what) + name).second) return;
    const std::string line = std::string(what) + (k && k->approximate ? " approximate " : " exact ") + name + "\n";
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    if (write(file, line.data(), line.size()) < 0) perror(path);
    close(file);
}

/* ---- planted mistakes ---- */

int planted = [] {
    const char *const number = getenv("CUDASIM_PTX_FAULT");
    return number ? atoi(number) : 0;
}();

void reach_fault()
{
    static const std::string name = std::to_string(planted);
    static bool reached;
    if (!reached) note("reached", nullptr, name.c_str());
    reached = true;
}

/* ---- launches ---- */

/* Runs a kernel's translated PTX on the simulator in place of its compiled function. */
static cudaError_t run_ptx(const kernel *k, const cudasim::kernel_launch &launch)
{
    /* At the end of a parameter list, the padding of a structure may be missing on either side. */
    if (launch.parameters.size() > k->parameters + 8 || launch.parameters.size() + 8 < k->parameters) {
        cudasim::report("PTX of %s: %zu bytes of parameters, %zu launched with", k->name, k->parameters,
                        launch.parameters.size());
        return cudaErrorLaunchFailure;
    }
    cudasim::kernel_launch twin = launch;
    twin.shared = (k->shared + 15) / 16 * 16 + launch.shared;
    const char *const parameters = twin.parameters.data();
    twin.thread = [k, parameters] {
        k->thread(parameters);
        end_thread();
    };
    begin_kernel(k, launch.shared);
    return cudasim::run_kernel(twin);
}

static void compare(const kernel *k, image *wanted)
{
    if (allowed > 0) forgive(wanted);
    const size_t bytes = differing_bytes(wanted);
    note(bytes ? "differs" : "equal", k, k->name);
    if (!bytes) return;
    counts.differ++;
    if (first_difference.empty())
        first_difference = std::string(k->name) + (is_eager() ? ", cp.async at once: " : ", cp.async late: ") +
                           std::to_string(bytes) + " bytes";
}

static cudaError_t run_twins(const kernel *k, const cudasim::kernel_launch &launch)
{
    const image before = take_image();
    cudaError_t error = cudasim::run_kernel(launch);
    if (error) return error;
    image wanted = take_image();
    for (const bool eager : { true, false }) {
        put_back(before);
        set_eager(eager);
        error = run_ptx(k, launch);
        if (error) return error;
        compare(k, &wanted);
    }
    return cudaSuccess;
}

static cudaError_t runner(const cudasim::kernel_launch &launch)
{
    const kernel *const k = find(launch.function);
    if (!k) {
        counts.missing++;
        note("missing", nullptr, launch.name);
        return cudasim::run_kernel(launch);
    }
    counts.run++;
    if (how == PTX_TWIN) return run_twins(k, launch);
    note("ran", k, k->name);
    return run_ptx(k, launch);
}

/* Before main(): reads the environment. */
static const bool begun = [] {
    const char *const is = getenv("CUDASIM_PTX");
    if (is && strcmp(is, "replace") == 0) ptx_use(PTX_REPLACE);
    if (is && strcmp(is, "twin") == 0) ptx_use(PTX_TWIN);
    return true;
}();

} // namespace ptx

void ptx_use(enum ptx_how how)
{
    ptx::how = how;
    cudasim::kernel_runner = how == PTX_OFF ? cudasim::run_kernel : ptx::runner;
}

void ptx_allow(double error)
{
    ptx::allowed = error;
}

struct ptx_counts ptx_take_counts(void)
{
    const ptx_counts taken = ptx::counts;
    ptx::counts = {};
    ptx::first_difference.clear();
    return taken;
}

const char *ptx_first_difference(void)
{
    return ptx::first_difference.c_str();
}
