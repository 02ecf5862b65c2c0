#!/usr/bin/env bash
# Compiles each public header alone, as C11 and as C++17, with warnings as errors; then a program with extents of types
# that a braced list of C++ refuses, and with lists of recorders.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for h in "$root"/include/rewind/*.h; do
    name=rewind/$(basename "$h")
    echo "#include <$name>" | cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c -
    echo "#include <$name>" | c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c++ -
    echo "$name"
done

for compiler in c++ clang++; do
    command -v "$compiler" >/dev/null || { echo "no $compiler"; continue; }
    "$compiler" -std=c++17 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c++ - <<'PROGRAM'
#include <rewind/rewind.h>
#include <vector>
static constexpr rw_shape fixed = RW_SHAPE(2, 3, 4);
static_assert(fixed.rank == 3 && fixed.dim[2] == 4, "");
rw_tensor *table(rw_context *ctx, const std::vector<float> &v)
{
    return rw_param(ctx, "table", RW_F32, RW_SHAPE(v.size(), 4));
}
rw_status step(rw_tape *t, rw_tensor *loss, rw_optimizer *opt, rw_scaler *scaler)
{
    const rw_backward_params list{ { scaler ? rw_record_scaler(scaler) : rw_record_nothing(), rw_record_update(opt) } };
    rw_graph_params of_graph = { { rw_record_clip(1.0), rw_record_update(opt) } };
    of_graph.recorders[RW_RECORDERS_MAX - 1] = rw_record_nothing();
    return rw_backward_with(t, loss, &list);
}
PROGRAM
    echo "RW_SHAPE, lists of recorders: $compiler"
done
