// Matrix products C [M, N] (+)= A [M, K] B [K, N] in float32, and in bfloat16 with float32 sums.
//
// A is stored by rows, or FLIPPED: its words by columns. B is stored as words of 32 bits: a word holds one float, or the
// bfloat16 values of two consecutive rows of B, as the processors' bfloat16 instructions take them. K counts words.
#pragma once
#include "vector.h"
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef uint32_t Word;

// Two neighbouring rows of an operand, ready to be written in either form.
struct Float32 {
  typedef float T;
  static constexpr Index PER_WORD = 1;   // elements of a word
  static constexpr Index DEPTH = 2;      // K is a multiple of this many elements
  static constexpr Index INNER = COLUMNS;  // widths are multiples of this
  static constexpr bool FLIPPED = true;    // products read a left operand by columns as fast as by rows
  struct Pair { Vec even, odd; };
  INLINE Pair pack(Vec even, Vec odd) { return {even, odd}; }
  INLINE void store_rows(T* p, Index stride, Pair x) { store(p, x.even), store(p + stride, x.odd); }
  INLINE void store_words(Word* words, Index stride, Pair x) { store_rows((float*)words, stride, x); }
  INLINE Vec load(const T* p) { return ::load(p); }
  INLINE Pair load_rows(const T* p, Index stride) { return {load(p), load(p + stride)}; }
  INLINE void store_row(T* p, Vec x) { store(p, x); }
  INLINE Vec sigmoid(Vec x) { return ::sigmoid(x); }
  INLINE Vec multiply_add(Vec sum, Word a, const Word* b) {
    float x;
    memcpy(&x, &a, sizeof x);
    return sum + x * ::load((const float*)b);
  }
  struct Session {};
};

// For processors without bfloat16 instructions: products of pairs in float32.
struct PairedBFloat16 {
  typedef uint16_t T;
  static constexpr Index PER_WORD = 2, DEPTH = 2, INNER = COLUMNS;
  static constexpr bool FLIPPED = true;
  typedef uint16_t Halves __attribute__((vector_size(2 * W)));
  typedef uint32_t Words __attribute__((vector_size(4 * W)));
  struct Pair { Words even, odd; };  // rounded, in the upper half of each word
  INLINE Words rounded(Vec x) {
    const Words bits = (Words)x;
    return (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;  // to the nearest, ties to even
  }
  INLINE void store_halves(T* p, Words x) {
    const Halves halves = __builtin_convertvector(x >> 16, Halves);
    memcpy(p, &halves, sizeof halves);
  }
  INLINE Pair pack(Vec even, Vec odd) { return {rounded(even), rounded(odd)}; }
  INLINE void store_rows(T* p, Index stride, Pair x) { store_halves(p, x.even), store_halves(p + stride, x.odd); }
  INLINE void store_words(Word* words, Index, Pair x) {
    const Words both = x.even >> 16 | x.odd;
    memcpy(words, &both, sizeof both);
  }
  INLINE Vec load(const T* p) {
    Halves halves;
    memcpy(&halves, p, sizeof halves);
    return (Vec)(__builtin_convertvector(halves, Words) << 16);
  }
  INLINE Pair load_rows(const T* p, Index stride) { return {(Words)load(p), (Words)load(p + stride)}; }
  INLINE void store_row(T* p, Vec x) { store_halves(p, rounded(x)); }
  INLINE Vec sigmoid(Vec x) { return ::sigmoid(x); }
  INLINE Vec multiply_add(Vec sum, Word a, const Word* b) {
    Words pairs;
    memcpy(&pairs, b, sizeof pairs);
    const Word lower = a << 16, upper = a & 0xffff0000;
    float even, odd;
    memcpy(&even, &lower, sizeof even), memcpy(&odd, &upper, sizeof odd);
    return sum + even * (Vec)(pairs << 16) + odd * (Vec)(pairs & 0xffff0000);
  }
  struct Session {};
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  typedef uint16_t T;
  static constexpr Index PER_WORD = 2, DEPTH = 2, INNER = COLUMNS;
  static constexpr bool FLIPPED = true;
  typedef __m512i Pair;  // 16 values of the even row, then 16 of the odd one
  INLINE Pair pack(Vec even, Vec odd) { return (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even); }
  INLINE void store_rows(T* p, Index stride, Pair x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(x));
    _mm256_storeu_si256((__m256i*)(p + stride), _mm512_extracti64x4_epi64(x, 1));
  }
  INLINE void store_words(Word* words, Index, Pair x) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(words, _mm512_permutexvar_epi16(order, x));
  }
  INLINE Vec load(const T* p) {
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
  }
  INLINE Pair load_rows(const T* p, Index stride) {
    const __m512i even = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)p));
    return _mm512_inserti64x4(even, _mm256_loadu_si256((const __m256i*)(p + stride)), 1);
  }
  INLINE void store_row(T* p, Vec x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
  INLINE Vec sigmoid(Vec x) { return rough_sigmoid(x); }
  INLINE Vec multiply_add(Vec sum, Word a, const Word* b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(a), (__m512bh)_mm512_loadu_si512(b));
  }
  struct Session {};
};
#endif

// The loop over K with MR rows and NV vectors of columns of C in registers.
template <class P, bool ADD, bool FLIPPED, int MR, int NV>
INLINE void tile(Index K, const Word* A, Index lda, const Word* B, Index ldb, float* C, Index ldc) {
  Vec c[MR][NV];
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) c[i][j] = ADD ? load(C + i * ldc + j * W) : Vec{};
  for (Index k = 0; k < K; k++)
    for (int i = 0; i < MR; i++)
      for (int j = 0; j < NV; j++) c[i][j] = P::multiply_add(c[i][j], FLIPPED ? A[k * lda + i] : A[i * lda + k], B + k * ldb + j * W);
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) store(C + i * ldc + j * W, c[i][j]);
}

// A tile of `rows` rows, at most MR.
template <class P, bool ADD, bool FLIPPED, int MR, int NV>
INLINE void tile_of(Index rows, Index K, const Word* A, Index lda, const Word* B, Index ldb, float* C, Index ldc) {
  if (rows == MR) return tile<P, ADD, FLIPPED, MR, NV>(K, A, lda, B, ldb, C, ldc);
  if constexpr (MR > 1) tile_of<P, ADD, FLIPPED, MR - 1, NV>(rows, K, A, lda, B, ldb, C, ldc);
}

// Tiles of nearly equal heights: a low one has too few sums under way to hide the latency of a multiply-add.
template <class P, bool ADD, bool FLIPPED, int NV>
static void panel(Index M, Index K, const Word* A, Index lda, const Word* B, Index ldb, float* C, Index ldc) {
  constexpr int REGISTERS = W == 8 ? 12 : 24;  // of 16 or 32, for sums
  constexpr int MR = REGISTERS / NV < 12 ? REGISTERS / NV : 12;
  const Index tiles = (M + MR - 1) / MR;
  for (Index i = 0, m = 0; i < tiles; i++) {
    const Index next = M * (i + 1) / tiles;
    tile_of<P, ADD, FLIPPED, MR, NV>(next - m, K, A + m * (FLIPPED ? 1 : lda), lda, B, ldb, C + m * ldc, ldc);
    m = next;
  }
}

// N is a multiple of COLUMNS.
template <class P, bool ADD, bool FLIPPED>
static void multiply_by_vectors(Index M, Index N, Index K, const Word* A, Index lda, const Word* B, Index ldb, float* C,
                                Index ldc) {
  constexpr int NV = W == 8 ? 2 : 4;
  Index n = 0;
  for (; n + NV * W <= N; n += NV * W) panel<P, ADD, FLIPPED, NV>(M, K, A, lda, B + n, ldb, C + n, ldc);
  if (N - n == 3 * W) panel<P, ADD, FLIPPED, 3>(M, K, A, lda, B + n, ldb, C + n, ldc);
  if (N - n == 2 * W) panel<P, ADD, FLIPPED, 2>(M, K, A, lda, B + n, ldb, C + n, ldc);
  if (N - n == W) panel<P, ADD, FLIPPED, 1>(M, K, A, lda, B + n, ldb, C + n, ldc);
}

#if defined(__AMX_BF16__)
// bfloat16 products in Intel's tile registers of 16 rows and 16 words.
struct Amx : BFloat16 {
  static constexpr Index DEPTH = 32, INNER = 32;
  static constexpr bool FLIPPED = false;
  struct Session {  // the tiles' shapes, per thread
    Session() {
      struct __attribute__((packed)) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
      } shapes;
      for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
      _tile_loadconfig(&shapes);
    }
    ~Session() { _tile_release(); }
  };
  // Linux grants the tile registers to a process that asks.
  static bool granted() {
    const int ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
  }
};

// M is rounded up to tiles: C and A have that many rows.
template <bool ADD>
static void multiply_by_tiles(Index M, Index N, Index K, const Word* A, Index lda, const Word* B, Index ldb, float* C,
                              Index ldc) {
  for (Index m = 0; m < M; m += 32)
    for (Index n = 0; n < N; n += 32) {
      const bool below = m + 16 < M, beside = n + 16 < N;
      float* c = C + m * ldc + n;
      if (ADD) {
        _tile_loadd(0, c, ldc * 4);
        if (beside) _tile_loadd(1, c + 16, ldc * 4);
        if (below) _tile_loadd(2, c + 16 * ldc, ldc * 4);
        if (below && beside) _tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (Index k = 0; k < K; k += 16) {
        const Word *a = A + m * lda + k, *b = B + k * ldb + n;
        _tile_loadd(4, a, lda * 4);
        _tile_loadd(6, b, ldb * 4);
        _tile_dpbf16ps(0, 4, 6);
        if (beside) {
          _tile_loadd(7, b + 16, ldb * 4);
          _tile_dpbf16ps(1, 4, 7);
        }
        if (!below) continue;
        _tile_loadd(5, a + 16 * lda, lda * 4);
        _tile_dpbf16ps(2, 5, 6);
        if (beside) _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, c, ldc * 4);
      if (beside) _tile_stored(1, c + 16, ldc * 4);
      if (below) _tile_stored(2, c + 16 * ldc, ldc * 4);
      if (below && beside) _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
    }
}
#endif

template <class P, bool ADD, bool FLIPPED = false>
INLINE void multiply(Index M, Index N, Index K, const Word* A, Index lda, const Word* B, Index ldb, float* C, Index ldc) {
#if defined(__AMX_BF16__)
  if constexpr (P::DEPTH == 32) return multiply_by_tiles<ADD>(M, N, K, A, lda, B, ldb, C, ldc);
#endif
  multiply_by_vectors<P, ADD, FLIPPED>(M, N, K, A, lda, B, ldb, C, ldc);
}
