// One post-norm block (definition.py: block) for one row of the batch, forward and backward. The row's activations stay
// in the core's caches.
//
// Shapes as in layout.h.
#pragma once
#include "attention.h"

struct GateGrads { Vec hidden, gate, up; };

template <class P>
INLINE Vec gated(Vec gate, Vec up) { return gate * P::sigmoid(gate) * up; }

// The gate's output and the gradients of its inputs, given that of its output.
template <class P>
INLINE GateGrads gated_backward(Vec gate, Vec up, Vec grad) {
  Vec s = P::sigmoid(gate), silu = gate * s;
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
    if (s.H) attention().template forward<Keep>(x, kept);
    else mix_tokens<Keep>(x, kept);
    mix_channels<Keep>(x, kept);
  }

  // grad [L, D] of the output becomes that of the input; what the weights' gradients need goes to the stack.
  void backward(float* grad, const Kept<P>& kept) {
    unmix_channels(grad, kept, *kept.stack);
    if (s.H) attention().backward(grad, kept, *kept.stack);
    else unmix_tokens(grad, kept, *kept.stack);
  }

  // Adds the weights' gradients of all uses.
  void weight_gradients(const Stack<P>& k, const BlockGrads& grads) {
    const Index D = s.d, It = s.it, Ic = s.ic, channels = words_of<P>(k.channels);
    multiply<P, true, P::FLIPPED>(D, Ic, k.tokens, k.channel_grad, k.stride, k.channel_hidden, Ic, grads.channel_down, Ic);
    multiply<P, true, P::FLIPPED>(D, 2 * s.up, k.tokens, k.channel_y, k.stride, k.channel_pushed, 2 * s.up,
                                  grads.channel_gate_up_t, 2 * s.up);
    if (s.H) return attention().weight_gradients(k, grads);
    multiply<P, true>(s.even, It, channels, (Word*)k.token_grad, channels, k.token_hidden, It, grads.token_down, It);
    multiply<P, true>(s.even, 2 * It, channels, (Word*)k.token_x, channels, k.token_pushed, 2 * It, grads.token_gate_up_t, 2 * It);
  }

 private:
  Attention<P> attention() { return {s, w, t}; }

  // y = rms(x + down (silu(gate) up)) over the tokens of each channel
  template <bool Keep>
  void mix_tokens(float* x, Kept<P>& kept) {
    const Index D = s.d, It = s.it, stride = kept.stack->channels;
    T* kept_x = kept.stack->token_x + kept.use * D;
    for (Index l = 0; l < s.even; l += 2)
      for (Index j = 0; j < D; j += W) {
        auto pair = P::pack(load(x + l * D + j), load(x + (l + 1) * D + j));
        if (Keep) P::store_rows(kept_x + l * stride + j, stride, pair);
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
        P::store_words(t.token_hidden + words_of<P>(i) * D + j, D, P::pack(gated<P>(g0, u0), gated<P>(g1, u1)));
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
    const Index D = s.d, Ic = s.ic, both = 2 * s.up;
    multiply<P, false>(s.even, both, s.along_d, (Word*)kept.y, words_of<P>(D), w.channel_gate_up_t, both, t.products, both);
    for (Index l = 0; l < s.even; l += 2)
      for (Index i = 0; i < Ic; i += W) {
        const float *gate = t.products + l * both + i, *up = gate + s.up;
        Vec g0 = load(gate), g1 = load(gate + both), u0 = load(up), u1 = load(up + both);
        if (Keep) {
          P::store_rows(kept.channel + l * 2 * Ic + i, 2 * Ic, P::pack(g0, g1));
          P::store_rows(kept.channel + l * 2 * Ic + Ic + i, 2 * Ic, P::pack(u0, u1));
        }
        P::store_rows(t.channel_left + l * Ic + i, Ic, P::pack(gated<P>(g0, u0), gated<P>(g1, u1)));
      }
    multiply<P, true>(s.even, D, s.along_ic, (Word*)t.channel_left, words_of<P>(Ic), w.channel_down_t, D, y, D);
    norm_channels<P, Keep>(s, y, kept.out_scale, kept.out);
  }

  void unmix_channels(float* grad, const Kept<P>& kept, Stack<P>& k) {
    const Index D = s.d, Ic = s.ic, both = 2 * s.up, first_word = kept.use * words_of<P>(s.even);
    const StackedLeft<P> grads{s, k.channel_grad, t.grad_words, first_word, k.stride};
    const StackedLeft<P> inputs{s, k.channel_y, t.y_words, first_word, k.stride};
    Word *hidden = k.channel_hidden + first_word * Ic, *pushed_words = k.channel_pushed + first_word * both;
    norm_channels_backward<P>(s, grad, kept.out, kept.out_scale, t.grad_left, grads.words());
    multiply<P, false>(s.even, Ic, s.along_d, (Word*)t.grad_left, words_of<P>(D), w.channel_down, Ic, t.products, Ic);
    for (Index l = 0; l < s.even; l += 2)
      for (Index i = Ic - W; i >= 0; i -= W) {  // backwards: a vector's zeros go where the next ones are written
        const T* gate = kept.channel + l * 2 * Ic + i;
        const float* pushed = t.products + l * Ic + i;
        auto a = gated_backward<P>(P::load(gate), P::load(gate + Ic), load(pushed));
        auto b = gated_backward<P>(P::load(gate + 2 * Ic), P::load(gate + 3 * Ic), load(pushed + Ic));
        P::store_words(hidden + words_of<P>(l) * Ic + i, Ic, P::pack(a.hidden, b.hidden));
        auto gates = P::pack(a.gate, b.gate), ups = P::pack(a.up, b.up);
        T* left = t.channel_pushed_left + l * both + i;
        Word* words = pushed_words + words_of<P>(l) * both + i;
        P::store_rows(left + s.up, both, ups), P::store_rows(left, both, gates);
        P::store_words(words + s.up, both, ups), P::store_words(words, both, gates);
      }
    as_words<P>(s, kept.y, D, D, inputs.words());
    grads.finish(), inputs.finish();
    multiply<P, true>(s.even, D, words_of<P>(both), (Word*)t.channel_pushed_left, words_of<P>(both), w.channel_gate_up, D,
                      grad, D);
  }

  void unmix_tokens(float* grad, const Kept<P>& kept, Stack<P>& k) {
    const Index D = s.d, It = s.it, d = words_of<P>(D), stride = k.channels;
    T* left = k.token_grad + kept.use * D;
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
        P::store_rows(left + l * stride + j, stride, pair);
        P::store_words(t.grad_words + words_of<P>(l) * D + j, D, pair);
      }
    }
    multiply<P, false>(It, D, words_of<P>(s.deep), (Word*)w.token_down_t, words_of<P>(s.deep), t.grad_words, D,
                       t.products, D);
    for (Index i = 0; i < It; i += 2)
      for (Index j = 0; j < D; j += W) {
        T *gate = kept.token + i * D + j, *up = gate + It * D;  // become their gradients
        const float* above = t.products + i * D + j;
        auto a = gated_backward<P>(P::load(gate), P::load(up), load(above));
        auto b = gated_backward<P>(P::load(gate + D), P::load(up + D), load(above + D));
        P::store_rows(t.token_left + i * D + j, D, P::pack(a.hidden, b.hidden));
        auto gates = P::pack(a.gate, b.gate), ups = P::pack(a.up, b.up);
        P::store_rows(gate, D, gates), P::store_rows(up, D, ups);
        P::store_words(t.token_pushed + words_of<P>(i) * D + j, D, gates);
        P::store_words(t.token_pushed + words_of<P>(It + i) * D + j, D, ups);
      }
    transpose((Word*)t.token_left, It, d, d, k.token_hidden + kept.use * d * It, It);
    transpose((Word*)kept.token, 2 * It, d, d, k.token_pushed + kept.use * d * 2 * It, 2 * It);
    multiply<P, true>(s.even, D, words_of<P>(2 * It), (Word*)w.token_gate_up_t, words_of<P>(2 * It), t.token_pushed, D,
                      grad, D);
  }
};
