#!/usr/bin/env python3
"""Writes a C header with one call of each public function, generated from the public headers; and checks which
functions a kernel may call.

    generate_public_calls.py OUTPUT INCLUDE_DIRECTORY    writes the header
    generate_public_calls.py legal                       prints the functions that a kernel may call (rewind/op.h)

A generated function calls the public one with valid arguments, except for the argument number w->at, which is wrong in
the way w->which. It stores the result in w->answer. tests/api/every_public_function.c makes the calls.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from generate_tensor_calls import declarations  # noqa: E402

# Functions that neither execute nor change anything: a kernel, a gradient rule and an op's check may call them.
LEGAL = """
rw_status_name rw_error_message rw_error_status rw_dtype_size rw_dtype_name rw_dtype_is_float rw_dtype_is_code
rw_shape_numel rw_shape_equal rw_device_name rw_device_check rw_layout_shape rw_op_output rw_op_output_like
rw_op_output_view rw_op_error rw_tensor_layout rw_tensor_base rw_tensor_kind_of rw_tensor_name rw_tensor_shape
rw_tensor_dtype rw_tensor_bytes rw_tensor_requires_grad rw_param_get rw_param_find rw_tape_context rw_tape_nodes
rw_tape_pending_effects rw_context_create rw_context_device rw_context_stream rw_context_threads
rw_context_dropped_effects rw_generator_get rw_none rw_axes_ rw_recovery_name rw_alert_name rw_monitor_policy
rw_monitor_get_numbers rw_monitor_get_site rw_monitor_get_group rw_monitor_get_alert rw_costs_count
rw_lr_schedule_rate rw_moe_capacity rw_quantized_bytes rw_kernel_parallel
rw_delayed_scaling_row rw_weight_average_of rw_grad_tape rw_grad_attrs rw_grad_n_inputs rw_grad_n_outputs rw_grad_input
rw_grad_output rw_grad_upstream rw_grad_wanted rw_grad_dtype rw_grad_is_differentiable rw_grad_wants_column_sums
rw_grad_is_whole rw_grad_pieces_want_column_sums rw_grad_whole rw_grad_whole_wanted rw_op_check_shape
rw_op_operand_bytes rw_tensor_producer rw_tensor_producer_input rw_tensor_is_named_or_marked rw_tensor_number
rw_recipe_low_dtype rw_recipe_fp8
rw_nonfinite_print ckpt_policy
ckpt_unmatched_names ckpt_cause_name ckpt_report_print rw_version rw_record_clip rw_record_scaler rw_record_update
rw_record_update_inside rw_record_delayed_scaling rw_record_custom
""".split()

# By type: a valid argument, then wrong ones. An object that is created only if a function takes it: `the_...`.
NULLS = ['NULL']
BY_TYPE = {
    'rw_site': ('w->site', ['((rw_site){ NULL, 0 })']),
    'double': ('0.5', ['NAN', 'INFINITY', '-1.0', '1e308', '1e-320']),
    'int': ('1', ['-1', 'INT32_MIN', 'INT32_MAX']),
    'int32_t': ('1', ['-1', 'INT32_MIN']),
    'int64_t': ('1', ['0', '-1', 'INT64_MIN', 'INT64_MAX']),
    'uint64_t': ('1', ['UINT64_MAX']),
    'uint32_t': ('1', ['UINT32_MAX', '0']),
    'unsigned': ('1', ['UINT32_MAX', '0']),
    'bool': ('false', ['true']),
    'size_t': ('1', ['0']),
    'rw_shape': ('RW_SHAPE(4, 4)', ['((rw_shape){ .rank = 100 })', '((rw_shape){ .rank = -5 })', 'RW_SHAPE(-1, 4)',
                                    'RW_SHAPE(INT64_MAX, INT64_MAX)']),
    'rw_dtype': ('RW_F32', ['(rw_dtype)99', '(rw_dtype)-1', 'RW_BOOL', 'RW_F8_E4M3']),
    'rw_generator_state': ('((rw_generator_state){ 1, 1 })', []),
    'rw_custom_grad_fn': ('no_gradient', NULLS),
    'rw_kernel_job': ('no_job', NULLS),
    'rw_context *': ('w->ctx', NULLS),
    'rw_tape *': ('w->t', NULLS),
    'rw_tensor *': ('w->x', NULLS + ['w->gone', 'w->alien', 'w->value', 'RW_NONE']),
    'rw_tensor **': ('w->out', NULLS),
    'rw_tensor *const *': ('w->in', NULLS + ['w->nulls']),
    'rw_op_call *': ('NULL', []),
    'rw_grad_call *': ('NULL', []),
    'const rw_layout *': ('rw_tensor_layout(w->x)', NULLS),
    'const rw_op_def *': ('&same_op', NULLS),
    'const rw_quantized *': ('&w->quantized', NULLS + ['&(rw_quantized){ 0 }']),
    'const rw_moe_routes *': ('&(rw_moe_routes){ 0 }', NULLS),
    'const char *': ('"name"', NULLS + ['""', '"a/b,c;d:e"', '"\\xff\\n"']),
    'FILE *': ('w->file', NULLS),
    'const char **': ('((const char *[4]){ NULL })', NULLS),
    'const int *': ('w->axes', NULLS),
    'const int64_t *': ('w->sizes', NULLS),
    'size_t *': ('&w->count', NULLS),
    'char *': ('w->bytes', NULLS),
}
NAMED = {'path': ('w->path', NULLS + ['""', '"/no/such/folder/file"']),
         'function': ('"rw_recording_refused"', NULLS), 'argument': ('"x"', NULLS)}
LENGTH = ('1', ['0', 'SIZE_MAX', 'SIZE_MAX / 4 + 2', '((size_t)1 << 32) + 1'])
OBJECTS = ['optimizer', 'weight_average', 'scaler', 'delayed_scaling', 'graph', 'monitor', 'checkpoint']


def value_of(kind, name):
    if name in NAMED:
        return NAMED[name]
    if kind == 'size_t' and name == 'n':  # the length of an array
        return LENGTH
    bare = kind.removeprefix('const ')
    if kind in BY_TYPE or bare in BY_TYPE:
        return BY_TYPE.get(kind, BY_TYPE.get(bare))
    for thing in OBJECTS:
        if bare == f'rw_{thing} *':
            return f'the_{thing}(w)', NULLS
        if bare == f'rw_{thing} **':
            return (f'&w->made.{thing}' if name.startswith('ret_') else f'(the_{thing}(w), &w->{thing})'), NULLS
    if bare == 'rw_context **':
        return ('&w->made.ctx' if name.startswith('ret_') else '&w->ctx'), NULLS
    if bare == 'rw_tape **':
        return ('&w->made.tape' if name.startswith('ret_') else '&w->t'), NULLS
    if bare.endswith('*'):
        known = kind.startswith('const ') and bare != 'void *'
        return (f'({kind})(void *)w->{"zeros" if known else "bytes"}'), NULLS
    return f'({kind})0', [f'({kind})99', f'({kind})-1']


def call_of(name, arguments):
    """The call, the number of wrong values of each argument, and its name if the first of them is NULL."""
    texts, counts, nulls = [], [], []
    for i, (kind, label) in enumerate(arguments):
        if kind.startswith('...') or (kind + label).strip() == 'void':
            break
        sound, wrong = ('"%s", "text"', []) if label == 'fmt' else ('1, 0', []) if name == 'rw_axes_' else \
            value_of(kind.strip(), label)
        texts.append(f'PICK({i}, {kind.strip()}, {sound}, {", ".join(wrong)})' if wrong else sound)
        counts.append(len(wrong))
        nulls.append(f'"{label}"' if wrong[:1] == NULLS else 'NULL')
    return f'{name}({", ".join(texts)})', counts, nulls


def written(functions):
    rows = []
    for returns, name, arguments in functions:
        call, counts, nulls = call_of(name, arguments)
        yield f'static void call_{name}(struct world *w)'
        yield '{'
        if returns == 'rw_status':
            yield f'    w->answer.status = {call};'
        elif returns.endswith('*'):
            yield f'    w->answer.pointer = (const void *){call};'
        else:
            yield f'    {call};'
        yield '}'
        kind = 'STATUS' if returns == 'rw_status' else 'TENSOR' if returns == 'rw_tensor *' else 'OTHER'
        numbers, names = ', '.join(map(str, counts)) or '0', ', '.join(nulls) or 'NULL'
        types = ', '.join(kind.strip() for kind, _ in arguments)
        legal = str(name in LEGAL).lower()
        rows.append(f'    {{ "{name.removesuffix("_at")}", "{types}", call_{name}, {kind}, {legal}, {len(counts)}, '
                    f'{{ {numbers} }}, {{ {names} }} }},')
    yield 'static const struct call calls[] = {'
    yield from rows
    yield '};'


if __name__ == '__main__':
    if sys.argv[1:] == ['legal']:
        print('\n'.join(LEGAL))
        sys.exit()
    structs, functions = declarations(sys.argv[2])
    unknown = set(LEGAL) - {name for _, name, _ in functions}
    if unknown:
        sys.exit(f'generate_public_calls.py: no such function: {", ".join(sorted(unknown))}')
    with open(sys.argv[1], 'w') as f:
        f.write('\n'.join(written(functions)) + '\n')
