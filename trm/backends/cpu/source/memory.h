// Zeroed memory for buffers, taken piece by piece.
#pragma once
#include <cstdlib>
#include "vector.h"

// With `base` null it only counts the bytes.
struct Arena {
  char* base = nullptr;
  Index used = 0;

  template <class T>
  T* take(Index count) {
    T* p = (T*)(base + used);
    used += round_up(count * (Index)sizeof(T), 64);
    return p;
  }
};

// Memory and the object that was laid out in it.
template <class X, class... Args>
X* construct(void*& memory, Args... args) {
  Arena arena;
  X measured(arena, args...);
  if (posix_memalign(&memory, 4096, round_up(arena.used, 4096))) return nullptr;
  memset(memory, 0, arena.used);
  arena = {(char*)memory, 0};
  return new X(arena, args...);
}

template <class X>
struct Piece {
  void* memory = nullptr;
  X* object = nullptr;
  template <class... Args>
  bool make(Args... args) {
    release();
    object = construct<X>(memory, args...);
    return object;
  }
  void release() {
    delete object;
    free(memory);
    object = nullptr, memory = nullptr;
  }
  ~Piece() { release(); }
};
