// Elementwise optimisers with decoupled weight decay and EMA, in one pass (trm/training/optim).
#pragma once
#include "vector.h"

enum { ADAM_ATAN2, ADAMW, LION };

struct Update {
  int kind;
  float beta1, beta2, keep, step_size, v_scale, ema_decay;
  float *params, *m, *v, *ema;
  const float* grads;
};

// atan(q) / q on [0, 1] by powers of q^2, highest first: an interpolation at Chebyshev nodes.
constexpr float ARC[] = {0.00283406419f, -0.0160050299f, 0.0425876081f, -0.0749544576f, 0.106367544f,
                         -0.142025709f, 0.199924842f, -0.333330661f, 1.0f};

// atan2(y, x) for x >= 0, in radians; relative error 2e-7.
INLINE Vec arc_tangent(Vec y, Vec x) {
  Vec a = absolute(y), large = larger(a, x), small = smaller(a, x);
  Vec q = small / (large > 0.0f ? large : splat(1.0f)), z = q * q;
  Vec p = splat(ARC[0]);
  for (int i = 1; i < 9; i++) p = p * z + ARC[i];
  p = p * q;
  p = a > x ? 1.57079632679f - p : p;
  return (Vec)(((Ints)p & 0x7fffffff) | ((Ints)y & (Ints)splat(-0.0f)));
}

// The update's direction; m and v change in place.
INLINE Vec direction(const Update& u, Vec g, Vec& m, float* v) {
  if (u.kind == LION) {
    Vec d = g + u.beta1 * (m - g);
    m = m + (1 - u.beta2) * (g - m);
    return d > 0.0f ? splat(1.0f) : d < 0.0f ? splat(-1.0f) : d;
  }
  m = m + (1 - u.beta1) * (g - m);
  Vec square = u.beta2 * load(v) + (1 - u.beta2) * (g * g);
  store(v, square);
  Vec deviation = square_root(square) * u.v_scale;
  return u.kind == ADAM_ATAN2 ? arc_tangent(m, deviation) : m / (deviation + 1e-8f);
}

// Elements first to last of the flat buffers, whose length is a multiple of COLUMNS.
static void apply(const Update& u, Index first, Index last) {
  for (Index i = first; i < last; i += W) {
    Vec m = load(u.m + i);
    Vec p = load(u.params + i) * u.keep - u.step_size * direction(u, load(u.grads + i), m, u.v + i);
    store(u.m + i, m), store(u.params + i, p);
    if (u.ema) store(u.ema + i, load(u.ema + i) + (1 - u.ema_decay) * (p - load(u.ema + i)));
  }
}
