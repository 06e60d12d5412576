// What one call of an optimizer kernel works on. Plain data: the only header, besides the vector
// trait, that files with instruction-set flags may include.
// Comes from: server/tier, run by run. Goes to: the kernels. Thread safety: plain values; calls on
// disjoint elements may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::optim {

// The scalars of one AdamW step as fp32, each formed in double and rounded once (MakeAdamWScalars).
// They travel between servers and into the log as bit patterns: no server recomputes them.
struct AdamWScalars {
  float decay;          // 1 - lr * weight_decay; exactly 1 without decay
  float w1;             // 1 - beta1
  float b2;             // beta2
  float w2;             // 1 - beta2
  float den;            // sqrt(1 - beta2^step), as pow(., 0.5)
  float eps;            // eps
  float neg_step_size;  // -(lr / (1 - beta1^step))
};

// One run of consecutive elements. All pointers are owned by the caller, live for the call, are
// aligned to their element at least, and may start anywhere in a tile; they must not overlap.
struct StepArgs {
  float* p;          // in and out: count x fp32 master weights
  float* m;          // in and out: count x fp32 first moment (torch's exp_avg)
  float* v;          // in and out: count x fp32 second moment (torch's exp_avg_sq)
  const void* grad;  // in: count x fp32, bf16 or fp16
  void* weight;      // out: count x fp32, bf16 or fp16, rounded from the new p; null writes none
  size_t count;      // elements; 0 is allowed
  float scale;       // g = fp32(grad) * scale: mean, unscale and clip in one factor
  AdamWScalars k;
};

// Returns how many finite p became Inf in a 16-bit `weight`.
using StepFn = uint64_t (*)(const StepArgs& args);

// Widens `count` 16-bit values (or copies fp32) to fp32; exact.
using UpcastFn = void (*)(const void* from, float* to, size_t count);

// Rounds `count` fp32 values to `to` (or copies them), nearest even, every NaN to the canonical
// one (bf16 0x7FC0, fp16 0x7E00). Returns how many finite values became Inf.
using DowncastFn = uint64_t (*)(const float* from, void* to, size_t count);

// The kernels of one instruction set; indices are DType's value - 1 (fp32, bf16, fp16).
// Every table holds functions with the same bits in p, m, v and weight, except NaN payloads.
struct KernelTable {
  StepFn adamw[3][3];  // [gradient][weight]
  UpcastFn upcast[3];
  DowncastFn downcast[3];
};

}  // namespace ballast::optim
