#!/usr/bin/env python3
"""Translates PTX to C++ that run.h runs under the simulator's fibers.

    translate.py NAME.ptx NAME.cc... [FAULTS.txt]

An instruction becomes a call of the function of isa.h or run.h with its name, which implements it. The kernels are
dealt to the outputs in turn, because a compiler takes minutes for a long one. A kernel with an unsupported instruction
is omitted: a comment of the first output names the kernel and the instruction. One line gives the number of kernels.

FAULTS.txt lists mistakes in the format of faults.txt: the outputs contain all of them, each with a switch (run.h).
"""
import re
import sys
from dataclasses import dataclass, field

TYPES = {t: f"ptx::{t}" for t in ("pred u8 s8 b8 u16 s16 b16 u32 s32 b32 u64 s64 b64 f32 f64").split()}
REGISTERS = {"pred": "bool", "8": "uint8_t", "16": "uint16_t", "32": "uint32_t", "64": "uint64_t"}
SPECIAL = {f"%{ptx}.{axis}": f"{host}.{axis}" for axis in "xyz" for ptx, host in
           (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))}
# Instructions without memory, control flow or several results: functions of isa.h with one template argument per type
PLAIN = set("""add add_rn add_rz sub sub_rn mul_lo mul_hi mul_wide mul_rn mad_lo mad_wide fma_rn fma_rm div div_rn rem
rcp_rn sqrt_rn neg abs copysign max min ex2_approx ex2_approx_ftz rcp_approx_ftz and or xor not shl shr
bfi prmt popc clz lop3 selp cvt cvt_rn cvt_sat cvt_rzi cvt_rni cvt_rmi cvt_rpi""".split())
PLAIN |= {"setp_" + c for c in "eq ne lt le gt ge equ neu ltu leu gtu geu nan num".split()}
WORDS = {"and", "or", "xor", "not"}  # names that are reserved in C++
ADDRESSED = ("global", "shared", "param", "local")
CACHE = {"nc", "wb", "wt", "ca", "cg", "cs", "lu", "cv", "volatile", "relaxed", "gpu", "cta", "sys", "L1::no_allocate"}


class Unknown(Exception):
    """An instruction or operand that has no translation."""


def width(kind):
    """The bits of a type, as text; pred for a predicate."""
    return "pred" if kind == "pred" else re.sub(r"\D", "", kind)


def identifier(name):
    """A C++ name for a PTX one."""
    return re.sub(r"\W", "_", name.replace("%", "r_").replace("$", "_"))


def split(text):
    """Operands, separated by commas outside of brackets."""
    return [x.strip() for x in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(])+", text) if x.strip()]


def vector(operand):
    """The members of {a, b}; one operand alone is one member."""
    return split(operand[1:-1]) if operand.startswith("{") else [operand]


def statements(body):
    """The statements of a function's body: '{' and '}' of scopes, 'label:', and text that ends with a semicolon."""
    text = ""
    depth = 0
    for ch in body:
        if ch == "{" and not text.strip() or ch == "}" and not depth:
            yield ch
            text = ""
        elif ch == ";":
            yield " ".join(text.split())
            text = ""
        elif ch == ":" and re.fullmatch(r"\s*[\w$]+", text):
            yield text.strip() + ":"
            text = ""
        else:
            depth += (ch == "{") - (ch == "}")
            text += ch


@dataclass
class Variable:
    """A variable of one of the spaces."""
    name: str
    size: int
    align: int


def variable(text):
    """Parses '.align 8 .b8 name[16]' or '.u64 name'."""
    m = re.match(r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)(?:\[(\d*)\])?$", text.strip())
    if not m:
        raise Unknown(text)
    one = int(width(m[2])) // 8
    return Variable(m[3], one * int(m[4] or 0) if m[4] is not None else one, int(m[1] or one))


@dataclass
class Fault:
    """A mistake: the replacement of matching instructions, in the kernels of one file."""
    number: int
    name: str
    kernel: str
    pattern: str
    instead: str = ""
    places: int = 0

    def of(self, kernel, text):
        """The replacement of an instruction; None: the instruction itself."""
        if not re.search(self.kernel, kernel) or not re.fullmatch(self.pattern, text):
            return None
        return re.sub(self.pattern, self.instead, text)


def read_faults(path, file):
    """The mistakes of one .cu file. Their numbers are their positions in the list."""
    faults, here, number = [], False, 0
    for line in open(path, encoding="utf-8"):
        kind, rest = line[:2], line[2:].strip()
        if m := re.match(r"(\w+): (\w+):(\S+)", line):
            number += 1
            here = m[2] == file
            if here:
                faults.append(Fault(number, m[1], m[3], ""))
        elif here and kind == "- ":
            faults[-1].pattern = rest
        elif here and kind == "+ ":
            faults[-1].instead = rest
    return faults


@dataclass
class Function:
    """One .entry or .func."""
    name: str
    entry: bool
    results: list
    parameters: list
    body: str
    modules: dict  # the module's variables: name -> C++ expression of its address
    functions: dict  # names of the module's functions -> C++ names
    scopes: list = field(default_factory=lambda: [{}])  # registers: name -> type
    places: dict = field(default_factory=dict)  # variables of this function: name -> C++ expression of its address
    shared: int = 0
    depot: Variable = None
    lines: list = field(default_factory=list)
    approximate: bool = False
    faults: list = field(default_factory=list)

    # Operands

    def register(self, name):
        """The type of a register, or None."""
        return next((s[name] for s in reversed(self.scopes) if name in s), None)

    def read(self, x):
        """An operand as an expression: a number, whose type depends on its use."""
        if x.startswith("!"):
            return "!" + self.read(x[1:])
        if self.register(x):
            return identifier(x)
        if x in SPECIAL:
            return SPECIAL[x]
        for places in (self.places, self.modules):
            if x in places:
                return places[x]
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", x):
            return f"0x{m[1]}u"
        if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", x):
            return f"0x{m[1]}ull"
        if m := re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", x):
            return f"{hex(int(x.rstrip('U'), 0) & (1 << 64) - 1)}ull"
        raise Unknown("operand " + x)

    def write(self, x, value):
        """A statement that assigns a value to a register."""
        if x == "_":
            return f"(void)({value});"
        kind = self.register(x)
        if not kind:
            raise Unknown("result " + x)
        return f"{identifier(x)} = static_cast<{REGISTERS[width(kind)]}>({value});"

    def address(self, operand, space, size):
        """A checked pointer to [a + offset]."""
        m = re.fullmatch(r"\[\s*([^+\s]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand)
        if not m:
            raise Unknown("address " + operand)
        at = f"static_cast<uint64_t>({self.read(m[1])}) + {m[2] or 0}"
        if space == "shared":  # shared addresses have 32 bits
            at = f"static_cast<uint32_t>({at})"
        if space == "local":
            return f"ptx::local_at({at}, {size}, depot, sizeof depot)"
        return f"ptx::{space}_at({at}, {size})"

    # ---- instructions ----

    def memory(self, parts, operands):
        """ld and st, of one number or of a vector."""
        kind = parts[-1]
        rest = [p for p in parts[1:-1] if p not in CACHE and p not in ("v2", "v4")]
        space = rest.pop(0) if rest and rest[0] in ADDRESSED else "generic"
        if rest or kind not in TYPES:
            raise Unknown(".".join(parts))
        loads = parts[0] == "ld"
        values = vector(operands[0 if loads else 1])
        size = int(width(kind)) // 8
        at = self.address(operands[1 if loads else 0], space, size * len(values))
        # Loads the whole vector before it writes the first result, which may be the address
        out = [f"char *const at = {at};"]
        if loads:
            out += [f"const auto x{i} = ptx::load<{TYPES[kind]}>(at + {i * size});" for i in range(len(values))]
            out += [self.write(v, f"x{i}") for i, v in enumerate(values)]
        else:
            out += [f"ptx::store<{TYPES[kind]}>(at + {i * size}, {self.cut(v, kind)});" for i, v in enumerate(values)]
            if kind in ("f32", "f64") and space in ("global", "generic"):
                out.append(f"ptx::note_numbers(at, {size}, {len(values)});")
        return " ".join(out)

    def cut(self, x, kind):
        """An operand as the bits of a type."""
        return f"static_cast<typename {TYPES[kind]}::bits>({self.read(x)})"

    def move(self, kind, operands):
        """mov, which also packs and unpacks."""
        to, what = operands
        if to.startswith("{"):
            each = int(width(kind)) // len(vector(to))
            return f"const uint64_t x = {self.read(what)}; " + " ".join(
                self.write(r, f"x >> {each * i}") for i, r in enumerate(vector(to)))
        if what.startswith("{"):
            each = int(width(kind)) // len(vector(what))
            return self.write(to, " | ".join(
                f"static_cast<uint64_t>({self.cut(r, 'b%d' % each)}) << {each * i}"
                for i, r in enumerate(vector(what))))
        return self.write(to, self.read(what))

    def carried(self, parts, operands):
        """Additions and subtractions that set or use the carry, and products with an addition."""
        kind = TYPES.get(parts[-1])
        inner = parts[0].endswith("c") and parts[0] != "sub"
        base = parts[0][:-1] if inner else parts[0]
        values = [self.read(x) for x in operands[1:]]
        if base == "mad":
            product = f"ptx::mul_{parts[1]}<{kind}>"
            values = [f"{product}({values[0]}, {values[1]})", values[2]]
        function = "sub_borrow" if base == "sub" else "add_carry"
        carry = "carry" if inner else "false"
        out = "&carry" if "cc" in parts else "nullptr"
        return self.write(operands[0], f"ptx::{function}<{kind}>({', '.join(values)}, {carry}, {out})")

    def shuffle(self, parts, operands):
        """shfl.sync, whose second result is whether the value is another lane's."""
        results = operands[0].split("|")
        values = ", ".join(self.read(x) for x in operands[1:])
        out = f"bool p; {self.write(results[0], f'ptx::shuffle_{parts[2]}({values}, &p)')}"
        return out + (" " + self.write(results[1], "p") if len(results) > 1 else "")

    def matrices(self, parts, operands):
        """ldmatrix and mma.sync: several results."""
        name = ".".join(parts)
        to = vector(operands[0])
        if m := re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared\.b16", name):
            call = f"ptx::load_matrices(d, static_cast<uint32_t>({self.read(operands[1][1:-1].strip())})," \
                   f" {'true' if m[1] else 'false'});"
            before = ""
        elif m := re.fullmatch(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16)\.\1\.f32", name):
            before = "".join(f"const uint32_t {x}[{n}] = {{ {', '.join(self.read(r) for r in vector(o))} }}; "
                             for x, n, o in zip("abc", (4, 2, 4), operands[1:]))
            call = f"ptx::multiply(d, a, b, c, {'true' if m[1] == 'bf16' else 'false'});"
        else:
            raise Unknown(name)
        return before + f"uint32_t d[4]; {call} " + " ".join(self.write(r, f"d[{i}]") for i, r in enumerate(to))

    def call(self, text):
        """call (results), name, (arguments): all of them are addresses of .param variables."""
        m = re.fullmatch(r"(?:\(\s*([^)]*)\)\s*,\s*)?([\w$]+)\s*(?:,\s*\(([^)]*)\))?", text)
        if not m or m[2] not in self.functions:
            raise Unknown("call " + (m[2] if m else text))
        self.approximate = True  # the functions are the toolkit's math functions
        given = [identifier(x) for part in (m[1], m[3]) for x in split(part or "")]
        return f"{self.functions[m[2]]}({', '.join(given)});"

    def instruction(self, name, text):
        """The C++ statements of one instruction."""
        parts = name.split(".")
        operands = split(text)
        first, kind = parts[0], parts[-1]
        if first in ("fma", "mad") and kind.startswith("f") or "approx" in parts:
            self.approximate = True
        types = [p for p in parts[1:] if p in TYPES]
        plain = "_".join(p for p in parts if p not in TYPES)
        if plain in PLAIN and types:
            function = plain + "_" if plain in WORDS else plain
            arguments = ", ".join(self.read(x) for x in operands[1:])
            return self.write(operands[0], f"ptx::{function}<{', '.join(TYPES[t] for t in types)}>({arguments})")
        if first == "mov" and kind in TYPES:
            return self.move(kind, operands)
        if first in ("ld", "st"):
            return self.memory(parts, operands)
        if "cc" in parts or first in ("addc", "subc", "madc"):
            return self.carried(parts, operands)
        if re.fullmatch(r"cvt\.rn\.b?f16x2\.f32|cvt(\.rn)?\.(b?f16\.f32|f32\.b?f16)", name):
            arguments = ", ".join(self.read(x) for x in operands[1:])
            short = name.replace(".f32", "", 1) if "x2" in name else name
            return self.write(operands[0], f"ptx::{short.replace('.', '_')}({arguments})")
        if first == "cvta":
            return self.write(operands[0], self.converted(name, self.read(operands[1])))
        if first == "shfl" and parts[1] == "sync":
            return self.shuffle(parts, operands)
        if first in ("ldmatrix", "mma"):
            return self.matrices(parts, operands)
        return self.other(name, operands)

    @staticmethod
    def converted(name, x):
        """cvta: between the generic address space and another one."""
        if ".shared" in name:
            return f"ptx::{'shared_of_generic' if '.to.' in name else 'generic_of_shared'}({x})"
        return x  # all other spaces have the host's addresses

    def other(self, name, operands):
        """Barriers, copies, atomics, warp operations."""
        a = [x if x.startswith("[") else self.read(x) for x in operands]
        if name in ("bar.sync", "barrier.sync") and len(a) == 1:
            return f"ptx::barrier({a[0]});"
        if name == "bar.warp.sync":
            return f"ptx::warp_barrier(static_cast<uint32_t>({a[0]}));"
        if re.fullmatch(r"cp\.async\.c[ag]\.shared\.global", name):
            to, from_ = (self.address(operands[i], s, a[2]) for i, s in enumerate(("shared", "global")))
            return f"ptx::copy_async({to}, {from_}, {a[2]}, {a[3] if len(a) > 3 else a[2]});"
        if name == "cp.async.commit_group":
            return "ptx::copy_commit();"
        if name == "cp.async.wait_group":
            return f"ptx::copy_wait({a[0]});"
        if m := re.fullmatch(r"atom\.(shared|global)\.(add|max)\.(u32|s32|u64)", name):
            at = self.address(operands[1], m[1], int(width(m[3])) // 8)
            return self.write(operands[0], f"ptx::atom_{m[2]}<{TYPES[m[3]]}>({at}, {a[2]})")
        if name == "redux.sync.max.u32":
            return self.write(operands[0], f"ptx::reduce_max({a[1]}, {a[2]})")
        if name == "match.any.sync.b32":
            return self.write(operands[0], f"ptx::match_any({a[1]}, {a[2]})")
        raise Unknown(name)

    # Statements

    def declare(self, text):
        """.reg, .shared, .local and .param inside a body; anything else has no effect."""
        if m := re.match(r"\.reg\s+\.(\w+)\s+(.*)", text):
            names = []
            for name in split(m[2]):
                many = re.fullmatch(r"(.*)<(\d+)>", name)
                names += [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            self.scopes[-1].update((n, m[1]) for n in names)
            for i in range(0, len(names), 40):
                self.lines.append(f"{REGISTERS[width(m[1])]} {', '.join(map(identifier, names[i:i + 40]))};")
        elif m := re.match(r"\.shared\s+(.*)", text):
            v = variable(m[1])
            self.shared = -(-self.shared // v.align) * v.align
            self.places[v.name] = f"{self.shared}ull"
            self.shared += v.size
        elif m := re.match(r"\.(?:local|param)\s+(.*)", text):
            v = variable(m[1])
            name = identifier(v.name)
            if text.startswith(".local"):
                name = "depot"
            self.places[v.name] = f"reinterpret_cast<uint64_t>({name})"
            self.lines.append(f"alignas({max(v.align, 8)}) char {name}[{v.size}];")

    def statement(self, text):
        """Adds the C++ of one statement."""
        if text == "{":
            self.scopes.append({})
            self.lines.append(text)
        elif text == "}":
            self.scopes.pop()
            self.lines.append(text)
        elif text.endswith(":"):
            self.lines.append(identifier(text[:-1]) + ": ;")
        elif text.startswith("."):
            self.declare(text)
        elif text:
            line = self.guarded(text)
            for f in self.faults if self.entry else ():
                instead = f.of(self.name, text)
                if instead is not None:
                    f.places += 1
                    line = f"if (ptx::fault({f.number})) {{ {self.guarded(instead)} }} else {{ {line} }}"
            self.lines.append(line)

    def guarded(self, text):
        """The C++ of an instruction with or without a predicate; empty for no instruction."""
        guard = re.match(r"@(!?%?\w+)\s+(.*)", text)
        condition = f"if ({self.read(guard[1])}) " if guard else ""
        name, _, rest = (guard[2] if guard else text).partition(" ")
        if not name:
            return ";"
        if name in ("bra", "bra.uni"):
            return f"{condition}goto {identifier(rest)};"
        if name in ("ret", "exit", "ret.uni"):
            return condition + "return;"
        if name in ("call", "call.uni"):
            return f"{condition}{{ {self.call(rest)} }}"
        return f"{condition}{{ {self.instruction(name, rest)} }}"

    def lay_out(self):
        """Lays out a kernel's parameters, each at an offset of its alignment. Returns their total bytes."""
        at = 0
        for p in self.parameters:
            at = -(-at // p.align) * p.align
            self.places[p.name] = f"reinterpret_cast<uint64_t>(parameters + {at})"
            at += p.size
        return at

    def head(self):
        """The C++ function's declaration."""
        name = self.functions[self.name]
        if self.entry:
            return f"static void {name}(const char *parameters)"
        return f"static void {name}({', '.join('char *' + identifier(p.name) for p in self.results + self.parameters)})"

    def translate(self):
        """The C++ function, as text."""
        size = self.lay_out() if self.entry else 0
        if not self.entry:
            for p in self.results + self.parameters:
                self.places[p.name] = f"reinterpret_cast<uint64_t>({identifier(p.name)})"
        for s in statements(self.body):
            self.statement(s)
        self.size = size
        unused = "(void)parameters; " if self.entry else ""
        return f"{self.head()}\n{{\nbool carry = false; (void)carry; {unused}\n" + "\n".join(self.lines) + "\n}\n"


def host_symbol(name):
    """The symbol of the same kernel from the host's compiler, which mangles anonymous namespaces differently."""
    return re.sub(r"\d+_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(?=\d)", "12_GLOBAL__N_1", name)


def module_variables(text):
    """C++ of the module's tables, and name -> expression of the address of each variable."""
    places, lines = {}, []
    for m in re.finditer(r"^\.(?:visible\s+\.)?(?:global|const)\s+([^=;]*)=\s*\{([^}]*)\};", text, re.M):
        v = variable(m[1])
        lines.append(f"alignas({v.align}) static const unsigned char {identifier(v.name)}[{v.size}] = {{ {m[2]} }};")
        lines.append(f"static const ptx::module_variable at_{identifier(v.name)}({identifier(v.name)}, {v.size});")
        places[v.name] = f"reinterpret_cast<uint64_t>({identifier(v.name)})"
    for m in re.finditer(r"^\.extern\s+\.shared\s+([^;]*);", text, re.M):
        places[variable(m[1]).name] = "ptx::dynamic_offset()"
    shared = 0  # bytes of arrays of inlined functions, which precede each kernel's own
    for m in re.finditer(r"^\.shared\s+([^;]*);", text, re.M):
        v = variable(m[1])
        shared = -(-shared // v.align) * v.align
        places[v.name] = f"{shared}ull"
        shared += v.size
    return places, lines, shared


def functions(text, faults):
    """All functions that have a body."""
    modules, lines, shared = module_variables(text)
    names = {}
    found = []
    pattern = r"\.(entry|func)\s+(?:\(([^)]*)\)\s*)?([\w$]+)\s*\(([^)]*)\)([^;{]*)\{"
    for m in re.finditer(pattern, text):
        depth, end = 1, m.end()
        while depth:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        parameters, results = ([variable(p.replace(".param", "").strip()) for p in split(x or "")]
                               for x in (m[4], m[2]))
        names[m[3]] = f"f{len(found)}"
        found.append(Function(m[3], m[1] == "entry", results, parameters, text[m.end():end - 1], modules, names,
                              shared=shared, faults=faults))
    return found, lines


def write(path, name, helpers, kernels, missing):
    """C++ of some kernels of a file, (body, entry of the table) each, after the functions that they call."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('#include "run.h"\n' + "\n".join(helpers + [body for body, _ in kernels]))
        if kernels:
            file.write("static const ptx::kernel kernels[] = {\n" + "\n".join(entry for _, entry in kernels) + "\n};\n")
            file.write(f'static const ptx::module here("{name}", kernels, {len(kernels)});\n')
        file.writelines(f"/* not translated: {m} */\n" for m in missing)


def main():
    source, *outputs = [x for x in sys.argv[1:] if not x.endswith(".txt")]
    text = re.sub(r"//.*", "", open(source, encoding="utf-8", errors="replace").read())
    name = re.sub(r".*/|\.ptx$", "", source)
    faults = read_faults(sys.argv[-1], name) if sys.argv[-1].endswith(".txt") else []
    found, variables = functions(text, faults)
    if variables and len(outputs) > 1:
        sys.exit(f"{name}: has variables of the module, of which there is one each: write one output")
    missing, heads, bodies, kernels = [], [], [], []
    for f in sorted(found, key=lambda f: f.entry):
        try:
            body = f.translate()
        except Unknown as why:
            f.functions.pop(f.name)
            missing.append(f"{host_symbol(f.name)}: {why}")
            continue
        if f.entry:
            kernels.append((body, f'{{ "{host_symbol(f.name)}", {f.functions[f.name]}, {f.size}, {f.shared}, '
                                  f'{"true" if f.approximate else "false"} }},'))
        else:
            heads.append(f.head() + ";")
            bodies.append(body)
    entries = sum(f.entry for f in found)
    for i, path in enumerate(outputs):
        write(path, name, variables + heads + bodies, kernels[i::len(outputs)], [] if i else missing)
    print(f"{name}: {len(kernels)} of {entries} kernels translated")
    for m in missing:
        print(f"    {m}")
    if nowhere := [f.name for f in faults if not f.places]:
        sys.exit(f"{name}: these faults stand nowhere: {', '.join(nowhere)}")


if __name__ == "__main__":
    main()
