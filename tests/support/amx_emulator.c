/*
 * The emulator of AMX instructions of amx_emulator.h. Encodings and semantics are those of Intel's Software Developer's
 * Manual, volume 2: the pages LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBF16PS. Cases that these
 * call an error, and any other instruction, are passed to the previous handler of SIGILL.
 */
#include "support/amx_emulator.h"

static uint64_t own_counts[AMX_KINDS];
uint64_t *amx_counts = own_counts;

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, BYTES = 64 };

struct tile {
    _Alignas(64) unsigned char row[ROWS][BYTES];
    int rows, bytes; /* as configured; 0: no such register */
};

/* The memory format of LDTILECFG. */
struct configuration {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

static _Thread_local struct tile tiles[TILES];

/* ---- decoding ---- */

enum prefix { NONE, P66, PF3, PF2 };

struct instruction {
    const uint8_t *next;
    uint8_t opcode, reg, rm, vvvv;
    enum prefix prefix;
    bool memory, sib;
    uintptr_t at; /* of memory */
    intptr_t stride;
};

static intptr_t number(const greg_t *registers, int i)
{
    static const int order[] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15 };
    return (intptr_t)registers[order[i]];
}

static int32_t four_bytes(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* The memory operand whose ModRM byte is *p. x, b: the bits that the prefix adds to the index and base registers. */
static void decode_memory(struct instruction *i, const uint8_t *p, const greg_t *registers, int x, int b)
{
    const int mod = *p >> 6, rm = *p++ & 7;
    const int sib = rm == 4 ? *p++ : 0, base = (rm == 4 ? sib & 7 : rm) | b, index = (sib >> 3 & 7) | x;
    const bool relative = mod == 0 && rm == 5, absolute = mod == 0 && rm == 4 && (base & 7) == 5;
    intptr_t at = relative || absolute ? 0 : number(registers, base);
    i->sib = rm == 4;
    i->stride = i->sib && index != 4 ? (intptr_t)((uintptr_t)number(registers, index) << (sib >> 6)) : 0;
    if (mod == 1) at += (int8_t)*p++;
    if (mod == 2 || relative || absolute) at += four_bytes(p), p += 4;
    if (relative) at += (intptr_t)p;
    i->at = (uintptr_t)at;
    i->next = p;
}

/* Decodes an instruction with a prefix VEX.128.0F38.W0 and a tile, or none, in ModRM.reg. */
static bool decode(const uint8_t *p, const greg_t *registers, struct instruction *ret)
{
    if (p[0] != 0xc4 || (p[1] & 0x9f) != 0x82 || p[2] & 0x84) return false;
    const int x = p[1] & 0x40 ? 0 : 8, b = p[1] & 0x20 ? 0 : 8;
    *ret = (struct instruction){ .next = p + 5, .opcode = p[3], .reg = p[4] >> 3 & 7, .rm = (uint8_t)((p[4] & 7) | b),
                                 .vvvv = ~p[2] >> 3 & 15, .prefix = (enum prefix)(p[2] & 3), .memory = p[4] >> 6 != 3 };
    if (ret->memory) decode_memory(ret, p + 4, registers, x, b);
    return true;
}

/* The instruction's kind; AMX_KINDS: another instruction. */
static enum amx_kind kind_of(const struct instruction *i)
{
    const bool plain = !i->vvvv, rows = plain && i->memory && i->sib;
    if (i->opcode == 0x49 && i->prefix == NONE && plain && !i->reg && i->memory) return AMX_CONFIGURE;
    if (i->opcode == 0x49 && i->prefix == NONE && plain && !i->reg && !i->rm) return AMX_RELEASE;
    if (i->opcode == 0x49 && i->prefix == PF2 && plain && !i->memory && !i->rm) return AMX_ZERO;
    if (i->opcode == 0x4b && (i->prefix == PF2 || i->prefix == P66) && rows) return AMX_LOAD;
    if (i->opcode == 0x4b && i->prefix == PF3 && rows) return AMX_STORE;
    if (i->opcode == 0x5c && i->prefix == PF3 && !i->memory) return AMX_MULTIPLY;
    return AMX_KINDS;
}

/* ---- execution ---- */

static bool configure(const void *from)
{
    struct configuration c;
    memcpy(&c, from, sizeof c);
    if (c.palette > 1 || c.start) return false;
    for (int i = 0; i < 14; i++)
        if (c.reserved[i]) return false;
    for (int i = 0; i < 16; i++)
        if (c.rows[i] > ROWS || c.bytes[i] > BYTES || !c.rows[i] != !c.bytes[i] || (i >= TILES && c.rows[i]))
            return false;
    memset(tiles, 0, sizeof tiles);
    for (int i = 0; i < TILES && c.palette; i++) tiles[i].rows = c.rows[i], tiles[i].bytes = c.bytes[i];
    return true;
}

static void load(struct tile *t, const char *from, intptr_t stride)
{
    memset(t->row, 0, sizeof t->row);
    for (int i = 0; i < t->rows; i++) memcpy(t->row[i], from + i * stride, (size_t)t->bytes);
}

static void store(const struct tile *t, char *to, intptr_t stride)
{
    for (int i = 0; i < t->rows; i++) memcpy(to + i * stride, t->row[i], (size_t)t->bytes);
}

/* Two chains of fused multiply-adds, of the even and of the odd elements, start at zero for each row; their sum is
   added to the accumulator. Rounds to nearest even and flushes subnormal numbers, whatever mode the thread has set. */
__attribute__((target("avx512f"), noinline)) static void add_products(struct tile *c, const struct tile *a,
                                                                      const struct tile *b)
{
    const __mmask16 mask = (__mmask16)((1u << (c->bytes / 4)) - 1);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int m = 0; m < c->rows; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < a->bytes / 4; k++) {
            const __m512i x = _mm512_set1_epi32(four_bytes(a->row[m] + 4 * k)), y = _mm512_load_si512(b->row[k]);
            even = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(x, 16), (__m512)_mm512_slli_epi32(y, 16), even);
            odd = _mm512_fmadd_ps((__m512)_mm512_and_si512(x, high), (__m512)_mm512_and_si512(y, high), odd);
        }
        const __m512 sum = _mm512_add_ps(_mm512_load_ps(c->row[m]), _mm512_add_ps(even, odd));
        _mm512_store_ps(c->row[m], _mm512_maskz_mov_ps(mask, sum));
    }
}

static bool multiply(int to, int left, int right)
{
    struct tile *const c = &tiles[to];
    if (left >= TILES || right >= TILES || to == left || to == right || left == right) return false;
    const struct tile *const a = &tiles[left], *const b = &tiles[right];
    if (!c->rows || c->rows != a->rows || c->bytes != b->bytes || a->bytes != 4 * b->rows || c->bytes % 4) return false;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* masks all, FTZ and DAZ; rounds to nearest even */
    add_products(c, a, b);
    _mm_setcsr(before);
    return true;
}

static bool carry_out(enum amx_kind kind, const struct instruction *i)
{
    struct tile *const t = &tiles[i->reg];
    if (kind == AMX_CONFIGURE) return configure((const void *)i->at);
    if (kind == AMX_RELEASE) memset(tiles, 0, sizeof tiles);
    if (kind == AMX_RELEASE) return true;
    if (kind == AMX_MULTIPLY) return multiply(i->reg, i->rm, i->vvvv);
    if (!t->rows) return false;
    if (kind == AMX_ZERO) memset(t->row, 0, sizeof t->row);
    if (kind == AMX_LOAD) load(t, (const char *)i->at, i->stride);
    if (kind == AMX_STORE) store(t, (char *)i->at, i->stride);
    return true;
}

/* ---- the handler ---- */

static struct sigaction before;

static bool step(greg_t *registers)
{
    struct instruction i;
    if (!decode((const uint8_t *)registers[REG_RIP], registers, &i)) return false;
    const enum amx_kind kind = kind_of(&i);
    if (kind == AMX_KINDS || !carry_out(kind, &i)) return false;
    registers[REG_RIP] = (greg_t)i.next;
    __atomic_fetch_add(&amx_counts[kind], 1, __ATOMIC_RELAXED);
    return true;
}

/* A signal costs as much as a product of tiles, so consecutive instructions are executed in one handler call. */
static void handle(int signal, siginfo_t *info, void *context)
{
    greg_t *const registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (info->si_code > 0 && step(registers)) {
        while (step(registers)) { }
        return;
    }
    sigaction(signal, &before, NULL); /* the instruction raises it again */
    if (info->si_code <= 0) raise(signal);
}

static bool is_there(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMX_TILE) && (d & bit_AMX_BF16);
}

bool amx_emulate(void)
{
    const struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };
    __builtin_cpu_init();
    if (is_there() || !__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bf16")) return false;
    return !sigaction(SIGILL, &action, &before);
}

#else

bool amx_emulate(void)
{
    return false;
}

#endif
