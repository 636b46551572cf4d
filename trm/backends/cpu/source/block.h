// One post-norm block (definition.py: block) for one row of the batch, forward and backward. The row's activations stay
// in the core's caches.
//
// Shapes: L tokens, D channels, It and Ic inner widths of token and channel mixing, all padded (struct Sizes). Padding is
// zero and stays zero: no product or norm makes anything else of it.
#pragma once
#include "memory.h"
#include "products.h"

constexpr float EPS = 1e-5f;  // of RMSNorm

struct Sizes {
  Index L, D, It, Ic, V;           // as in the model
  Index even, deep, rows, wide;    // L rounded to pairs; to the depth of a product; rows of a buffer; columns
  Index d, it, ic, v;              // widths of buffers
};

template <class P>
Sizes padded(Index L, Index D, Index It, Index Ic, Index V) {
  auto inner = [](Index x) { return round_up(x, P::INNER); };
  return {L, D, It, Ic, V, round_up(L, 2), round_up(L, P::DEPTH), round_up(L, 32), round_up(L, COLUMNS),
          inner(D), inner(It), inner(Ic), inner(V)};
}

// A weight as an operand: by rows (left) or as words (right), as it is or transposed (_t).
template <class P>
struct BlockWeights {
  typedef typename P::T T;
  T *token_gate_up, *token_gate_up_t, *token_down, *token_down_t;              // [2 It, L], [L, It]
  Word *channel_gate_up, *channel_gate_up_t, *channel_down, *channel_down_t;   // [2 Ic, D], [D, Ic]
};

struct BlockGrads {
  float *token_gate_up, *token_down;        // [2 It, L], [L, It]
  float *channel_gate_up_t, *channel_down;  // [D, 2 Ic], [D, Ic]
};

// Saved for backward.
template <class P>
struct Kept {
  typedef typename P::T T;
  T *x, *y, *out;         // input, output of the token mixing, output; [L, D]
  T *token, *channel;     // gate and up of both mixings; [2 It, D], [L, 2 Ic]
  float *y_scale, *out_scale;  // 1 / rms; [D], [L]

  Kept(Arena& arena, const Sizes& s) {
    x = arena.take<T>(s.rows * s.d), y = arena.take<T>(s.rows * s.d), out = arena.take<T>(s.rows * s.d);
    token = arena.take<T>(2 * s.it * s.d), channel = arena.take<T>(s.rows * 2 * s.ic);
    y_scale = arena.take<float>(s.d), out_scale = arena.take<float>(s.rows);
  }
};

// Buffers of a thread. Each is used with one shape only, so that its padding stays zero.
template <class P>
struct Scratch {
  typedef typename P::T T;
  Word *x_words, *token_hidden, *token_pushed, *channel_hidden, *channel_pushed, *grad_words, *y_words;
  T *channel_left, *grad_left, *token_left, *channel_pushed_left;
  Word *flipped_grad, *flipped_y, *flipped_x, *flipped_token;
  float* products;

  Scratch(Arena& arena, const Sizes& s) {
    auto words = [&](Index elements, Index columns) { return arena.take<Word>(elements / P::PER_WORD * columns); };
    x_words = words(s.rows, s.d), grad_words = words(s.rows, s.d), y_words = words(s.rows, s.d);
    token_hidden = words(s.it, s.d), token_pushed = words(2 * s.it, s.d);
    channel_hidden = words(s.rows, s.ic), channel_pushed = words(s.rows, 2 * s.ic);
    channel_left = arena.take<T>(s.rows * s.ic), channel_pushed_left = arena.take<T>(s.rows * 2 * s.ic);
    grad_left = arena.take<T>(s.rows * s.d), token_left = arena.take<T>(3 * s.it * s.d);
    flipped_grad = words(s.rows, s.d), flipped_y = words(s.rows, s.d);
    flipped_x = arena.take<Word>(s.d / P::PER_WORD * s.rows), flipped_token = arena.take<Word>(s.d / P::PER_WORD * s.it);
    Index most = 2 * s.it * s.d > 2 * s.ic * s.rows ? 2 * s.it * s.d : 2 * s.ic * s.rows;
    products = arena.take<float>(most > s.rows * s.v ? most : s.rows * s.v);
  }
};

template <class P>
INLINE Index words_of(Index elements) { return elements / P::PER_WORD; }

struct GateGrads { Vec hidden, gate, up; };

INLINE Vec gated(Vec gate, Vec up) { return gate * sigmoid(gate) * up; }

// The gate's output and the gradients of its inputs, given that of its output.
INLINE GateGrads gated_backward(Vec gate, Vec up, Vec grad) {
  Vec s = sigmoid(gate), silu = gate * s;
  return {silu * up, grad * up * (s + silu * (1.0f - s)), grad * silu};
}

template <class P>
struct Block {
  typedef typename P::T T;
  const Sizes& s;
  const BlockWeights<P>& w;
  Scratch<P>& t;

  // x [L, D] becomes the block's output. `Keep`: save what backward needs.
  template <bool Keep>
  void forward(float* x, Kept<P>& kept) {
    mix_tokens<Keep>(x, kept);
    mix_channels<Keep>(x, kept);
  }

  // grad [L, D] of the output becomes that of the input; adds the weights' gradients.
  void backward(float* grad, const Kept<P>& kept, const BlockGrads& grads) {
    unmix_channels(grad, kept, grads);
    unmix_tokens(grad, kept, grads);
  }

 private:
  // y = rms(x + down (silu(gate) up)) over the tokens of each channel
  template <bool Keep>
  void mix_tokens(float* x, Kept<P>& kept) {
    const Index D = s.d, It = s.it;
    for (Index l = 0; l < s.even; l += 2)
      for (Index j = 0; j < D; j += W) {
        auto pair = P::pack(load(x + l * D + j), load(x + (l + 1) * D + j));
        if (Keep) P::store_rows(kept.x + l * D + j, D, pair);
        P::store_words(t.x_words + words_of<P>(l) * D + j, D, pair);
      }
    multiply<P, false>(2 * It, D, words_of<P>(s.deep), (Word*)w.token_gate_up, words_of<P>(s.deep), t.x_words, D,
                       t.products, D);
    for (Index i = 0; i < It; i += 2)
      for (Index j = 0; j < D; j += W) {
        const float *gate = t.products + i * D + j, *up = gate + It * D;
        Vec g0 = load(gate), g1 = load(gate + D), u0 = load(up), u1 = load(up + D);
        if (Keep) {
          P::store_rows(kept.token + i * D + j, D, P::pack(g0, g1));
          P::store_rows(kept.token + (It + i) * D + j, D, P::pack(u0, u1));
        }
        P::store_words(t.token_hidden + words_of<P>(i) * D + j, D, P::pack(gated(g0, u0), gated(g1, u1)));
      }
    multiply<P, true>(s.even, D, words_of<P>(It), (Word*)w.token_down, words_of<P>(It), t.token_hidden, D, x, D);
    for (Index j = 0; j < D; j += W) {
      Vec even{}, odd{};
      for (Index l = 0; l < s.even; l += 2) {
        Vec a = load(x + l * D + j), b = load(x + (l + 1) * D + j);
        even += a * a, odd += b * b;
      }
      Vec scale = 1.0f / square_root((even + odd) * (1.0f / s.L) + EPS);
      store(kept.y_scale + j, scale);
      for (Index l = 0; l < s.even; l += 2) {
        Vec a = load(x + l * D + j) * scale, b = load(x + (l + 1) * D + j) * scale;
        store(x + l * D + j, a), store(x + (l + 1) * D + j, b);
        P::store_rows(kept.y + l * D + j, D, P::pack(a, b));
      }
    }
  }

  // out = rms(y + down (silu(gate) up)) over the channels of each token
  template <bool Keep>
  void mix_channels(float* y, Kept<P>& kept) {
    const Index D = s.d, Ic = s.ic;
    multiply<P, false>(s.even, 2 * Ic, words_of<P>(D), (Word*)kept.y, words_of<P>(D), w.channel_gate_up_t, 2 * Ic,
                       t.products, 2 * Ic);
    for (Index l = 0; l < s.even; l += 2)
      for (Index i = 0; i < Ic; i += W) {
        const float *gate = t.products + l * 2 * Ic + i, *up = gate + Ic;
        Vec g0 = load(gate), g1 = load(gate + 2 * Ic), u0 = load(up), u1 = load(up + 2 * Ic);
        if (Keep) {
          P::store_rows(kept.channel + l * 2 * Ic + i, 2 * Ic, P::pack(g0, g1));
          P::store_rows(kept.channel + l * 2 * Ic + Ic + i, 2 * Ic, P::pack(u0, u1));
        }
        P::store_rows(t.channel_left + l * Ic + i, Ic, P::pack(gated(g0, u0), gated(g1, u1)));
      }
    multiply<P, true>(s.even, D, words_of<P>(Ic), (Word*)t.channel_left, words_of<P>(Ic), w.channel_down_t, D, y, D);
    for (Index l = 0; l < s.even; l += 2) {
      float *first = y + l * D, *second = first + D;
      Vec even{}, odd{};
      for (Index j = 0; j < D; j += W) {
        Vec a = load(first + j), b = load(second + j);
        even += a * a, odd += b * b;
      }
      float a = 1 / __builtin_sqrtf(sum(even) / s.D + EPS), b = 1 / __builtin_sqrtf(sum(odd) / s.D + EPS);
      kept.out_scale[l] = a, kept.out_scale[l + 1] = b;
      for (Index j = 0; j < D; j += W) {
        Vec x = load(first + j) * a, z = load(second + j) * b;
        store(first + j, x), store(second + j, z);
        if (Keep) P::store_rows(kept.out + l * D + j, D, P::pack(x, z));
      }
    }
  }

  void unmix_channels(float* grad, const Kept<P>& kept, const BlockGrads& grads) {
    const Index D = s.d, Ic = s.ic, deep = words_of<P>(s.deep), stride = words_of<P>(s.rows);
    for (Index l = 0; l < s.even; l += 2) {
      float *first = grad + l * D, *second = first + D;
      const T* out = kept.out + l * D;
      Vec even{}, odd{};
      for (Index j = 0; j < D; j += W) even += load(first + j) * P::load(out + j), odd += load(second + j) * P::load(out + D + j);
      float a = sum(even) / s.D, b = sum(odd) / s.D;
      for (Index j = 0; j < D; j += W) {
        Vec x = (load(first + j) - P::load(out + j) * a) * kept.out_scale[l];
        Vec z = (load(second + j) - P::load(out + D + j) * b) * kept.out_scale[l + 1];
        store(first + j, x), store(second + j, z);
        auto pair = P::pack(x, z);
        P::store_rows(t.grad_left + l * D + j, D, pair);
        P::store_words(t.grad_words + words_of<P>(l) * D + j, D, pair);
      }
    }
    multiply<P, false>(s.even, Ic, words_of<P>(D), (Word*)t.grad_left, words_of<P>(D), w.channel_down, Ic, t.products, Ic);
    for (Index l = 0; l < s.even; l += 2)
      for (Index i = 0; i < Ic; i += W) {
        const T* gate = kept.channel + l * 2 * Ic + i;
        const float* pushed = t.products + l * Ic + i;
        auto a = gated_backward(P::load(gate), P::load(gate + Ic), load(pushed));
        auto b = gated_backward(P::load(gate + 2 * Ic), P::load(gate + 3 * Ic), load(pushed + Ic));
        P::store_words(t.channel_hidden + words_of<P>(l) * Ic + i, Ic, P::pack(a.hidden, b.hidden));
        auto gates = P::pack(a.gate, b.gate), ups = P::pack(a.up, b.up);
        T* left = t.channel_pushed_left + l * 2 * Ic + i;
        Word* words = t.channel_pushed + words_of<P>(l) * 2 * Ic + i;
        P::store_rows(left, 2 * Ic, gates), P::store_rows(left + Ic, 2 * Ic, ups);
        P::store_words(words, 2 * Ic, gates), P::store_words(words + Ic, 2 * Ic, ups);
      }
    transpose(t.grad_words, deep, D, D, t.flipped_grad, stride);
    multiply<P, true>(D, Ic, deep, t.flipped_grad, stride, t.channel_hidden, Ic, grads.channel_down, Ic);
    as_words(kept.y, t.y_words);
    transpose(t.y_words, deep, D, D, t.flipped_y, stride);
    multiply<P, true>(D, 2 * Ic, deep, t.flipped_y, stride, t.channel_pushed, 2 * Ic, grads.channel_gate_up_t, 2 * Ic);
    multiply<P, true>(s.even, D, words_of<P>(2 * Ic), (Word*)t.channel_pushed_left, words_of<P>(2 * Ic),
                      w.channel_gate_up, D, grad, D);
  }

  void unmix_tokens(float* grad, const Kept<P>& kept, const BlockGrads& grads) {
    const Index D = s.d, It = s.it, d = words_of<P>(D);
    for (Index j = 0; j < D; j += W) {
      Vec even{}, odd{}, scale = load(kept.y_scale + j);
      for (Index l = 0; l < s.even; l += 2) {
        const T* y = kept.y + l * D + j;
        even += load(grad + l * D + j) * P::load(y), odd += load(grad + (l + 1) * D + j) * P::load(y + D);
      }
      Vec mean = (even + odd) * (1.0f / s.L);
      for (Index l = 0; l < s.even; l += 2) {
        const T* y = kept.y + l * D + j;
        Vec a = (load(grad + l * D + j) - P::load(y) * mean) * scale;
        Vec b = (load(grad + (l + 1) * D + j) - P::load(y + D) * mean) * scale;
        store(grad + l * D + j, a), store(grad + (l + 1) * D + j, b);
        auto pair = P::pack(a, b);
        P::store_rows(t.grad_left + l * D + j, D, pair);
        P::store_words(t.grad_words + words_of<P>(l) * D + j, D, pair);
      }
    }
    multiply<P, false>(It, D, words_of<P>(s.deep), (Word*)w.token_down_t, words_of<P>(s.deep), t.grad_words, D,
                       t.products, D);
    T *hidden = t.token_left, *pushed = hidden + It * D;
    for (Index i = 0; i < It; i += 2)
      for (Index j = 0; j < D; j += W) {
        const T *gate = kept.token + i * D + j, *up = gate + It * D;
        const float* above = t.products + i * D + j;
        auto a = gated_backward(P::load(gate), P::load(up), load(above));
        auto b = gated_backward(P::load(gate + D), P::load(up + D), load(above + D));
        P::store_rows(hidden + i * D + j, D, P::pack(a.hidden, b.hidden));
        auto gates = P::pack(a.gate, b.gate), ups = P::pack(a.up, b.up);
        P::store_rows(pushed + i * D + j, D, gates), P::store_rows(pushed + (It + i) * D + j, D, ups);
        P::store_words(t.token_pushed + words_of<P>(i) * D + j, D, gates);
        P::store_words(t.token_pushed + words_of<P>(It + i) * D + j, D, ups);
      }
    transpose((Word*)hidden, It, d, d, t.flipped_token, It);
    multiply<P, true>(s.even, It, d, (Word*)t.grad_left, d, t.flipped_token, It, grads.token_down, It);
    transpose((Word*)kept.x, s.wide, d, d, t.flipped_x, s.rows);
    multiply<P, true>(2 * It, s.wide, d, (Word*)pushed, d, t.flipped_x, s.rows, grads.token_gate_up, s.wide);
    multiply<P, true>(s.even, D, words_of<P>(2 * It), (Word*)w.token_gate_up_t, words_of<P>(2 * It), t.token_pushed, D,
                      grad, D);
  }

 public:
  // Rows [L, D] as words.
  void as_words(const T* rows, Word* words) const {
    if constexpr (P::PER_WORD == 1) {
      memcpy(words, rows, sizeof(T) * s.even * s.d);
    } else {
      for (Index l = 0; l < s.even; l += 2)
        for (Index j = 0; j < s.d; j += W)
          P::store_words(words + l / 2 * s.d + j, s.d, P::pack(P::load(rows + l * s.d + j), P::load(rows + (l + 1) * s.d + j)));
    }
  }
};
