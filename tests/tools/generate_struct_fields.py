#!/usr/bin/env python3
"""Writes a C header with one row for each field of the named structs, generated from their definitions.

    generate_struct_fields.py OUTPUT NAME=HEADER...
                     NAME: a tag ("rw_node"), or with "typedef:" a type ("typedef:rw_layout")
                     extensions=DIRECTORY: the names of all descriptors in its sources, as fields of "rw_extension"
    generate_struct_fields.py OUTPUT doubles INCLUDE_DIRECTORY
                     only the double and float members of all structs that the public headers define: one row each,
                     the struct and the member

A row has the struct, the field, and a function that changes the field of an object: a number by one bit, a boolean to
its opposite, a text to another one, an array in its first element. It is NULL for a field that cannot be changed alone:
another struct, a pointer to anything else.
"""
import os
import re
import sys

NUMBERS = re.compile(r'^(const )?(u?int\d+_t|size_t|int|unsigned|unsigned char|char|double|bool|enum \w+|rw_dtype|'
                     r'rw_device)$')


def without_comments(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*|^#[^\n]*', '', text, flags=re.S | re.M)


def body_of(text, name):
    typedef = name.startswith('typedef:')
    bare = name.removeprefix('typedef:')
    start = re.search(r'(typedef )?struct %s \{' % bare, text)
    if not start:
        sys.exit(f'generate_struct_fields.py: struct {bare} is not defined in its header')
    depth, at = 1, start.end()
    while depth:
        depth += {'{': 1, '}': -1}.get(text[at], 0)
        at += 1
    return ('' if typedef else 'struct ') + bare, bare, text[start.end():at - 1]


def declarations(body):
    """Splits at semicolons outside braces; the members of an anonymous union are members."""
    depth, at = 0, 0
    for i, c in enumerate(body):
        depth += {'{': 1, '}': -1}.get(c, 0)
        if c != ';' or depth:
            continue
        text = ' '.join(body[at:i].split())
        at = i + 1
        anonymous = re.fullmatch(r'union \{(.*)\}', text)
        if anonymous:
            yield from declarations(anonymous[1])
        elif text:
            yield text


def fields(body):
    for text in declarations(body):
        text = re.sub(r'\{.*\}', '', text)  # a struct that is defined in place
        called = re.search(r'\(\*(\w+)\)\(', text)
        if called:
            yield called[1], 'pointer', ''
            continue
        first, *others = text.split(',')
        base, star, name, rest = re.fullmatch(r'(.*?)([ *]+)(\w+)((?:\[[^]]*\])*)(?: : \d+)?', first.strip()).groups()
        yield name, base + ' ' + star.replace(' ', ''), rest
        for other in others:
            star, name, rest = re.fullmatch(r'(\**)(\w+)((?:\[[^]]*\])*)(?: : \d+)?', other.strip()).groups()
            yield name, base + ' ' + star, rest


def change(kind, name, array):
    kind = kind.strip()
    if array.count('['):
        name += '[0]' * array.count('[')
    if kind in ('char *', 'const char *'):
        return f'x->{name} = (char *)(uintptr_t)"another"'
    if kind == 'char **':
        return f'x->{name} = another_list'
    if not NUMBERS.match(kind):
        return None
    return f'x->{name} = !x->{name}' if kind == 'bool' else \
        f'x->{name} += 1' if kind == 'double' else f'x->{name} ^= 1'


def doubles(directory):
    """One row per member. A struct that is defined inside another has no name of its own, so it may have none."""
    rows = []
    for header in sorted(os.listdir(directory)):
        with open(os.path.join(directory, header)) as f:
            text = without_comments(f.read())
        for name in re.findall(r'\bstruct (\w+) \{', text):
            bare, body = body_of(text, name)[1:]
            if re.search(r'\{[^}]*\b(double|float)\b', body):
                sys.exit(f'generate_struct_fields.py: {header}: {bare} has a number in a struct without a name')
            numbers = ';'.join(d for d in declarations(body) if re.match(r'(const )?(double|float) [^*]', d)) + ';'
            rows += [f'    {{ "{bare}", "{field}" }},' for field, *_ in fields(numbers)]
    return rows


def extensions(directory):
    """The name in each descriptor of runtime/record/extension.h."""
    for folder, _, names in sorted(os.walk(directory)):
        for name in sorted(n for n in names if n.endswith('.c')):
            with open(os.path.join(folder, name)) as f:
                yield from re.findall(r'struct rw_extension \w+ = \{\s*\.name = "(\w+)"', f.read())


def main():
    if sys.argv[2] == 'doubles':
        with open(sys.argv[1], 'w') as f:
            f.write('static const struct double_member doubles[] = {\n' + '\n'.join(doubles(sys.argv[3])) + '\n};\n')
        return
    rows, functions = [], []
    for argument in sys.argv[2:]:
        name, header = argument.split('=')
        if name == 'extensions':
            rows += [f'    {{ "rw_extension", "{e}", NULL }},' for e in extensions(header)]
            continue
        with open(header) as f:
            kind, bare, body = body_of(without_comments(f.read()), name)
        for field, type_of, array in fields(body):
            text = change(type_of, field, array)
            function = f'change_{bare}_{field}'
            if text:
                functions.append(f'static void {function}(void *object)\n{{\n    {kind} *const x = object;\n'
                                 f'    {text};\n}}\n')
            rows.append(f'    {{ "{bare}", "{field}", {function if text else "NULL"} }},')
    with open(sys.argv[1], 'w') as f:
        f.write('static char *another_list[8] = { "another", "another", "another", "another", "another", "another", '
                '"another", "another" };\n\n')
        f.write('\n'.join(functions))
        f.write('\nstatic const struct field fields[] = {\n' + '\n'.join(rows) + '\n};\n')


main()
