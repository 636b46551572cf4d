// One supervision step of the Tiny Recursive Model (definition.py: supervision_step) with losses (losses.py), adaptive
// halting (act.py) and backward, row by row.
#pragma once
#include "block.h"
#include "interface.h"

constexpr float ROPE_BASE = 10000;

// Sums of the weights' gradients over a group of rows.
struct Grads {
  BlockGrads* blocks;
  float *embed, *position, *head, *halt;  // [V, D], [L, D], [V, D], D weights and the bias
  Index size;                             // floats in total, in one piece from `first`
  float* first;

  Grads(Arena& arena, const Sizes& s, Index layers, BlockGrads* blocks) : blocks(blocks) {
    Index start = arena.used;
    first = (float*)(arena.base + start);
    for (Index i = 0; i < layers; i++) {
      BlockGrads b = {arena.take<float>(s.rows * 2 * s.it), arena.take<float>(s.rows * s.it),
                      arena.take<float>(s.d * 2 * s.up), arena.take<float>(s.d * s.ic),
                      arena.take<float>(s.d * 3 * s.a), arena.take<float>(s.d * s.a)};
      if (arena.base) blocks[i] = b;
    }
    embed = arena.take<float>(s.V * s.d), position = arena.take<float>(s.rows * s.d);
    head = arena.take<float>(s.v * s.d), halt = arena.take<float>(s.d + COLUMNS);
    size = (arena.used - start) / sizeof(float);
  }
};

// A thread's buffers: float32 states of a row and what backward needs.
template <class P>
struct Workspace {
  typedef typename P::T T;
  Scratch<P> scratch;
  Index uses;        // of each layer
  Stack<P>* stacks;  // of each layer
  Kept<P>* kept;     // of each use, and in it of each layer
  float *x, *inject, *z_H, *z_L, *grad, *grad_x;
  T *answer, *logits_left;
  Word *answer_words, *logits_words, *flipped_logits;

  Workspace(Arena& arena, const Sizes& s, Index uses, Index layers) : scratch(arena, s), uses(uses) {
    stacks = arena.take<Stack<P>>(layers), kept = arena.take<Kept<P>>(uses * layers);
    for (Index i = 0; i < layers; i++) {
      Stack<P> item(arena, s, uses);
      if (arena.base) stacks[i] = item;
    }
    for (Index i = 0; i < uses * layers; i++) {
      Kept<P> item(arena, s, stacks + i % layers, uses - 1 - i / layers);
      if (arena.base) kept[i] = item;
    }
    for (float** state : {&x, &inject, &z_H, &z_L, &grad, &grad_x}) *state = arena.take<float>(s.rows * s.d);
    answer = arena.take<T>(s.rows * s.d), answer_words = arena.take<Word>(s.rows / P::PER_WORD * s.d);
    logits_left = arena.take<T>(s.rows * s.v), logits_words = arena.take<Word>(s.rows / P::PER_WORD * s.v);
    flipped_logits = arena.take<Word>(s.v * s.rows);
  }
};

// The weights as operands of the products.
template <class P>
struct Operands {
  typedef typename P::T T;
  BlockWeights<P>* blocks;
  Word *head, *head_t;  // [V, D]
  float* stage;         // a weight with padding
  T* left;              // the same, by rows
  Word* words;          // and as words
  float* heads;         // a weight of attention with its heads padded
  float *cosine, *sine;  // of rotary positions [L, K / 2]

  Operands(Arena& arena, const Sizes& s, Index layers) {
    blocks = arena.take<BlockWeights<P>>(layers);
    auto rows = [&](Index m, Index k) { return arena.take<T>(m * k); };
    auto pairs = [&](Index k, Index n) { return arena.take<Word>(transposed<P>(k) * n); };
    for (Index i = 0; i < layers; i++) {
      BlockWeights<P> b = {rows(2 * s.it, s.deep), rows(s.rows, 2 * s.it), rows(s.rows, s.it), rows(s.it, s.rows),
                           pairs(2 * s.up, s.d), pairs(s.d, 2 * s.up), pairs(s.d, s.ic), pairs(s.ic, s.d),
                           pairs(3 * s.a, s.d), pairs(s.d, 3 * s.a), pairs(s.d, s.a), pairs(s.a, s.d)};
      if (arena.base) blocks[i] = b;
    }
    heads = arena.take<float>(3 * s.a * s.D);
    cosine = arena.take<float>(s.L * s.K / 2), sine = arena.take<float>(s.L * s.K / 2);
    head = pairs(s.v, s.d), head_t = pairs(s.d, s.v);
    Index most = 2 * (s.it + COLUMNS) * s.rows;
    for (Index other : {2 * s.ic * s.d, s.v * s.d, s.rows * s.it, 3 * s.a * s.d}) most = other > most ? other : most;
    stage = arena.take<float>(most), left = arena.take<T>(most), words = arena.take<Word>(most);
  }
};

struct AnyNetwork {
  virtual ~AnyNetwork() {}
  virtual bool prepare(const float* const* weights, Index uses, Index threads) = 0;
  virtual void supervise(const Job& job, Index group, Index thread) = 0;
  virtual float collect(const Job& job, float* const* grads) = 0;
  virtual void infer(const Inference& job, Index first, Index last, Index thread) = 0;
};

template <class P>
class Network : public AnyNetwork {
  typedef typename P::T T;
  Shape shape;
  Sizes s;
  Index layers, P0;
  Piece<Operands<P>> operands;
  Piece<Workspace<P>> workspaces[MAX_THREADS];
  Piece<Grads> grads[GROUPS];
  BlockGrads* block_grads[GROUPS] = {};
  const float* const* weights = nullptr;

 public:
  explicit Network(const Shape& shape)
      : shape(shape), s(padded<P>(shape.cells + shape.puzzle_tokens, shape.width, shape.token_inner, shape.channel_inner, shape.vocab, shape.heads)),
        layers(shape.layers), P0(shape.puzzle_tokens) {}
  ~Network() override {
    for (auto* blocks : block_grads) delete[] blocks;
  }

  // Casts the weights; allocates for `uses` block stacks with gradient (0: inference) and threads.
  bool prepare(const float* const* given, Index uses, Index threads) override {
    weights = given;
    if (!operands.object) {
      if (!operands.make(s, layers)) return false;
      if (shape.rotary) fill_rotations(*operands.object);
    }
    for (Index i = 0; i < threads; i++) {
      auto& piece = workspaces[i];
      Index count = uses > 0 ? uses : 1;
      if ((!piece.object || piece.object->uses != count) && !piece.make(s, count, layers)) return false;
    }
    for (Index g = 0; uses && g < shape.groups; g++) {
      if (!block_grads[g]) block_grads[g] = new BlockGrads[layers];
      if (!grads[g].object && !grads[g].make(s, layers, block_grads[g])) return false;
    }
    Operands<P>& o = *operands.object;
    for (Index i = 0; i < layers; i++) {
      const float* const* w = given + FIRST_BLOCK + PER_BLOCK * i;
      BlockWeights<P>& b = o.blocks[i];
      Index It = shape.token_inner, Ic = shape.channel_inner;
      if (s.H) {
        const Index size = 3 * s.a * s.D * sizeof(float);
        memset(o.heads, 0, size);
        b.cosine = shape.rotary ? o.cosine : nullptr, b.sine = o.sine;
        each_head(3, [&](Index r, Index padded) { memcpy(o.heads + padded * s.D, w[0] + r * s.D, s.K * s.D * sizeof(float)); });
        cast(o.heads, {1, 3 * s.a, 3 * s.a, s.D, s.d}, {nullptr, nullptr, 0, b.qkv, b.qkv_t});
        memset(o.heads, 0, size);
        each_head(1, [&](Index c, Index padded) {
          for (Index r = 0; r < s.D; r++) memcpy(o.heads + r * s.a + padded, w[1] + r * s.D + c, s.K * sizeof(float));
        });
        cast(o.heads, {1, s.D, s.d, s.a, s.a}, {nullptr, nullptr, 0, b.out, b.out_t});
      } else {
        cast(w[0], {2, It, s.it, s.L, s.deep}, {b.token_gate_up, b.token_gate_up_t, 2 * s.it});
        cast(w[1], {1, s.L, s.rows, It, s.it}, {b.token_down, b.token_down_t, s.deep});
      }
      cast(w[2], {2, Ic, s.up, s.D, s.d}, {nullptr, nullptr, 0, b.channel_gate_up, b.channel_gate_up_t});
      cast(w[3], {1, s.D, s.d, Ic, s.ic}, {nullptr, nullptr, 0, b.channel_down, b.channel_down_t});
    }
    cast(given[HEAD], {1, s.V, s.v, s.D, s.d}, {nullptr, nullptr, 0, o.head, o.head_t});
    return true;
  }

  void supervise(const Job& job, Index group, Index thread) override {
    [[maybe_unused]] typename P::Session session;
    Grads& g = *grads[group].object;
    memset(g.first, 0, g.size * sizeof(float));
    Index per = (job.rows + shape.groups - 1) / shape.groups, last = (group + 1) * per;
    for (Index b = group * per; b < last && b < job.rows; b++) row(job, b, *workspaces[thread].object, g);
  }

  // Adds the groups' sums to the gradients, always in the same order; returns the squared norm of what was added.
  float collect(const Job& job, float* const* out) override {
    Grads& g = *grads[0].object;
    for (Index k = 1; k < shape.groups; k++)
      for (Index i = 0; i < g.size; i += W) store(g.first + i, load(g.first + i) + load(grads[k].object->first + i));
    double norm = 0;
    auto add = [&](const float* from, Index rows, Index columns, Index stride, float* to) {
      for (Index r = 0; r < rows; r++) {
        float part = 0;
        for (Index c = 0; c < columns; c++) to[r * columns + c] += from[r * stride + c], part += from[r * stride + c] * from[r * stride + c];
        norm += part;
      }
    };
    float* flipped = (float*)operands.object->words;
    for (Index i = 0; i < layers; i++) {
      float* const* to = out + FIRST_BLOCK + PER_BLOCK * i;
      const BlockGrads& b = g.blocks[i];
      Index It = shape.token_inner, Ic = shape.channel_inner;
      if (s.H) {
        transpose((Word*)b.qkv_t, s.d, 3 * s.a, 3 * s.a, (Word*)flipped, s.d);
        each_head(3, [&](Index r, Index padded) { add(flipped + padded * s.d, s.K, s.D, s.d, to[0] + r * s.D); });
        each_head(1, [&](Index c, Index padded) {
          for (Index r = 0; r < s.D; r++) add(b.out + r * s.a + padded, 1, s.K, s.a, to[1] + r * s.D + c);
        });
      } else {
        transpose((Word*)b.token_gate_up_t, s.wide, 2 * s.it, 2 * s.it, (Word*)flipped, s.wide);
        for (Index half = 0; half < 2; half++) add(flipped + half * s.it * s.wide, It, s.L, s.wide, to[0] + half * It * s.L);
        add(b.token_down, s.L, It, s.it, to[1]);
      }
      transpose((Word*)b.channel_gate_up_t, s.d, 2 * s.up, 2 * s.up, (Word*)flipped, s.d);
      for (Index half = 0; half < 2; half++) add(flipped + half * s.up * s.d, Ic, s.D, s.d, to[2] + half * Ic * s.D);
      add(b.channel_down, s.D, Ic, s.ic, to[3]);
    }
    add(g.embed, s.V, s.D, s.d, out[EMBED]);
    if (out[POSITION]) add(g.position, s.L, s.D, s.d, out[POSITION]);
    add(g.head, s.V, s.D, s.d, out[HEAD]);
    add(g.halt, 1, s.D, s.d, out[HALT_WEIGHT]);
    add(g.halt + s.d, 1, 1, 1, out[HALT_BIAS]);
    count(job);
    return norm;
  }

  void infer(const Inference& job, Index first, Index last, Index thread) override {
    [[maybe_unused]] typename P::Session session;
    Workspace<P>& t = *workspaces[thread].object;
    for (Index b = first; b < last; b++) {
      read_state((const T*)job.x, job.rows, b, t.x);
      read_state((const T*)job.z_H, job.rows, b, t.z_H);
      read_state((const T*)job.z_L, job.rows, b, t.z_L);
      for (Index round = 0; round < job.h_cycles; round++) recursion<false>(t, job.l_cycles);
      write_state(t.z_H, job.rows, b, (T*)job.next_z_H);
      write_state(t.z_L, job.rows, b, (T*)job.next_z_L);
      to_rows<P>(s, t.z_H, s.d, t.answer);
      logits(t);
      for (Index c = 0; c < shape.cells; c++)
        memcpy(job.logits + (c * job.rows + b) * s.V, t.scratch.products + (P0 + c) * s.v, s.V * sizeof(float));
      job.halt[b] = halt_logit(t.z_H);
    }
  }

 private:
  // Calls `f` with the first channel of each head, of `parts` times all heads, in the model and in the padded buffers.
  template <class F>
  void each_head(Index parts, F f) {
    for (Index i = 0; i < parts * s.H; i++) f(i * s.K, i / s.H * s.a + i % s.H * s.k);
  }

  // definition.py: rope_tables
  void fill_rotations(Operands<P>& o) {
    for (Index l = 0; l < s.L; l++)
      for (Index i = 0; i < s.K / 2; i++) {
        const float angle = l * __builtin_powf(ROPE_BASE, -2.0f * i / s.K);
        o.cosine[l * (s.K / 2) + i] = __builtin_cosf(angle), o.sine[l * (s.K / 2) + i] = __builtin_sinf(angle);
      }
  }

  struct Padding { Index parts, rows, padded_rows, columns, width; };
  struct Wanted {
    T *left, *left_t;
    Index left_t_width;
    Word *right = nullptr, *right_t = nullptr;
  };

  // A weight [parts * rows, columns], each part padded, as the operands that are wanted.
  void cast(const float* w, Padding p, Wanted wanted) {
    Operands<P>& o = *operands.object;
    const Index height = p.parts * p.padded_rows, width = round_up(p.width, COLUMNS);
    const Index deep = words_of<P>(height);
    memset(o.stage, 0, height * width * sizeof(float));
    for (Index i = 0; i < p.parts; i++)
      for (Index r = 0; r < p.rows; r++)
        memcpy(o.stage + (i * p.padded_rows + r) * width, w + (i * p.rows + r) * p.columns, p.columns * sizeof(float));
    Word* words = wanted.right ? wanted.right : o.words;
    for (Index r = 0; r < height; r += 2)
      for (Index c = 0; c < width; c += W) {
        auto pair = P::pack(load(o.stage + r * width + c), load(o.stage + (r + 1) * width + c));
        P::store_rows(o.left + r * width + c, width, pair);
        P::store_words(words + words_of<P>(r) * width + c, width, pair);
      }
    if (wanted.right_t) transpose((Word*)o.left, height, words_of<P>(width), words_of<P>(width), wanted.right_t, height);
    if (!wanted.left) return;
    for (Index r = 0; r < height; r++) memcpy(wanted.left + r * p.width, o.left + r * width, p.width * sizeof(T));
    Word* flipped = (Word*)o.stage;
    transpose(words, deep, width, width, flipped, round_up(deep, COLUMNS));
    for (Index c = 0; c < p.columns; c++)
      memcpy(wanted.left_t + c * wanted.left_t_width, flipped + c * round_up(deep, COLUMNS), wanted.left_t_width * sizeof(T));
  }

  // The row's new puzzle or the one in work.
  bool refill(const Job& job, Index b) {
    const Index S = shape.cells;
    const bool fresh = job.halted[b];
    const Index index = job.original ? job.original[b] : b;
    const uint8_t *inputs = (fresh ? job.new_inputs + index * S : job.inputs + b * S);
    const uint8_t *labels = (fresh ? job.new_labels + index * S : job.labels + b * S);
    job.next_puzzle[b] = fresh ? job.new_puzzle[index] : job.puzzle[b];
    job.next_steps[b] = (fresh ? 0 : job.steps[b]) + 1;
    uint8_t *question = job.next_inputs + b * S, *answer = job.next_labels + b * S;
    if (!fresh || !job.original) {
      memcpy(question, inputs, S), memcpy(answer, labels, S);
      return fresh;
    }
    const uint8_t* symbols = job.token_map + b * job.symbols;
    const int16_t* cells = job.cell_map + b * S;
    for (Index c = 0; c < S; c++) {
      const Index from = cells[c];
      const bool hint = job.order && job.order[b * S + from] < job.hints[b];
      question[c] = symbols[hint ? labels[from] : inputs[from]];
      answer[c] = symbols[labels[from]];
    }
    return fresh;
  }

  void row(const Job& job, Index b, Workspace<P>& t, Grads& g) {
    const bool fresh = refill(job, b);
    const uint8_t* question = job.next_inputs + b * shape.cells;
    if (fresh) {
      for (Index l = 0; l < s.L; l++) read_row((const T*)job.h_init, t.z_H + l * s.d), read_row((const T*)job.l_init, t.z_L + l * s.d);
    } else {
      read_state((const T*)job.z_H, job.rows, b, t.z_H);
      read_state((const T*)job.z_L, job.rows, b, t.z_L);
    }
    embed(question, job.puzzle_table ? job.puzzle_table + job.next_puzzle[b] * s.D : nullptr, t.x);
    for (Index round = 0; round + 1 < job.h_cycles; round++) recursion<false>(t, job.l_cycles);
    recursion<true>(t, job.l_cycles);
    write_state(t.z_H, job.rows, b, (T*)job.next_z_H);
    write_state(t.z_L, job.rows, b, (T*)job.next_z_L);
    judge(job, b, t, g);
    memset(t.grad_x, 0, s.even * s.d * sizeof(float));
    for (Index use = job.l_cycles; use >= 0; use--) {
      for (Index i = layers - 1; i >= 0; i--) block(i, t).backward(t.grad, t.kept[use * layers + i]);
      if (use < job.l_cycles)
        for (Index j = 0; j < s.even * s.d; j += W) store(t.grad_x + j, load(t.grad_x + j) + load(t.grad + j));
    }
    for (Index i = 0; i < layers; i++) block(i, t).weight_gradients(t.stacks[i], g.blocks[i]);
    embed_backward(job, b, question, t, g);
  }

  // definition.py: recursion_round
  template <bool Keep>
  void recursion(Workspace<P>& t, Index l_cycles) {
    const Index size = s.even * s.d;
    for (Index j = 0; j < size; j += W) store(t.inject + j, load(t.z_H + j) + load(t.x + j));
    for (Index use = 0; use <= l_cycles; use++) {
      const bool last = use == l_cycles;
      float *z = last ? t.z_H : t.z_L, *other = last ? t.z_L : t.inject;
      for (Index j = 0; j < size; j += W) store(z + j, load(z + j) + load(other + j));
      for (Index i = 0; i < layers; i++) block(i, t).template forward<Keep>(z, t.kept[Keep ? use * layers + i : 0]);
    }
  }

  Block<P> block(Index i, Workspace<P>& t) { return {s, operands.object->blocks[i], t.scratch}; }

  float scale() const { return __builtin_sqrtf(s.D) * (weights[POSITION] ? __builtin_sqrtf(0.5f) : 1.0f); }

  // definition.py: embed
  void embed(const uint8_t* question, const float* puzzle, float* x) {
    const float factor = scale();
    for (Index l = 0; l < s.L; l++) {
      const float *from = l >= P0 ? weights[EMBED] + question[l - P0] * s.D : l == 0 ? puzzle : nullptr;
      const float* position = weights[POSITION] ? weights[POSITION] + l * s.D : nullptr;
      for (Index j = 0; j < s.D; j++) x[l * s.d + j] = ((from ? from[j] : 0) + (position ? position[j] : 0)) * factor;
    }
  }

  void embed_backward(const Job& job, Index b, const uint8_t* question, Workspace<P>& t, Grads& g) {
    const float factor = scale();
    for (Index j = 0; P0 && j < s.D; j++) job.puzzle_grads[b * s.D + j] = t.grad_x[j] * factor;
    for (Index l = 0; l < s.L; l++) {
      const float* from = t.grad_x + l * s.d;
      float* to = l >= P0 ? g.embed + question[l - P0] * s.d : nullptr;
      for (Index j = 0; to && j < s.d; j += W) store(to + j, load(to + j) + load(from + j) * factor);
      if (!weights[POSITION]) continue;
      to = g.position + l * s.d;
      for (Index j = 0; j < s.d; j += W) store(to + j, load(to + j) + load(from + j) * factor);
    }
  }

  // The answer's logits [L, v], in scratch.products; those of the puzzle tokens are not used.
  void logits(Workspace<P>& t) {
    multiply<P, false>(s.even, s.v, words_of<P>(s.d), (Word*)t.answer, words_of<P>(s.d), operands.object->head_t, s.v,
                       t.scratch.products, s.v);
  }

  float halt_logit(const float* z_H) const {
    float total = weights[HALT_BIAS][0];
    for (Index j = 0; j < s.D; j++) total += z_H[j] * weights[HALT_WEIGHT][j];
    return total;
  }

  // Losses, metrics and halting of a row; the gradient of z_H.
  void judge(const Job& job, Index b, Workspace<P>& t, Grads& g) {
    const Index S = shape.cells, V = s.V, v = s.v;
    const uint8_t* labels = job.next_labels + b * S;
    to_rows<P>(s, t.z_H, s.d, t.answer);
    logits(t);
    float* x = t.scratch.products;
    Index valid = 0, right = 0;
    for (Index c = 0; c < S; c++) valid += labels[c] != job.ignore;
    const float divisor = valid > 0 ? valid : 1;
    float cross_entropy = 0;
    double odds = 1;  // of all cells: one logarithm for many
    for (Index l = 0; l < s.even; l++) {
      float* row = x + l * v;
      const int label = l >= P0 && l < s.L ? labels[l - P0] : job.ignore;
      if (label == job.ignore) {
        memset(row, 0, v * sizeof(float));
        continue;
      }
      odds *= stablemax(row, V, label, job.scale / divisor, right);
      if (!(odds < 1e200)) cross_entropy += __builtin_log(odds), odds = 1;
    }
    cross_entropy += __builtin_log(odds);
    const float exact = right == valid;
    const Index deep = words_of<P>(s.deep), d = s.d;
    for (Index l = 0; l < s.even; l += 2)
      for (Index j = 0; j < v; j += W) {
        auto pair = P::pack(load(x + l * v + j), load(x + (l + 1) * v + j));
        P::store_rows(t.logits_left + l * v + j, v, pair);
        P::store_words(t.logits_words + words_of<P>(l) * v + j, v, pair);
      }
    multiply<P, false>(s.even, d, words_of<P>(v), (Word*)t.logits_left, words_of<P>(v), operands.object->head, d, t.grad, d);
    as_words<P>(s, t.answer, s.d, s.d, t.answer_words);
    if (!P::FLIPPED) transpose(t.logits_words, deep, v, v, t.flipped_logits, words_of<P>(s.rows));
    multiply<P, true, P::FLIPPED>(v, d, deep, P::FLIPPED ? t.logits_words : t.flipped_logits, P::FLIPPED ? v : words_of<P>(s.rows),
                                  t.answer_words, d, g.head, d);
    halting(job, b, t, g, cross_entropy / divisor, right / divisor, exact, valid > 0);
  }

  // losses.py: log_stablemax; logits become their cross entropy's gradient times `scale`. Returns 1 / the label's probability.
  static float stablemax(float* x, Index V, int label, float scale, Index& right) {
    const float at = x[label];
    Vec s[MAX_VOCAB / W], slope[MAX_VOCAB / W], sums{};
    const Index vectors = (V + W - 1) / W;
    Ints first, better{};  // -1 where an answer is better than the label; of equal ones the first is
    for (int i = 0; i < W; i++) first[i] = i;
    for (Index k = 0; k < vectors; k++) {
      const Ints symbol = first + (int)(k * W);
      const Vec z = load(x + k * W), bound = 1.0f + absolute(z);
      better |= (symbol < (int)V) & ~(symbol < label ? z < at : z <= at);
      slope[k] = 1.0f / bound;
      s[k] = symbol < (int)V ? (z < 0.0f ? slope[k] : bound) : Vec{};
      sums += s[k];
    }
    right += !any(better);
    const float total = sum(sums), share = 1 / total;
    for (Index k = 0; k < vectors; k++) {
      const Vec target = first + (int)(k * W) == label ? splat(1.0f) : Vec{};
      store(x + k * W, (s[k] * share - target) * slope[k] * scale);
    }
    return total * (at < 0 ? 1 - at : 1 / (1 + at));
  }

  void halting(const Job& job, Index b, Workspace<P>& t, Grads& g, float cross_entropy, float accuracy, float exact,
               bool valid) {
    const Index steps = job.next_steps[b];
    const float logit = halt_logit(t.z_H), p = 1 / (1 + __builtin_expf(-logit));
    const float softplus = (logit > 0 ? logit : 0) + __builtin_log1pf(__builtin_expf(-__builtin_fabsf(logit)));
    float slope = 0.5f * (p - exact), further = 0;
    if (job.halting_cost > 0) {  // losses.py: expected_further_steps, sum of (1 - p)^k
      float power = 1, change = 0;
      for (Index k = 1; k <= job.halt_max_steps - steps; k++) power *= 1 - p, further += power, change -= k * power * p;
      slope += job.halting_cost * change;
    }
    slope *= job.scale;
    for (Index j = 0; j < s.D; j++) {
      g.halt[j] += slope * t.z_H[j];
      t.grad[j] += slope * weights[HALT_WEIGHT][j];
    }
    g.halt[s.d] += slope;
    const bool halted = steps >= job.halt_max_steps || (logit > 0 && steps >= job.minimum[b]);
    const float counted = halted && valid;
    job.next_halted[b] = halted;
    const float values[RESULTS] = {counted, counted * accuracy, counted * exact, counted * ((logit > 0) == (exact > 0)),
                                   counted * steps, cross_entropy * job.scale, 0.5f * (softplus - logit * exact) * job.scale,
                                   job.halting_cost * further * job.scale, job.hints ? job.hints[b] * job.scale : 0};
    memcpy(job.results + b * RESULTS, values, sizeof values);
  }

  // Sums the rows' metrics, and finished rows by their number of steps, in the order of metrics.py.
  void count(const Job& job) {
    double sums[RESULTS] = {};
    for (Index b = 0; b < job.rows; b++) {
      const float* row = job.results + b * RESULTS;
      for (Index i = 0; i < RESULTS; i++) sums[i] += row[i];
      job.histogram[job.next_steps[b] - 1] += row[0];
    }
    for (Index i = 0; i < RESULTS; i++) job.sums[i] += sums[i];
  }

  void read_row(const T* from, float* to) const {
    Index j = 0;
    for (; j + W <= s.D; j += W) store(to + j, P::load(from + j));
    if (j == s.D) return;
    alignas(64) T tail[W] = {};
    memcpy(tail, from + j, (s.D - j) * sizeof(T));
    store(to + j, P::load(tail));
  }

  // A row of a state [L, B, D].
  void read_state(const T* z, Index rows, Index b, float* to) const {
    for (Index l = 0; l < s.L; l++) read_row(z + (l * rows + b) * s.D, to + l * s.d);
    if (s.even > s.L) memset(to + s.L * s.d, 0, s.d * sizeof(float));
  }

  void write_state(const float* from, Index rows, Index b, T* z) const {
    for (Index l = 0; l < s.L; l++) {
      T* to = z + (l * rows + b) * s.D;
      const float* state = from + l * s.d;
      Index j = 0;
      for (; j + W <= s.D; j += W) P::store_row(to + j, load(state + j));
      if (j == s.D) continue;
      alignas(64) T tail[W];
      P::store_row(tail, load(state + j));
      memcpy(to + j, tail, (s.D - j) * sizeof(T));
    }
  }
};
