// What the kernels of this folder share: vectors of 16 values in float32, from and to memory in float32 or bfloat16.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

typedef uint16_t bf16;
typedef int64_t Index;

static const Index VECTOR = 16;

#define INLINE __attribute__((always_inline))

static inline __mmask16 lanes(Index left) { return left >= VECTOR ? 0xffff : (1u << left) - 1; }

static inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

static inline __m512 load(const bf16* from, __mmask16 mask = 0xffff) { return widen(_mm256_maskz_loadu_epi16(mask, from)); }

static inline __m512 load(const float* from, __mmask16 mask = 0xffff) { return _mm512_maskz_loadu_ps(mask, from); }

#ifdef __AVX512BF16__
static inline __m256i narrow(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

static inline void store(bf16* to, __m512 x, __mmask16 mask = 0xffff) { _mm256_mask_storeu_epi16(to, mask, narrow(x)); }
#endif

static inline void store(float* to, __m512 x, __mmask16 mask = 0xffff) { _mm512_mask_storeu_ps(to, mask, x); }

static inline __m512 all(float x) { return _mm512_set1_ps(x); }

// e^x for x that is not large, to 3e-6 of it, or with `EXACT` to 3e-7; NaN of NaN, and 0 below -87.3, where the result would be
// too small for a normal float: a processor takes a hundred cycles for such a one.
template <bool EXACT = false> static inline __m512 exponential(__m512 x) {
    __mmask16 normal = _mm512_cmp_ps_mask(x, all(-87.3f), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, all(0.693147182f), x), sum = all(1.0f / 120);
    if (EXACT) {
        r = _mm512_fmadd_ps(n, all(1.90465e-9f), r);  // the rest of ln 2
        sum = _mm512_fmadd_ps(r, all(1.0f / 720), sum);
    }
    sum = _mm512_fmadd_ps(sum, r, all(1.0f / 24));
    sum = _mm512_fmadd_ps(sum, r, all(1.0f / 6));
    sum = _mm512_fmadd_ps(sum, r, all(0.5f));
    sum = _mm512_fmadd_ps(sum, r, all(1.0f));
    return _mm512_maskz_scalef_ps(normal, _mm512_fmadd_ps(sum, r, all(1.0f)), n);
}

// Calls `work` with the place and the mask of each vector of `count` values; the masks of all but the last are constant.
template <class Work> static inline void for_vectors(Index count, Work work) {
    Index c = 0;
    for (; c + VECTOR <= count; c += VECTOR) work(c, 0xffff);
    if (c < count) work(c, (1u << (count - c)) - 1);
}
