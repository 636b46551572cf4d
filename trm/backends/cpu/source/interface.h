// What Python passes (trm/backends/cpu/library.py has the same structures).
#pragma once
#include <cstdint>
#include "vector.h"

constexpr Index GROUPS = 8;        // of rows, at most; each sums its own gradients, whatever the number of threads
constexpr Index MAX_THREADS = 64;
constexpr Index MAX_VOCAB = 256;
constexpr Index RESULTS = 9;       // metrics of a row, the first ones of trm/training/metrics.py: SUMS

// Order of the weights' addresses: these, then four of each block.
enum { EMBED, POSITION, HEAD, HALT_WEIGHT, HALT_BIAS, FIRST_BLOCK };
constexpr Index PER_BLOCK = 4;     // token gate_up and down or attention's qkv and out, channel gate_up and down

struct Shape {
  Index layers, cells, puzzle_tokens, width, token_inner, channel_inner, vocab, groups;
  Index heads, rotary;  // 0 heads: token mixing
};

// A micro-batch of `rows`: the carry, the rows that replace finished ones, and the results. B rows, S cells.
struct Job {
  Index rows, h_cycles, l_cycles, halt_max_steps, ignore, symbols;
  float scale, halting_cost;
  // the carry (act.py), states [L, B, D], and the next one
  const void *z_H, *z_L;
  const int32_t* steps;
  const uint8_t *halted, *inputs, *labels;
  const int32_t* puzzle;
  void *next_z_H, *next_z_L;
  int32_t* next_steps;
  uint8_t *next_halted, *next_inputs, *next_labels;
  int32_t* next_puzzle;
  // new rows: [B, S], or with `original` [N, S] and the maps of each row
  const uint8_t *new_inputs, *new_labels;
  const int32_t *new_puzzle, *original;
  const uint8_t* token_map;
  const int16_t *cell_map, *order;
  const float* hints;
  const int32_t* minimum;
  const void *h_init, *l_init;
  const float* puzzle_table;
  // results
  float *puzzle_grads, *results, *sums, *histogram;
};

// One supervision step without gradient; states and x are [L, B, D].
struct Inference {
  Index rows, h_cycles, l_cycles;
  const void *z_H, *z_L, *x;
  void *next_z_H, *next_z_L;
  float *logits, *halt;  // [S, B, V], [B]
};
