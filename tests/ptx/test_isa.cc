/*
 * Tests of the instructions, compared with numbers from the text of the PTX ISA or derived from it by hand; the other
 * suites here depend on them. Warp instructions run in a kernel of one warp.
 */
#include "run.h"
#include "runtime.h"

#include "../cudasim/test.h"

using namespace ptx;

static uint32_t bits(float x) { return give<f32>(x); }

/* ---- arithmetic ---- */

Test(ptx_isa, integers_wrap_and_extend)
{
    cr_expect_eq(static_cast<uint32_t>(add<s32>(0x7fffffff, 1)), 0x80000000u);
    cr_expect_eq(mul_lo<s64>(1ull << 63, 3), static_cast<int64_t>(1ull << 63));
    cr_expect_eq(static_cast<uint64_t>(mul_wide<s32>(-2, 3)), static_cast<uint64_t>(-6));
    cr_expect_eq(static_cast<uint64_t>(mul_wide<u32>(0xffffffffu, 2)), 0x1fffffffeull);
    cr_expect_eq(static_cast<uint32_t>(mul_hi<u32>(0x80000000u, 6)), 3u);
    cr_expect_eq(shl<b32>(1, 32), 0u);
    cr_expect_eq(static_cast<uint32_t>(shr<s32>(0x80000000u, 40)), 0xffffffffu);
    cr_expect_eq(static_cast<uint32_t>(shr<u32>(0x80000000u, 40)), 0u);
    cr_expect_eq(bfi<b32>(0x5, 0xffffffffu, 4, 4), 0xffffff5fu);
    cr_expect_eq(lop3<b32>(0xf0f0f0f0u, 0xccccccccu, 0xaaaaaaaau, 0x96), 0x96969696u);
    cr_expect_eq(clz<b64>(1), 63u);
    cr_expect_eq(popc<b32>(0xf0f0f0f0u), 16u);
    const uint64_t extended = static_cast<uint64_t>(cvt<s64, s8>(0x80));
    cr_expect_eq(extended, 0xffffffffffffff80u);
}

Test(ptx_isa, carries_go_on)
{
    bool carry = false;
    cr_expect_eq(static_cast<uint32_t>(add_carry<u32>(0xffffffffu, 1, false, &carry)), 0u);
    cr_expect_eq(static_cast<uint32_t>(add_carry<u32>(2, 3, carry, nullptr)), 6u);
    cr_expect_eq(static_cast<uint32_t>(sub_borrow<u32>(0, 1, false, &carry)), 0xffffffffu);
    cr_expect_eq(static_cast<uint32_t>(sub_borrow<u32>(5, 3, carry, nullptr)), 1u);
}

Test(ptx_isa, comparisons_know_nans)
{
    const uint32_t nan = 0x7fc00000u, one = bits(1);
    cr_expect(!setp_lt<f32>(nan, one) && !setp_ne<f32>(nan, one) && !setp_eq<f32>(nan, nan));
    cr_expect(setp_ltu<f32>(nan, one) && setp_neu<f32>(nan, one) && setp_equ<f32>(nan, nan));
    cr_expect(setp_nan<f32>(one, nan) && setp_num<f32>(one, one));
    cr_expect_eq(ptx::max<f32>(nan, one), one);
    cr_expect_eq(ptx::max<f32>(bits(-0.f), bits(0.f)), bits(0.f));
    cr_expect_eq(ptx::min<f32>(bits(0.f), bits(-0.f)), bits(-0.f));
    cr_expect(setp_lt<s32>(static_cast<uint32_t>(-1), 0) && !setp_lt<u32>(static_cast<uint32_t>(-1), 0));
}

Test(ptx_isa, conversions_round_and_clamp)
{
    cr_expect_eq(cvt_rn_bf16x2(bits(1), bits(2)), 0x3f804000u);
    cr_expect_eq(cvt_rn_f16x2(bits(1), bits(-2)), 0x3c00c000u);
    cr_expect_eq(cvt_rn_bf16x2(0x3f808000u, 0x3f818000u), 0x3f803f82u, "ties go to even");
    cr_expect_eq(cvt_rn_f16x2(bits(1e9f), 0x7fc00001u), 0x7c007fffu);
    cr_expect_eq((cvt_rzi<s32, f32>(bits(-1.9f))), -1);
    cr_expect_eq((cvt_rzi<s32, f32>(bits(1e20f))), INT32_MAX);
    cr_expect_eq((cvt_rzi<s32, f32>(0x7fc00000u)), 0);
    cr_expect_eq((cvt_rzi<u64, f64>(give<f64>(-3))), 0u);
    cr_expect_eq((cvt_rmi<f32, f32>(bits(-1.5f))), bits(-2));
    cr_expect_eq((cvt_rni<f32, f32>(bits(2.5f))), bits(2));
    cr_expect_eq((cvt_sat<f32, f32>(bits(-3))), bits(0));
    cr_expect_eq((cvt_sat<f32, f32>(0x7fc00000u)), bits(0));
    cr_expect_eq(fma_down(bits(1), bits(1), bits(0x1p-30f)), bits(1));
    cr_expect_eq(fma_down(bits(1), bits(1), bits(-0x1p-30f)), bits(1 - 0x1p-24f));
    cr_expect_eq(ex2_of(bits(-130)), bits(0), "subnormal results are 0");
    cr_expect_eq(ex2_of(bits(-3)), bits(0.125f));
}

Test(ptx_isa, bytes_are_chosen_by_digits)
{
    cr_expect_eq(prmt<b32>(0x33221100u, 0x77665544u, 0x7604), 0x77660044u);
    cr_expect_eq(prmt<b32>(0x33221180u, 0x00000044u, 0x4180), 0x4411ff80u);
    cr_expect_eq(prmt<b32>(0x80, 0x7f, 0xc8c8), 0x00ff00ffu, "signs");
    cr_expect_eq(mad_wide<u32>(0xffffffffu, 0xffffffffu, 1), 0xfffffffe00000002ull);
}

Test(ptx_isa, sums_are_cut_off)
{
    cr_expect_eq(add_rz<f32>(bits(1), bits(-0x1p-30f)), bits(1 - 0x1p-24f));
    cr_expect_eq(add_rz<f32>(bits(-1), bits(0x1p-30f)), bits(-1 + 0x1p-24f));
    cr_expect_eq(add_rz<f32>(bits(1), bits(0x1.8p-23f)), bits(1 + 0x1p-23f));
    cr_expect_eq(add_rz<f32>(bits(1), bits(2)), bits(3));
    cr_expect_eq(add_rz<f32>(0x7f7fffffu, 0x7f7fffffu), 0x7f7fffffu, "no sum of numbers is infinite");
    cr_expect_eq(add_rz<f32>(bits(INFINITY), bits(1)), bits(INFINITY));
    cr_expect_eq(ex2_of_any(bits(-130)), bits(0x1p-130f), "subnormal results are what they are");
}

/* ---- a warp ---- */

/* Runs a function as the kernel of one block. */
template <typename F> static cudaError_t run_threads(unsigned threads, size_t shared, F thread)
{
    static const kernel none = { "test", nullptr, 0, 0, false };
    begin_kernel(&none, shared);
    return cudasim::run_kernel({ "test", nullptr, 1, threads, shared, thread, {} });
}

Test(ptx_isa, shuffles_keep_to_their_segments)
{
    static uint32_t got[4][32];
    static bool in[4][32];
    OK(run_threads(32, 0, [] {
        const uint32_t i = threadIdx.x, all = 0xffffffffu;
        got[0][i] = shuffle_bfly(i, 8, 0x1f, all, &in[0][i]);
        got[1][i] = shuffle_up(i, 3, 0, all, &in[1][i]);
        got[2][i] = shuffle_down(i, 3, 0x181f & ~0x7u, all, &in[2][i]); /* __shfl_down(x, 3, 8): c is 0x1807 */
        got[3][i] = shuffle_idx(i, 5, 0x181f, all, &in[3][i]);
    }));
    for (uint32_t i = 0; i < 32; i++) {
        cr_expect_eq(got[0][i], i ^ 8);
        cr_expect_eq(got[1][i], i < 3 ? i : i - 3);
        cr_expect_eq(in[1][i], i >= 3);
        cr_expect_eq(got[3][i], (i & ~7u) + 5);
    }
}

Test(ptx_isa, the_largest_stays)
{
    static uint64_t at, before[32];
    OK(run_threads(32, 8, [] {
        if (threadIdx.x == 0) store<b64>(shared_at(0, 8), 1ull << 40);
        barrier(0);
        before[threadIdx.x] = atom_max<u64>(shared_at(0, 8), (1ull << 40) - 16 + threadIdx.x);
        barrier(0);
        if (threadIdx.x == 0) at = load<u64>(shared_at(0, 8));
    }));
    cr_expect_eq(at, (1ull << 40) + 15);
    for (const uint64_t b : before) cr_expect_geq(b, 1ull << 40);
}

/* Matrix m has 100 m + 10 row + column: lane i gets columns 2 (i % 4) and the next of row i / 4, or the same of the
   transpose. */
Test(ptx_isa, ldmatrix_gives_rows_and_columns)
{
    static uint32_t got[2][32][4];
    OK(run_threads(32, 512, [] {
        const uint32_t i = threadIdx.x;
        for (uint32_t c = 0; c < 8; c++)
            store<b16>(shared_at(16 * i + 2 * c, 2), static_cast<uint16_t>(100 * (i / 8) + 10 * (i % 8) + c));
        barrier(0);
        load_matrices(got[0][i], 16 * i, false);
        load_matrices(got[1][i], 16 * i, true);
    }));
    for (uint32_t i = 0; i < 32; i++)
        for (uint32_t m = 0; m < 4; m++) {
            const uint32_t row = i / 4, column = 2 * (i % 4), at = 100 * m + 10 * row + column;
            const uint32_t transposed = 100 * m + 10 * column + row;
            cr_expect_eq(got[0][i][m], at | (at + 1) << 16);
            cr_expect_eq(got[1][i][m], transposed | (transposed + 10) << 16);
        }
}

/* The ISA's figures of m16n8k16, as formulas: groupID = lane / 4, threadID_in_group = lane % 4. */
Test(ptx_isa, mma_multiplies)
{
    static float a[16][16], b[16][8], c[16][8], d[16][8];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            a[i][j] = static_cast<float>((i * 7 + j * 3) % 11 - 5);
            if (j < 8) b[i][j] = static_cast<float>((i * 5 + j) % 9 - 4), c[i][j] = static_cast<float>(i - j);
        }
    OK(run_threads(32, 0, [] {
        const uint32_t group = threadIdx.x / 4, in_group = threadIdx.x % 4;
        uint32_t fa[4], fb[2], fc[4], fd[4];
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t row = group + (r % 2 ? 8 : 0), column = in_group * 2 + (r < 2 ? 0 : 8);
            fa[r] = cvt_rn_bf16x2(bits(a[row][column + 1]), bits(a[row][column]));
        }
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t row = in_group * 2 + 8 * r;
            fb[r] = cvt_rn_bf16x2(bits(b[row + 1][group]), bits(b[row][group]));
        }
        for (uint32_t r = 0; r < 4; r++) fc[r] = bits(c[group + (r < 2 ? 0 : 8)][in_group * 2 + r % 2]);
        multiply(fd, fa, fb, fc, true);
        for (uint32_t r = 0; r < 4; r++) d[group + (r < 2 ? 0 : 8)][in_group * 2 + r % 2] = value_of<f32>(fd[r]);
    }));
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float sum = c[i][j];
            for (int k = 0; k < 16; k++) sum += a[i][k] * b[k][j];
            cr_expect_eq(d[i][j], sum, "row %d, column %d", i, j);
        }
}

/* ---- reported errors ---- */

static bool refuses(size_t shared, void (*thread)(), const char *part)
{
    cudasim_set_fatal(false);
    cudasim_clear_report();
    const bool failed = run_threads(1, shared, thread) == cudaErrorLaunchFailure && reported(part);
    cudasim_set_fatal(true);
    return failed;
}

static void *device;

Test(ptx_isa, accesses_are_checked)
{
    OK(cudaMalloc(&device, 64));
    cr_expect(refuses(64, [] { shared_at(2, 4); }, "not aligned"));
    cr_expect(refuses(64, [] { shared_at(64, 4); }, "of shared memory"));
    cr_expect(refuses(64, [] { shared_at(56, 16); }, "not aligned"));
    cr_expect(refuses(48, [] { shared_at(48, 16); }, "of shared memory"));
    cr_expect(refuses(0, [] { global_at(reinterpret_cast<uint64_t>(device) + 8, 16); }, "not aligned"));
    cr_expect(refuses(0, [] { global_at(reinterpret_cast<uint64_t>(device) + 64, 16); }, "no allocation"));
    cr_expect(refuses(0, [] {
        const char depot[16] = {};
        local_at(reinterpret_cast<uint64_t>(depot) + 16, 4, depot, sizeof depot);
    }, "of local memory"));
    OK(cudaFree(device));
}

/* Accesses that an intrinsic such as __stwb() makes at the address of a shared array, and at one of the host. */
Test(ptx_isa, global_instructions_reach_global_memory_alone)
{
    static char host[16];
    static const unsigned char table[16] = { 7 };
    static const module_variable variable(table, sizeof table);
    static void *pinned;
    OK(cudaMallocHost(&pinned, 16));
    cr_expect(refuses(64, [] { global_at(generic_of_shared(16), 16); }, "but in shared memory"));
    cr_expect(refuses(0, [] { global_at(reinterpret_cast<uint64_t>(host), 4); }, "no allocation"));
    cr_expect(refuses(0, [] { global_at(reinterpret_cast<uint64_t>(table) + 16, 4); }, "no allocation"));
    OK(run_threads(1, 64, [] {
        cr_expect_eq(*global_at(reinterpret_cast<uint64_t>(table), 1), 7);
        global_at(reinterpret_cast<uint64_t>(pinned), 16);
        generic_at(generic_of_shared(16), 16);
        generic_at(reinterpret_cast<uint64_t>(host), 4); /* local memory has such addresses */
    }));
    OK(cudaFreeHost(pinned));
}

Test(ptx_isa, copies_without_a_wait_are_reported)
{
    OK(cudaMalloc(&device, 64));
    set_eager(false);
    cr_expect(refuses(16, [] {
        copy_async(shared_at(0, 16), global_at(reinterpret_cast<uint64_t>(device), 16), 16, 16);
        copy_commit();
        end_thread();
    }, "on their way"));
    OK(cudaFree(device));
}

/* Late: nothing arrives before the wait, which leaves the last groups pending. At once: it arrives when it is
   issued. */
Test(ptx_isa, copies_arrive_when_they_are_waited_for)
{
    static uint64_t seen[2][3];
    const std::vector<uint64_t> from = { 5, 6 };
    static uint64_t *source;
    source = device_array(from);
    static int round;
    for (round = 0; round < 2; round++) {
        set_eager(round == 1);
        OK(run_threads(1, 32, [] {
            store<b64>(shared_at(0, 8), 9);
            store<b64>(shared_at(16, 8), 9);
            copy_async(shared_at(0, 8), global_at(reinterpret_cast<uint64_t>(source), 8), 8, 8);
            copy_commit();
            copy_async(shared_at(16, 8), global_at(reinterpret_cast<uint64_t>(source + 1), 8), 8, 0);
            copy_commit();
            seen[round][0] = static_cast<uint64_t>(load<b64>(shared_at(0, 8)));
            copy_wait(1);
            seen[round][1] = static_cast<uint64_t>(load<b64>(shared_at(0, 8)));
            seen[round][2] = static_cast<uint64_t>(load<b64>(shared_at(16, 8)));
        }));
    }
    cr_expect(seen[0][0] == 9 && seen[0][1] == 5 && seen[0][2] == 9);
    cr_expect(seen[1][0] == 5 && seen[1][1] == 5 && seen[1][2] == 0);
    OK(cudaFree(source));
}
