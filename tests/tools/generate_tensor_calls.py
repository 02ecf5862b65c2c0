#!/usr/bin/env python3
"""Writes a C header with one function for each public function that takes a tensor, generated from the public headers.

    generate_tensor_calls.py OUTPUT INCLUDE_DIRECTORY

A generated function calls the public one with valid arguments, except for the tensor at one place: an argument, the
first element of an array, a member of an options struct. It passes the result to told()
(tests/api/tensor_kinds_as_arguments.c).
"""
import glob
import os
import re
import sys

# Valid arguments by type. A struct that is only written gets memory of its own.
BY_TYPE = {
    'rw_site': 'RW_HERE', 'rw_tape *': 'w->t', 'const rw_tape *': 'w->t', 'double': '0.5', 'int': '1', 'int32_t': '1',
    'int64_t': '1', 'uint32_t': 'RW_ALL_AXES', 'unsigned': '1', 'bool': 'false', 'size_t': '64',
    'rw_tensor **': 'w->out', 'const char *': '"full"', 'const void *': 'w->bytes', 'void *': 'w->bytes',
    'rw_dtype': 'RW_F32',
    'rw_shape': 'RW_SHAPE(4, 4)', 'rw_graph **': '&w->graph', 'FILE *': 'w->file', 'rw_custom_grad_fn': 'no_gradient',
    'const rw_weight_average *': 'w->average', 'rw_optimizer *': 'w->optimizer', 'rw_scaler *': 'w->scaler',
    'const rw_delayed_scaling *': 'w->delayed', 'const rw_op_def *': '&same_op', 'const int64_t *': 'w->sizes',
    'const int *': 'w->axes', 'size_t *': 'w->counts', 'rw_grad_call *': None,
}


def without_comments(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*|^#[^\n]*(\\\n[^\n]*)*', '', text, flags=re.S | re.M)


def declarations(folder):
    texts = [without_comments(open(path).read()) for path in sorted(glob.glob(os.path.join(folder, '*.h')))]
    structs, functions = {}, []
    for text in texts:
        for name, body in re.findall(r'typedef struct (\w+) \{(.*?)\} \1;', text, flags=re.S):
            members = []
            for line in body.split(';'):
                found = re.fullmatch(r'\s*rw_tensor (\*.*)', ' '.join(line.split()))
                members += [m.strip(' *') for m in found[1].split(',')] if found else []
            structs[name] = members
        for ret, name, arguments in re.findall(r'RW_API\s+([^;()]*?)(\w+)\(([^;]*?)\);', text):
            functions.append((' '.join(ret.split()), name, [split(a) for a in ' '.join(arguments.split()).split(', ')]))
    return structs, functions


def split(argument):
    found = re.fullmatch(r'(.*?)(\w+)(\[\d*\])?', argument)
    return (found[1].strip() + (' *' if found[3] else ''), found[2]) if found else (argument, '')


def argument_text(kind, name, at, structs, many):
    """The argument, and the number of places for a tensor that it has, the first of which is number `at`."""
    place = f'at == {at} ? x : w->good'
    if kind in ('rw_tensor *', 'const rw_tensor *'):
        return place, 1
    if kind == 'rw_tensor *const *':
        return f'(rw_tensor *[]){{ {place}, w->good }}', 1
    if kind in ('int', 'size_t') and name == 'n':
        return '2' if many else '1', 0
    if kind in BY_TYPE:
        return BY_TYPE[kind], 0
    pointer = re.fullmatch(r'(const )?(\w+) \*', kind)
    if not pointer:
        return f'({kind})0', 0
    members = structs.get(pointer[2], []) if pointer[1] else []
    values = ', '.join(f'.{m} = at == {at + i} ? x : {"w->good" if required(pointer[2]) else "NULL"}'
                       for i, m in enumerate(members))
    return f'&({pointer[2]}){{ {values or "0"} }}', len(members)


def required(struct):
    return struct in ('rw_moe_routes', 'rw_recurrent_weights', 'rw_ssd_operands', 'rw_quantized')


def main():
    structs, functions = declarations(sys.argv[2])
    rows, texts = [], []
    for ret, name, arguments in functions:
        kinds = [kind for kind, _ in arguments]
        if not any('rw_tensor' in kind for kind in kinds) and \
                not any(structs.get(kind[6:-2]) for kind in kinds if kind.startswith('const ')):
            continue
        if any('rw_grad_call *' in kind for kind in kinds):  # only for gradient rules
            continue
        many, at, values = 'rw_tensor *const *' in kinds, 0, []
        for kind, argument in arguments:
            text, places = argument_text(kind, argument, at, structs, many)
            values.append(text)
            at += places
        call = f'{name}({", ".join(values)})'
        records = ret == 'rw_tensor *' and 'rw_tape *' in kinds
        says = 'STATUS' if ret == 'rw_status' else 'RECORDED' if records else 'ANSWER'
        result = {'STATUS': f'(intptr_t){call}', 'RECORDED': f'(intptr_t)(void *){call}',
                  'ANSWER': f'((void){call}, 0)'}[says]
        texts.append(f'static void call_{name}(struct walk *w, int at, rw_tensor *x)\n{{\n'
                     f'    told(w, "{name}", {says}, {result});\n}}\n')
        rows.append(f'    {{ "{name}", call_{name}, {at} }},')
    with open(sys.argv[1], 'w') as f:
        f.write('\n'.join(texts) + '\nstatic const struct call calls[] = {\n' + '\n'.join(rows) + '\n};\n')


if __name__ == '__main__':
    main()
