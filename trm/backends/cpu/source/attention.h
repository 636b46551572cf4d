// Multi-head self-attention of a post-norm block (definition.py: attention, block) for one row of the batch, forward and
// backward.
//
// Shapes: L tokens, D channels, H heads of K channels. A head is padded to k channels, all heads together to a; queries,
// keys and values stand side by side in 3 a channels.
#pragma once
#include "norm.h"

// y = rms(x + out attention(x)) over the channels of each token.
template <class P>
struct Attention {
  typedef typename P::T T;
  const Sizes& s;
  const BlockWeights<P>& w;
  Scratch<P>& t;

  template <bool Keep>
  void forward(float* x, Kept<P>& kept) {
    const Index D = s.d, a = s.a, all = 3 * a;
    to_rows<P>(s, x, D, kept.x);
    multiply<P, false>(s.even, all, words_of<P>(D), (Word*)kept.x, words_of<P>(D), w.qkv_t, all, t.heads, all);
    rotate(1);
    to_rows<P>(s, t.heads, all, kept.qkv);
    transpose((Word*)(kept.qkv + a), s.wide, words_of<P>(a), words_of<P>(all), t.heads_t, s.wide);
    as_words<P>(s, kept.qkv + 2 * a, all, a, t.values);
    for (Index h = 0; h < s.H; h++) {
      T* probabilities = kept.probabilities + h * s.rows * s.across;
      multiply<P, false>(s.even, s.wide, words_of<P>(s.k), (Word*)(kept.qkv + h * s.k), words_of<P>(all), columns_of(h), s.wide,
                         t.scores, s.wide);
      softmax(probabilities);
      multiply<P, false>(s.even, s.k, words_of<P>(s.deep), (Word*)probabilities, words_of<P>(s.across), t.values + h * s.k, a,
                         t.mixed + h * s.k, a);
    }
    to_rows<P>(s, t.mixed, a, t.mixed_left);
    if (Keep) as_words<P>(s, t.mixed_left, a, a, kept.stack->attention_mixed + first_word(kept) * a);
    multiply<P, true>(s.even, D, words_of<P>(a), (Word*)t.mixed_left, words_of<P>(a), w.out_t, D, x, D);
    norm_channels<P, true>(s, x, kept.y_scale, kept.y);
  }

  // grad [L, D] of y becomes that of x; what the weights' gradients need goes to the stack.
  void backward(float* grad, const Kept<P>& kept, Stack<P>& stack) {
    const Index D = s.d, a = s.a, all = 3 * a, deep = words_of<P>(s.deep), first = first_word(kept);
    const StackedLeft<P> grads{s, stack.attention_grad, t.grad_words, first, stack.stride};
    const StackedLeft<P> inputs{s, stack.attention_x, t.y_words, first, stack.stride};
    norm_channels_backward<P>(s, grad, kept.y, kept.y_scale, t.grad_left, grads.words());
    multiply<P, false>(s.even, a, words_of<P>(D), (Word*)t.grad_left, words_of<P>(D), w.out, a, t.mixed, a);
    to_rows<P>(s, t.mixed, a, t.mixed_left);
    as_words<P>(s, t.mixed_left, a, a, t.mixed_words);
    as_words<P>(s, kept.qkv, all, a, t.queries);
    as_words<P>(s, kept.qkv + a, all, a, t.keys);
    transpose((Word*)(kept.qkv + 2 * a), s.wide, words_of<P>(a), words_of<P>(all), t.heads_t, s.wide);
    for (Index h = 0; h < s.H; h++) {
      const T* probabilities = kept.probabilities + h * s.rows * s.across;
      float* pushed = t.heads + h * s.k;  // gradients of the head's queries, keys and values
      multiply_flipped(probabilities, t.mixed_words + h * s.k, pushed + 2 * a);
      multiply<P, false>(s.even, s.wide, words_of<P>(s.k), (Word*)(t.mixed_left + h * s.k), words_of<P>(a), columns_of(h), s.wide,
                         t.scores, s.wide);
      softmax_backward(probabilities);
      multiply<P, false>(s.even, s.k, deep, (Word*)t.slopes, words_of<P>(s.across), t.keys + h * s.k, a, pushed, all);
      multiply_flipped(t.slopes, t.queries + h * s.k, pushed + a);
    }
    rotate(-1);
    to_rows<P>(s, t.heads, all, t.pushed_left);
    as_words<P>(s, t.pushed_left, all, all, stack.attention_pushed + first * all);
    as_words<P>(s, kept.x, D, D, inputs.words());
    grads.finish(), inputs.finish();
    multiply<P, true>(s.even, D, words_of<P>(all), (Word*)t.pushed_left, words_of<P>(all), w.qkv, D, grad, D);
  }

  // Adds the weights' gradients of all uses.
  void weight_gradients(const Stack<P>& k, const BlockGrads& grads) {
    const Index D = s.d, a = s.a;
    multiply<P, true, P::FLIPPED>(D, a, k.tokens, k.attention_grad, k.stride, k.attention_mixed, a, grads.out, a);
    multiply<P, true, P::FLIPPED>(D, 3 * a, k.tokens, k.attention_x, k.stride, k.attention_pushed, 3 * a, grads.qkv_t, 3 * a);
  }

 private:
  Index first_word(const Kept<P>& kept) const { return kept.use * words_of<P>(s.even); }
  // The keys or values of a head, transposed, as a right operand.
  const Word* columns_of(Index h) const { return t.heads_t + h * words_of<P>(s.k) * s.wide; }

  // Rotary positions of the queries and keys in `heads` (definition.py: rotate) forward (1), or of their gradients
  // backward (-1); queries are scaled by 1 / sqrt(K).
  void rotate(float direction) {
    const Index half = s.K / 2;
    const float scale = 1 / __builtin_sqrtf(s.K);
    for (Index l = 0; l < s.L; l++)
      for (Index i = 0; i < 2 * s.H; i++) {
        float* x = t.heads + l * 3 * s.a + i / s.H * s.a + i % s.H * s.k;
        const float factor = i < s.H ? scale : 1;
        if (w.cosine) turn(x, x + half, w.cosine + l * half, w.sine + l * half, factor, direction * factor);
        else if (i < s.H) for (Index j = 0; j < s.K; j++) x[j] *= scale;
      }
  }

  void turn(float* __restrict x, float* __restrict y, const float* cosine, const float* sine, float along, float around) {
    for (Index i = 0; i < s.K / 2; i++) {
      const float c = cosine[i] * along, d = sine[i] * around, u = x[i], v = y[i];
      x[i] = u * c - v * d, y[i] = v * c + u * d;
    }
  }

  // Of the scores [L, L]; rows and columns of padding stay zero.
  void softmax(T* probabilities) {
    for (Index l = 0; l < s.L; l++) {
      float* row = t.scores + l * s.wide;
      for (Index j = s.L; j < s.wide; j++) row[j] = -3e38f;
      Vec most = load(row), total{};
      for (Index j = W; j < s.wide; j += W) most = larger(most, load(row + j));
      float top = most[0];
      for (int i = 1; i < W; i++) top = most[i] > top ? most[i] : top;
      for (Index j = 0; j < s.wide; j += W) {
        Vec e = exponential(load(row + j) - top);
        store(row + j, e);
      }
      for (Index j = s.L; j < s.wide; j++) row[j] = 0;
      for (Index j = 0; j < s.wide; j += W) total += load(row + j);
      const float share = 1 / sum(total);
      for (Index j = 0; j < s.wide; j += W) P::store_row(probabilities + l * s.across + j, load(row + j) * share);
    }
  }

  // The gradients of the probabilities, in `scores`, become those of the scores, in `slopes`.
  void softmax_backward(const T* probabilities) {
    for (Index l = 0; l < s.L; l++) {
      const float* row = t.scores + l * s.wide;
      const T* p = probabilities + l * s.across;
      Vec total{};
      for (Index j = 0; j < s.wide; j += W) total += P::load(p + j) * load(row + j);
      const float mean = sum(total);
      for (Index j = 0; j < s.wide; j += W) P::store_row(t.slopes + l * s.across + j, P::load(p + j) * (load(row + j) - mean));
    }
  }

  // The product of a matrix [L, L], transposed, and a head's channels [L, K].
  void multiply_flipped(const T* x, const Word* right, float* out) {
    const Index deep = words_of<P>(s.deep);
    as_words<P>(s, x, s.across, s.across, t.pairs);
    if (!P::FLIPPED) transpose(t.pairs, deep, s.across, s.across, t.flipped, s.down);
    multiply<P, false, P::FLIPPED>(s.even, s.k, deep, P::FLIPPED ? t.pairs : t.flipped, P::FLIPPED ? s.across : s.down, right, s.a,
                                   out, 3 * s.a);
  }
};
