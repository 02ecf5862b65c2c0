#!/usr/bin/env python3
"""Doxygen's input filter (Doxyfile.in): translates the headers' conventions to Doxygen's commands, and prints the file.

Lines keep their numbers, so warnings name the line of the header.

- `rewind/NAME.h - purpose` is the file's description. The example between the marks [NAME] in
  examples/by_header/ follows it.
- `rw_NAME(...)` that passes RW_HERE to `rw_NAME_at(rw_site at, ...)` is shown as a function without `at`.
- A comment that begins with a line of dashes is a section. Its text applies to the functions that follow.
- A declaration on the line after another one shares its comment.
- `rw_name()` is a link, and an unknown name is a warning.

WARN_NO_PARAMDOC requires a text for each parameter and result. It comes from, in this order:

1. `@param` and `@return` in the function's comment;
2. `@param` in the comment of the section, or of the file: the parameters that its functions have in common;
3. the type of the object that a function belongs to: `rw_monitor *monitor` is the monitor;
4. the function's description, if it names the parameter, or begins with "Returns" or "True".
A function that records an op returns its result. Everything else has no text, and Doxygen reports it.
"""
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKEN = re.compile(r'/\*.*?\*/|[^/]+|/', re.S)
DECLARATION = re.compile(r'^((?:RW_API|static inline) [^;{]*?)(\b\w+)\(((?:[^()]|\([^()]*\))*)\)'
                         r'(?= RW_PRINTF|;|\n)', re.M)
AT_MACRO = re.compile(r'^#define (\w+)\(\.\.\.\) \1_at\(RW_HERE, __VA_ARGS__\)$', re.M)
OBJECT = re.compile(r'(?:const )?(?:rw|ckpt)_(?!tensor\b)(\w+) \*(\w+)')
SEE = 'see the description above'
RESULT = 'the result, owned by the tape until rw_tape_reset(); NULL on an error, which the context keeps'


@functools.cache
def opaque_types():
    """Types without members, without their prefix: `typedef struct rw_tape rw_tape;`."""
    found = [re.findall(r'typedef struct rw_(\w+) rw_\1;', path.read_text())
             for path in (ROOT / 'include/rewind').glob('*.h')]
    return {name for names in found for name in names}


def texts_of(comment, command):
    """The texts of a command in a comment: [(arguments, text)]."""
    plain = re.sub(r'\n[ *]*', '\n', comment).rstrip('*/ \n')
    names = r'((?:\w+, )*\w+)\s+' if command == '@param' else '()'
    return re.findall(rf'{command}\s+{names}(.*?)(?=\n@|\n\n|$|@return|\nErrors:)', plain, re.S)


def params_of(comment):
    return {name: ' '.join(text.split()) for names, text in texts_of(comment, '@param') for name in names.split(', ')}


def names_it(comment, name):
    """Whether a description speaks of a parameter. The article is not the parameter a."""
    verbs = r'(?=\s*(?:[^\sa-z]|and\b|or\b|to the\b|where\b|if\b|are\b))' if name == 'a' else ''
    return re.search(rf'(?<!\w)(?<!\w\.){name}\b{verbs}', comment) is not None


def first_sentence(comment):
    plain = ' '.join(re.sub(r'\n[ *]*', ' ', comment.split('@')[0]).strip('/* \n').split())
    return linked(re.split(r'\.(?= [A-Z]| rw_| ckpt_|$)', plain)[0])


def parameters(text):
    """The (type, name) of each parameter of a declaration; functions as parameters have none here."""
    for one in re.sub(r'\s+', ' ', text).split(','):
        found = re.fullmatch(r'(.*?)(\w+)(?:\[\w*\])?', one.strip())
        if found and one.strip() != 'void':
            yield found[1].strip(), found[2]


def commands(comment, shared, kind, name, args):
    """What rules 2 to 4 add to the comment of a function."""
    own, texts = params_of(comment), []
    pairs = list(parameters(args))
    for position, (declared, param) in enumerate(pairs):
        thing = OBJECT.fullmatch(f'{declared}{"" if declared.endswith("*") else " "}{param}')
        text = None
        if param in own:
            continue
        if param in shared:
            text = shared[param]
        elif thing and (position == 0 or thing[1] in ('context', 'tape')) and thing[1] in opaque_types():
            text = f'the {thing[1].replace("_", " ")}'
        elif names_it(comment, param):
            text = SEE
        if text and texts and texts[-1][1] == text:
            texts[-1][0].append(param)
        elif text:
            texts.append(([param], text))
    added = [f'@param {",".join(names)} {linked(text)}' for names, text in texts]
    if '@return' in comment or re.search(r'\bvoid $', kind):
        return added
    first = first_sentence(comment)
    if re.match(r'Returns |True ', first):
        return added + [f'@return {re.sub("^Returns ", "", first).replace("True ", "true ", 1)}.']
    returned = re.search(r'[^.]*\bReturns ([^.]*)\.', ' '.join(comment.replace('*', ' ').split()))
    if returned:
        return added + [f'@return {returned[1]}']
    if kind.endswith('rw_tensor *') and pairs and pairs[0] == ('rw_tape *', 't'):
        return added + [f'@return {RESULT}']
    return added


def linked(line):
    """Makes links of names in a line of text; four spaces begin a line of code."""
    if re.match(r'^ ?\*     |^     {4}', line):
        return line
    line = re.sub(r'(?<![\w#"/`])((?:rw|ckpt)_[a-z0-9_]+)\(\)', r'#\1()', line)
    return re.sub(r'(?<![\w`(/])docs/(\w+)\.md', r'@ref page_\1 "docs/\1.md"', line)


def joined_table(lines):
    """A row of a Markdown table has one line for Doxygen."""
    out, spare = [], 0
    for line in lines:
        if out and re.match(r' \* \|', out[-1]) and not out[-1].endswith('|'):
            out[-1] += ' ' + line.strip(' *')
            spare += 1
        else:
            if spare and not line.startswith(' * |'):
                out += [' *'] * spare
                spare = 0
            out.append(line)
    return out


def listed(lines):
    """Rows `   term   text` with their continuations are a list."""
    out, inside = [], False
    for line in lines:
        row = re.fullmatch(r' \* {2,3}(\S(?:.*?\S)??) {2,}(\S.*)', line)
        if row and not re.match(r'[-\d|]', row[1]):
            inside = True
            out.append(f' * - `{row[1]}` {row[2]}')
        elif inside and re.match(r' \* {8,}\S', line):
            out.append(' *   ' + line.strip(' *'))
        else:
            inside = False
            out.append(line)
    return out


def text_of(comment):
    lines = joined_table(listed(comment.split('\n')))
    body = '\n'.join(linked(line) for line in lines)
    body = re.sub(r'(?m)^( \* ?)(Errors|Thread-safety|Source|Sources): ', r'\1@label{\2} ', body)
    return body


def without_params(comment):
    """A comment without its `@param` lines, which apply to functions."""
    def blank(found):
        return '\n *' * found[0].count('\n')
    return re.sub(r'\n \* @param .*(?:\n \*  +\S.*)*', blank, comment)


def example_of(name):
    """The file of the example of a header, and the mark around it."""
    marked = [p.name for p in (ROOT / 'examples/by_header').glob('*.c') if f'//! [{name}]' in p.read_text()]
    return f'{marked[0] if marked else name + ".c"} {name}'


def of_file(comment, path):
    body = text_of(without_params(comment))
    body = re.sub(r'/\*\*\n \* rewind/(\S+) - (.)',
                  lambda m: f'/** @file rewind/{m[1]}\n * @brief {m[2].upper()}', body, count=1)
    if path.stem == 'rewind':
        body = re.sub(r'- `(\w+\.h)`', r'- rewind/\1:', body)
    return body.replace('\n *\n', f'\n * @example_of{{{example_of(path.stem)}}}\n', 1)


def of_section(comment, is_open):
    """A section: a title, which is its first sentence, and a text."""
    body = without_params(comment)
    dashes = re.compile(r'^/?[ *]*-{10,}$|^/\*$')
    lines = [dashes.sub('/**' if i == 0 else ' *', line) for i, line in enumerate(body.split('\n'))]
    one = re.fullmatch(r'/\* -+ (.*?) -+ \*/', body)
    text = ' '.join(one[1].capitalize().split()) + '.' if one else ''
    lines = ['/** */'] if one else lines
    for i, line in enumerate(lines):
        found = re.match(r' \* (.*?)\.(?: (.*))?$', line)
        if not text and found:
            text = found[1] + '.'
            lines[i] = f' * {found[2] or ""}'
            break
    close = '/**@}*/ ' if is_open else ''
    inner = text_of('\n'.join(lines))
    inner = re.sub(r'^/\*\*', f'{close}/** @name {text[:-1]}@end_of_line ', inner)
    return inner[:-2] + '*/ /**@{*/'


def of_end(comment, path):
    """A comment after the last declaration belongs to the file: headings and texts."""
    lines = text_of(comment).split('\n')
    for i, line in enumerate(lines):
        alone = re.fullmatch(r' \* ([A-Z][^.:|]*)', line)
        if alone and lines[i + 1] == ' *' and lines[i - 1] in (' *', '/*'):
            lines[i] = f' * @par {alone[1]}'
    return f'/** @file rewind/{path.name}\n' + '\n'.join(lines[1:])


def with_commands(comment, added):
    """Adds commands to a comment: parameters before its own first command, the result at the end."""
    parameters_of = ' '.join(c for c in added if c.startswith('@param'))
    results = [c for c in added if not c.startswith('@param')]
    first = re.search(r'@(?:param|return)', comment)
    if first and parameters_of:
        comment = f'{comment[:first.start()]}{parameters_of} {comment[first.start():]}'
    elif parameters_of:
        results.insert(0, parameters_of)
    end = comment.rstrip()[:-2].rstrip(' ')
    lead = ' * ' if end.endswith('\n') else ' '
    return f'{end}{lead}{" ".join(results)} */'


def header(source, path):
    pieces = TOKEN.findall(source)
    tokens = []
    for piece in pieces:  # code between comments is one token
        if tokens and not piece.startswith('/*') and not tokens[-1].startswith('/*'):
            tokens[-1] += piece
        else:
            tokens.append(piece)
    of_the_file = params_of(tokens[0])
    shared, is_open, last = dict(of_the_file), False, ''
    out = [of_file(tokens[0], path)]
    for i, token in enumerate(tokens[1:], 1):
        if not token.startswith('/*'):
            token, last = declarations(token, out, tokens[i - 1], shared, last)
            if is_open and '\n#ifdef __cplusplus\n}' in token:
                token, is_open = token.replace('\n#ifdef __cplusplus\n}', '/**@}*/\n#ifdef __cplusplus\n}', 1), False
            out.append(members(token, tokens[i - 1]))
        elif re.match(r'/\*\n? ?\*? -{4,}', token):
            shared = {**of_the_file, **params_of(token)}
            out.append(of_section(token, is_open))
            is_open = True
        elif re.match(r'/\*\n', token) and 'RW_API' not in ''.join(tokens[i:]):
            out.append(of_end(token, path))
        else:
            out.append(text_of(token) if token.startswith('/**') else token)
    return ''.join(out)


def members(code, before):
    """Repeats the text of `double beta1, beta2; ///< text`, or of the comment before it, for each of the names."""
    text = ' '.join(re.sub(r'\n[ *]*', ' ', before).strip('/* \n').split()) if before.startswith('/**') else ''

    def split(found):
        kind, names, own = found[1], re.split(r', ', found[2]), found[3] or ''
        note = own.replace('///<', '').strip()
        lead = text if not note and not code[:found.start()].strip() else ''
        parts = [f'{kind}{name};' + (f' /**< {linked(note or lead)} */' if note or lead and i else '')
                 for i, name in enumerate(names)]
        return '    ' + ' '.join(parts)

    return re.sub(r'(?m)^    ((?:const )?\w+ )([*\w]+(?:, [*\w]+)+);( *///< .*)?$', split, code)


def declarations(code, out, comment, shared, last):
    """Rewrites the declarations between two comments. The first one's comment is the last item of `out`."""
    macros, first = set(AT_MACRO.findall(code)), True
    code = AT_MACRO.sub('\0', code)  # keeps a removed line apart from an empty one

    def rewrite(found):
        nonlocal first, last
        kind, name, args = found[1], found[2], found[3]
        before = code[:found.start()].strip()
        own = comment if first and comment.startswith('/**') and not before else ''
        shown = name
        if name.endswith('_at') and name[:-3] in macros:
            shown, args = name[:-3], re.sub(r'^rw_site at, ', '', args)
        text, share = '', own or last
        kind_of = kind.replace('RW_API ', '').replace('static inline ', '')
        if own:
            out[-1] = with_commands(out[-1], commands(own, shared, kind_of, shown, args))
        elif share and not code[:found.start()].endswith('\n\n'):
            rest = ' '.join(f'@{c} {n} {" ".join(t.split())}' for c in ('param', 'return')
                            for n, t in texts_of(share, '@' + c))
            brief = first_sentence(share)
            text = with_commands(f'/** {brief}. {rest} */', commands(share, shared, kind_of, shown, args)) + ' '
        first, last = False, share if own or text else ''
        return f'{text}{kind}{shown}({args})'

    return DECLARATION.sub(rewrite, code).replace('\0', ''), last


def page(source, path):
    """A page of docs/: headings get labels, and links name them."""
    def label(name, heading):
        return f'{name}-' + re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-').strip('-')

    out, code, depth = [], False, 1
    for line in source.split('\n'):
        if line.startswith('```'):
            code = not code
        heading = None if code else re.fullmatch(r'(#+) (.*)', line)
        if heading and path.stem == 'main' and len(heading[1]) == 1:
            pass
        elif heading and len(heading[1]) == 1:
            line = f'# {heading[2]} {{#page_{path.stem}}}'
        elif heading:
            depth = min(len(heading[1]), depth + 1)
            line = f'{"#" * depth} {heading[2]} {{#{label(path.stem, heading[2])}}}'
        elif not code:
            line = re.sub(r'\]\((\w+)\.md\)', r'](@ref page_\1)', line)
            line = re.sub(r'\]\((\w*)(?:\.md)?#([\w-]+)\)', lambda m: f'](@ref {m[1] or path.stem}-{m[2]})', line)
            line = re.sub(r'\[([^\]]*)\]\(\.\./include/(rewind/\w+\.h)\)', r'[\1](@ref \2)', line)
            line = re.sub(r'\[([^\]]*)\]\(\.\./([^)]*)\)', r'\1 (`\2`)', line)
        out.append(line)
    return '\n'.join(out)


def main():
    path = pathlib.Path(sys.argv[1])
    source = path.read_text()
    print(page(source, path) if path.suffix == '.md' else header(source, path), end='')


if __name__ == '__main__':
    main()
