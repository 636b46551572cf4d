// A block's memory: sizes, weights, what one use keeps for backward, and a thread's buffers.
//
// Shapes: L tokens, D channels, It and Ic inner widths of token and channel mixing, H heads of K channels (attention
// instead of token mixing), all padded. Padding is zero and stays zero: no product or norm makes anything else of it. Only
// the channel mixing's gate ends where its up begins: its last vector has values of up, which come to nothing.
#pragma once
#include <initializer_list>

#include "memory.h"
#include "products.h"

constexpr float EPS = 1e-5f;  // of RMSNorm

struct Sizes {
  Index L, D, It, Ic, V, H, K;     // as in the model; H is 0 without attention
  Index even, deep, rows, wide;    // L rounded to pairs; to the depth of a product; rows of a buffer; columns
  Index across, down;              // columns of a matrix [L, L] as a left operand, in elements; in words, transposed
  Index d, it, ic, v;              // widths of buffers
  Index k, a;                      // of one head, of all
  Index up;                        // columns from the channel mixing's gate to its up: with less padding than ic
  Index along_d, along_ic;         // words of a product's sum over D or Ic
};

template <class P>
Sizes padded(Index L, Index D, Index It, Index Ic, Index V, Index H) {
  constexpr Index STEP = P::DEPTH > COLUMNS ? P::DEPTH : COLUMNS;
  auto inner = [](Index x) { return round_up(x, P::INNER); };
  const Index up = P::INNER > COLUMNS || Ic < COLUMNS ? inner(Ic) : round_up(Ic, COLUMNS / 2);
  const Index K = H ? D / H : 0, k = round_up(K, STEP), deep = round_up(L, P::DEPTH);
  return {L, D, It, Ic, V, H, K, round_up(L, 2), deep, round_up(L, 32), round_up(L, COLUMNS),
          round_up(L, STEP), round_up(deep / P::PER_WORD, COLUMNS), inner(D), inner(It), inner(Ic), inner(V), k,
          round_up(H * k, COLUMNS * P::PER_WORD), up, round_up(D, P::DEPTH) / P::PER_WORD,
          round_up(Ic, P::DEPTH) / P::PER_WORD};
}

template <class P>
INLINE Index words_of(Index elements) { return elements / P::PER_WORD; }

// Rows of a buffer that `transpose` fills with so many columns of words.
template <class P>
INLINE Index transposed(Index elements) { return round_up(words_of<P>(elements), COLUMNS); }

// A weight as an operand: by rows (left) or as words (right), as it is or transposed (_t).
template <class P>
struct BlockWeights {
  typedef typename P::T T;
  T *token_gate_up, *token_gate_up_t, *token_down, *token_down_t;              // [2 It, L], [L, It]
  Word *channel_gate_up, *channel_gate_up_t, *channel_down, *channel_down_t;   // [2 Ic, D], [D, Ic]
  Word *qkv, *qkv_t, *out, *out_t;                                             // [3 H K, D], [D, H K]
  const float *cosine, *sine;                                                  // of rotary positions [L, K / 2], or null
};

struct BlockGrads {
  float *token_gate_up_t, *token_down;      // [L, 2 It], [L, It]
  float *channel_gate_up_t, *channel_down;  // [D, 2 Ic], [D, Ic]
  float *qkv_t, *out;                       // [D, 3 H K], [D, H K]
};

// Operands of the gradients of a block's weights, for all uses of the block side by side along K: one product for all
// uses reads and writes the gradients once. Use u, counted in the order of backward, begins at u * D channels, or at
// u * words_of(even) words of tokens.
template <class P>
struct Stack {
  typedef typename P::T T;
  Index uses, channels, tokens;  // K in elements: uses * D; in words: tokens of all uses, rounded up
  Index stride;                  // words from a row of such a left operand to the next, or from a column
  T *token_grad, *token_x;           // left: gradient of the output, the input; [L, uses D]
  Word *token_hidden, *token_pushed; // right: the gate's output [uses D, It], gradients of gate and up [uses D, 2 It]
  Word *channel_grad, *channel_y;         // left: gradient of the output, the input; [D, uses L], or flipped
  Word *channel_hidden, *channel_pushed;  // right: [uses L, Ic], [uses L, 2 Ic]
  Word *attention_grad, *attention_x;        // left: gradient of the output, the input; [D, uses L], or flipped
  Word *attention_mixed, *attention_pushed;  // right: [uses L, H K], [uses L, 3 H K]

  Stack(Arena& arena, const Sizes& s, Index uses) : uses(uses), channels(uses * s.d) {
    const Index words = words_of<P>(channels - s.d) + transposed<P>(s.d);
    tokens = round_up(uses * (s.even / P::PER_WORD), P::DEPTH / P::PER_WORD);
    stride = P::FLIPPED ? s.d : round_up(tokens + s.rows, COLUMNS);
    const Index left = P::FLIPPED ? tokens * s.d : s.d * stride;
    token_grad = arena.take<T>(s.rows * channels), token_x = arena.take<T>(s.rows * channels);
    token_hidden = arena.take<Word>(words * s.it), token_pushed = arena.take<Word>(words * 2 * s.it);
    channel_grad = arena.take<Word>(left), channel_y = arena.take<Word>(left);
    channel_hidden = arena.take<Word>(tokens * s.ic), channel_pushed = arena.take<Word>(tokens * 2 * s.up + W);
    attention_grad = arena.take<Word>(s.H ? left : 0), attention_x = arena.take<Word>(s.H ? left : 0);
    attention_mixed = arena.take<Word>(tokens * s.a), attention_pushed = arena.take<Word>(tokens * 3 * s.a);
  }
};

// Saved for backward by one use of a block.
template <class P>
struct Kept {
  typedef typename P::T T;
  Stack<P>* stack;        // of the block
  Index use;              // in the order of backward
  T *x, *y, *out;         // input of attention, output of the token mixing, output; [L, D]
  T *token, *channel;     // gate and up of the token and channel mixing [2 It, D], [L, 2 Ic]
  T *qkv, *probabilities;      // of attention: [L, 3 H K] with positions, [H, L, L]
  float *y_scale, *out_scale;  // 1 / rms; [D] or with attention [L], [L]

  Kept(Arena& arena, const Sizes& s, Stack<P>* stack, Index use) : stack(stack), use(use) {
    x = arena.take<T>(s.H ? s.rows * s.d : 0), y = arena.take<T>(s.rows * s.d), out = arena.take<T>(s.rows * s.d);
    token = arena.take<T>(2 * s.it * s.d), channel = arena.take<T>(s.rows * 2 * s.ic);
    qkv = arena.take<T>(s.rows * 3 * s.a), probabilities = arena.take<T>(s.H * s.rows * s.across);
    y_scale = arena.take<float>(s.H ? s.rows : s.d), out_scale = arena.take<float>(s.rows);
  }
};

// Buffers of a thread. Each is used with one shape only, so that its padding stays zero.
template <class P>
struct Scratch {
  typedef typename P::T T;
  Word *x_words, *token_hidden, *token_pushed, *grad_words, *y_words;
  T *channel_left, *grad_left, *token_left, *channel_pushed_left;
  float* products;
  // of attention
  float *heads, *mixed, *scores;                                // [L, 3 H K], [L, H K], [L, L]
  T *mixed_left, *pushed_left, *slopes;
  Word *heads_t, *queries, *keys, *values, *mixed_words, *pairs, *flipped;

  Scratch(Arena& arena, const Sizes& s) {
    auto words = [&](Index elements, Index columns) { return arena.take<Word>(elements / P::PER_WORD * columns); };
    x_words = words(s.rows, s.d), grad_words = words(s.rows, s.d), y_words = words(s.rows, s.d);
    token_hidden = words(s.it, s.d), token_pushed = words(2 * s.it, s.d);
    channel_left = arena.take<T>(s.rows * s.ic), channel_pushed_left = arena.take<T>(s.rows * 2 * s.up + W);
    grad_left = arena.take<T>(s.rows * s.d), token_left = arena.take<T>(s.it * s.d);
    Index most = 2 * s.it * s.d > 2 * s.ic * s.rows ? 2 * s.it * s.d : 2 * s.ic * s.rows;
    products = arena.take<float>((most > s.rows * s.v ? most : s.rows * s.v) + W);
    heads = arena.take<float>(s.rows * 3 * s.a), mixed = arena.take<float>(s.rows * s.a);
    mixed_left = arena.take<T>(s.rows * s.a), pushed_left = arena.take<T>(s.rows * 3 * s.a);
    heads_t = words(s.a, s.wide);
    for (Word** all : {&queries, &keys, &values, &mixed_words}) *all = words(s.rows, s.a);
    const Index rows = s.H ? s.rows : 0;
    scores = arena.take<float>(rows * s.wide), slopes = arena.take<T>(rows * s.across);
    pairs = arena.take<Word>(rows * s.across), flipped = arena.take<Word>(rows * s.down);
  }
};
