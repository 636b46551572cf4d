// What both halves of a block share: RMSNorm over channels (definition.py: rms_norm), and a row's two forms as an operand.
#pragma once
#include "layout.h"

// A state [L, width] by rows.
template <class P>
INLINE void to_rows(const Sizes& s, const float* state, Index width, typename P::T* rows) {
  for (Index l = 0; l < s.even; l += 2)
    for (Index j = 0; j < width; j += W) {
      const float* x = state + l * width + j;
      P::store_rows(rows + l * width + j, width, P::pack(load(x), load(x + width)));
    }
}

// Rows [L, width], `stride` elements apart, as words.
template <class P>
INLINE void as_words(const Sizes& s, const typename P::T* rows, Index stride, Index width, Word* words) {
  for (Index l = 0; l < s.even; l += 2)
    for (Index j = 0; j < width; j += W) {
      P::store_words(words + words_of<P>(l) * width + j, width, P::load_rows(rows + l * stride + j, stride));
    }
}

// A row's columns of a left operand [D, tokens of all uses] in the stack: where its words [L, D] are written, and what turns
// them if the products read rows only.
template <class P>
struct StackedLeft {
  const Sizes& s;
  Word *operand, *scratch;
  Index first, stride;  // the use's first word of tokens
  Word* words() const { return P::FLIPPED ? operand + first * s.d : scratch; }
  void finish() const {
    if (!P::FLIPPED) transpose(scratch, words_of<P>(s.deep), s.d, s.d, operand + first, stride);
  }
};

// y [L, D] becomes y / rms(y) over the channels of each token; `Keep`: `out` gets the same.
template <class P, bool Keep>
INLINE void norm_channels(const Sizes& s, float* y, float* scale, typename P::T* out) {
  const Index D = s.d;
  for (Index l = 0; l < s.even; l++) {
    Vec squares{};
    for (Index j = 0; j < D; j += W) {
      Vec x = load(y + l * D + j);
      squares += x * x;
    }
    scale[l] = sum(squares);
  }
  for (Index l = 0; l < s.even; l += W) store(scale + l, 1.0f / square_root(load(scale + l) / (float)s.D + EPS));
  for (Index l = 0; l < s.even; l += 2) {
    float *first = y + l * D, *second = first + D;
    for (Index j = 0; j < D; j += W) {
      Vec x = load(first + j) * scale[l], z = load(second + j) * scale[l + 1];
      store(first + j, x), store(second + j, z);
      if (Keep) P::store_rows(out + l * D + j, D, P::pack(x, z));
    }
  }
}

// The gradient of the output becomes that of the input, and `left` and `words` get it as operands.
template <class P>
INLINE void norm_channels_backward(const Sizes& s, float* grad, const typename P::T* output, const float* scale,
                                   typename P::T* left, Word* words) {
  const Index D = s.d;
  for (Index l = 0; l < s.even; l += 2) {
    float *first = grad + l * D, *second = first + D;
    const typename P::T* out = output + l * D;
    Vec even{}, odd{};
    for (Index j = 0; j < D; j += W) even += load(first + j) * P::load(out + j), odd += load(second + j) * P::load(out + D + j);
    float a = sum(even) / s.D, b = sum(odd) / s.D;
    for (Index j = 0; j < D; j += W) {
      Vec x = (load(first + j) - P::load(out + j) * a) * scale[l];
      Vec z = (load(second + j) - P::load(out + D + j) * b) * scale[l + 1];
      store(first + j, x), store(second + j, z);
      auto pair = P::pack(x, z);
      P::store_rows(left + l * D + j, D, pair);
      P::store_words(words + words_of<P>(l) * D + j, D, pair);
    }
  }
}
