// Float vectors through the compiler's vector extensions: one text for AVX-512, AVX2 and NEON.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define INLINE static inline __attribute__((always_inline))

typedef int64_t Index;
#if defined(__AVX512F__)
constexpr int W = 16;  // floats of a vector
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
typedef float AnyVec __attribute__((vector_size(4 * W), aligned(4), may_alias));

// Every row of a buffer is a multiple of this many floats.
constexpr Index COLUMNS = W;

constexpr Index round_up(Index x, Index to) { return (x + to - 1) / to * to; }

INLINE Vec load(const float* p) { return *(const AnyVec*)p; }
INLINE void store(float* p, Vec x) { *(AnyVec*)p = x; }
INLINE Vec splat(float x) { return x - Vec{}; }
INLINE Vec absolute(Vec x) { return (Vec)((Ints)x & 0x7fffffff); }
#if defined(__AVX512F__)
INLINE Vec larger(Vec a, Vec b) { return (Vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Vec smaller(Vec a, Vec b) { return (Vec)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
INLINE Vec larger(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE Vec smaller(Vec a, Vec b) { return (Vec)_mm256_min_ps((__m256)a, (__m256)b); }
#else
INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }
INLINE Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
#endif

INLINE float sum(Vec x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float total = 0;
  for (int i = 0; i < W; i++) total += x[i];
  return total;
#endif
}

INLINE bool any(Ints x) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
#else
  int all = 0;
  for (int i = 0; i < W; i++) all |= x[i];
  return all;
#endif
}

// 1 / x to float32's precision: an estimate and a step of Newton's method, which is faster than a division.
INLINE Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  Vec r = (Vec)_mm512_rcp14_ps((__m512)x);
  return r * (2.0f - x * r);
#elif defined(__AVX2__)
  Vec r = (Vec)_mm256_rcp_ps((__m256)x);
  return r * (2.0f - x * r);
#else
  return 1.0f / x;
#endif
}

INLINE Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (Vec)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < W; i++) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// e^x, at least e^-87 and at most e^87; relative error 2e-7.
INLINE Vec exponential(Vec x) {
  x = smaller(larger(x, splat(-87.0f)), splat(87.0f));
  const float rounder = 12582912.0f;  // 1.5 * 2^23: leaves the nearest integer in the lowest bits
  Vec shifted = x * 1.44269504f + rounder;
  Vec whole = shifted - rounder;
  Vec r = x - whole * 0.693359375f;
  r = r + whole * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + (r + 1.0f);
  return (Vec)((Ints)p + ((Ints)shifted << 23));
}

// 1 / (1 + e^-x). NaN may give any number: multiply by x.
INLINE Vec sigmoid(Vec x) { return reciprocal(1.0f + exponential(-x)); }

#if defined(__AVX512F__)
// The same with a relative error of 2e-4, a twentieth of bfloat16's rounding, in half the time.
INLINE Vec rough_sigmoid(Vec x) {
  const float rounder = 12582912.0f;
  Vec scaled = x * -1.44269504f;
  Vec whole = (scaled + rounder) - rounder, r = scaled - whole;
  Vec p = r * 0.05517167f + 0.24261115f;
  p = p * r + 0.69326099f;
  p = p * r + 0.99992807f;
  return (Vec)_mm512_rcp14_ps((__m512)(1.0f + (Vec)_mm512_scalef_ps((__m512)p, (__m512)whole)));
}
#endif

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif
#if defined(__AVX512F__)
INLINE Ints lower(Ints a, Ints b) { return SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
INLINE Ints upper(Ints a, Ints b) { return SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }
#elif !defined(__AVX2__)
INLINE Ints lower(Ints a, Ints b) { return SHUFFLE(a, b, 0, 4, 1, 5); }
INLINE Ints upper(Ints a, Ints b) { return SHUFFLE(a, b, 2, 6, 3, 7); }
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
// A square of words; instructions that stay within a half of the vector are the fast ones.
INLINE void transpose_square(Ints* x) {
  Ints y[W], z[W];
  for (int i = 0; i < W; i += 2) {
    y[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < W; i += 4)
    for (int k = 0; k < 2; k++) {
      z[i + 2 * k] = SHUFFLE(y[i + k], y[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      z[i + 2 * k + 1] = SHUFFLE(y[i + k], y[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < W / 2; i++) {
    x[i] = SHUFFLE(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = SHUFFLE(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
#else
// A square of words, by perfect shuffles of its rows.
INLINE void transpose_square(Ints* x) {
  Ints y[W];
  for (int size = 1; size < W; size *= 2) {
    for (int i = 0; i < W / 2; i++) y[2 * i] = lower(x[i], x[i + W / 2]), y[2 * i + 1] = upper(x[i], x[i + W / 2]);
    for (int i = 0; i < W; i++) x[i] = y[i];
  }
}
#endif

// out[c][r] = in[r][c] for words of 32 bits; `rows` and `columns` are rounded up to multiples of COLUMNS.
static void transpose(const uint32_t* in, Index rows, Index columns, Index in_stride, uint32_t* out,
                      Index out_stride) {
  for (Index r = 0; r < rows; r += W)
    for (Index c = 0; c < columns; c += W) {
      Ints x[W];
      for (int i = 0; i < W; i++) memcpy(&x[i], in + (r + i) * in_stride + c, sizeof(Ints));
      transpose_square(x);
      for (int i = 0; i < W; i++) memcpy(out + (c + i) * out_stride + r, &x[i], sizeof(Ints));
    }
}
