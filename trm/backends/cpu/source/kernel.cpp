// The C interface.
#include "network.h"
#include "update.h"

enum { FLOAT32, PAIRED_BF16, AVX512_BF16, AMX };

extern "C" {
// A network for this kind of products, or null if it is not compiled in or the processor has it not.
AnyNetwork* trm_network(const Shape* shape, int products) {
  if (products == FLOAT32) return new Network<Float32>(*shape);
  if (products == PAIRED_BF16) return new Network<PairedBFloat16>(*shape);
#if defined(__AVX512BF16__)
  if (products == AVX512_BF16) return new Network<BFloat16>(*shape);
#endif
#if defined(__AMX_BF16__)
  if (products == AMX && Amx::granted()) return new Network<Amx>(*shape);
#endif
  return nullptr;
}
void trm_free(AnyNetwork* network) { delete network; }
int trm_prepare(AnyNetwork* network, const float* const* weights, Index uses, Index threads) {
  return network->prepare(weights, uses, threads);
}
void trm_supervise(AnyNetwork* network, const Job* job, Index first, Index last, Index thread) {
  for (Index group = first; group < last; group++) network->supervise(*job, group, thread);
}
float trm_collect(AnyNetwork* network, const Job* job, float* const* grads) { return network->collect(*job, grads); }
void trm_infer(AnyNetwork* network, const Inference* job, Index first, Index last, Index thread) {
  network->infer(*job, first, last, thread);
}
void trm_update(const Update* update, Index first, Index last) { apply(*update, first, last); }
}
