// Products of bfloat16 matrices by blocks of 32 × 32 sums in float32: on AMX's tiles where `-mamx-bf16` is given, otherwise by
// AVX-512's instruction for pairs of bfloat16. A left factor lies in rows; a right one in pairs of rows, [rows / 2][columns][2],
// as both want it.

#pragma once

#include <cstring>

#include "vectors.h"

static const Index BLOCK = 32;

// What a block of sums takes in one step, 32 values of the inner dimension: rows 0 to 15 and 16 to 31 of the left factor, and
// columns 0 to 15 and 16 to 31 of the right one.
struct Factors {
    const bf16 *above, *below, *left, *right;
};

#ifdef __AMX_BF16__

struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A thread multiplies only while it has one of these.
struct Multiplier {
    Multiplier() {
        static constexpr TileShapes shapes;
        _tile_loadconfig(&shapes);
    }
    ~Multiplier() { _tile_release(); }
    Multiplier(const Multiplier&) = delete;
};

// 32 × 32 sums (+)= products over `steps`, whose factors `at` gives. Strides count values: from row to row of the sums and of the
// left factor, and from pair to pair of the right one.
template <class At>
static inline void add_products(float* sum, Index stride, bool adds, Index steps, Index left_stride, Index right_stride, At at) {
    float* below = sum + 16 * stride;
    if (adds) {
        _tile_loadd(0, sum, stride * 4);
        _tile_loadd(1, sum + 16, stride * 4);
        _tile_loadd(2, below, stride * 4);
        _tile_loadd(3, below + 16, stride * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (Index k = 0; k < steps; k++) {
        Factors factors = at(k);
        _tile_loadd(4, factors.above, left_stride * 2);
        _tile_loadd(6, factors.left, right_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, factors.right, right_stride * 2);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, factors.below, left_stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, stride * 4);
    _tile_stored(1, sum + 16, stride * 4);
    _tile_stored(2, below, stride * 4);
    _tile_stored(3, below + 16, stride * 4);
}

#else

struct Multiplier {  // nothing has to be made ready
    Multiplier() {}
    ~Multiplier() {}
};

// As above.
template <class At>
static inline void add_products(float* sum, Index stride, bool adds, Index steps, Index left_stride, Index right_stride, At at) {
    static const int ROWS = 8;  // whose sums take 16 of the 32 registers
    for (Index top = 0; top < BLOCK; top += ROWS) {
        float* to = sum + top * stride;
        __m512 sums[ROWS][2];
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < 2; c++) sums[r][c] = adds ? _mm512_loadu_ps(to + r * stride + c * VECTOR) : all(0.0f);
        for (Index k = 0; k < steps; k++) {
            Factors factors = at(k);
            const bf16* rows = top < 16 ? factors.above + top * left_stride : factors.below + (top - 16) * left_stride;
            for (Index pair = 0; pair < BLOCK / 2; pair++) {
                __m512bh left = (__m512bh)_mm512_loadu_si512(factors.left + pair * right_stride);
                __m512bh right = (__m512bh)_mm512_loadu_si512(factors.right + pair * right_stride);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    int32_t values;
                    std::memcpy(&values, rows + r * left_stride + 2 * pair, sizeof(values));
                    __m512bh both = (__m512bh)_mm512_set1_epi32(values);
                    sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, left);
                    sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, right);
                }
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < 2; c++) _mm512_storeu_ps(to + r * stride + c * VECTOR, sums[r][c]);
    }
}

#endif

// c[m][n] (+)= a[m][k] · b[k][n], with b in pairs of rows; m and n are multiples of 32, k too. Strides count values.
static void multiply(const bf16* a, Index a_stride, const bf16* b, Index b_columns, float* c, Index c_stride, Index m, Index n,
                     Index k, bool adds = false) {
    for (Index i = 0; i < m; i += BLOCK)
        for (Index j = 0; j < n; j += BLOCK)
            add_products(c + i * c_stride + j, c_stride, adds, k / BLOCK, a_stride, 2 * b_columns, [&](Index step) INLINE {
                const bf16 *above = a + i * a_stride + step * BLOCK, *left = b + step * BLOCK * b_columns + 2 * j;
                return Factors{above, above + 16 * a_stride, left, left + 32};
            });
}
