// Arguments of one call of an optimizer kernel. Plain data: the only header, apart from the vector
// trait, that files with instruction-set flags may include.
// Comes from: server/tier, run by run. Goes to: the kernels. Thread safety: plain values; calls on
// disjoint elements may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::optim {

// The scalars of one step as fp32, per kind, each formed in double and rounded once (scalars.h).
// They travel between servers and into the log as bit patterns: no server recomputes them.
struct AdamWScalars {  // and Adam
  float decay;         // 1 - lr * weight_decay; exactly 1 without decay. Adam: weight_decay itself,
                       // and 0 leaves the gradient alone
  float w1;            // 1 - beta1
  float b2;            // beta2
  float w2;            // 1 - beta2
  float den;           // sqrt(1 - beta2^step), as pow(., 0.5)
  float eps;           // eps
  float neg_step_size;  // -(lr / (1 - beta1^step))
};

struct SgdScalars {
  float weight_decay;  // 0 leaves the gradient alone
  float momentum;      // 0 leaves the buffer alone
  float grad_weight;   // 1 - dampening
  float neg_lr;        // -lr
  float first;     // 1 in a tensor's first step, which copies the gradient to the buffer; else 0
  float nesterov;  // 1 or 0
};

struct AdagradScalars {
  float weight_decay;  // 0 leaves the gradient alone
  float eps;
  float neg_clr;        // -(lr / (1 + (step - 1) * lr_decay))
  float raw_numerator;  // 1 divides the gradient without its decay; else 0
};

struct LionScalars {
  float decay;          // 1 - lr * weight_decay
  float w1;             // 1 - beta1
  float b1;             // beta1
  float w2;             // 1 - beta2
  float b2;             // beta2
  float neg_lr;         // -lr
  float moves_at_zero;  // 1 when a zero moves p by its sign bit; else 0
};

struct LambScalars {
  float w1;            // 1 - beta1
  float b2;            // beta2
  float w2;            // 1 - beta2
  float grow_m;        // 1 / (1 - beta1^step); 1 without bias correction
  float grow_root;     // 1 / sqrt(1 - beta2^step); 1 without bias correction
  float eps;           // eps
  float weight_decay;  // weight_decay
  float neg_lr;        // -lr; with uncorrected_ratio the bias corrections are in here
  float max_coeff;     // the ratio's upper limit, which the kernels do not read
  float min_coeff;     // and its lower one
};

// Arguments of LAMB's second pass: the step.
struct LambStepScalars {
  LambScalars k;
  float ratio;  // TrustRatio of the tensor
};

struct DeltaScalars {
  float decay;   // 1 - lr * weight_decay
  float neg_lr;  // -lr
};

inline constexpr size_t kStateArraysMax = 4;  // the master weight first
inline constexpr size_t kScalarsMax = 12;

// One run of consecutive elements. All pointers are owned by the caller, live for the call, are
// aligned to their element at least, and may start anywhere in a tile; they must not overlap.
struct RunArgs {
  float* state[kStateArraysMax];  // in and out: count x fp32 each, as many as the kernel has arrays
  const void* grad;               // in: count x fp32, bf16 or fp16
  void* weight;  // out: count x fp32, bf16 or fp16, rounded from the new master; null for none
  size_t count;  // elements; 0 is allowed
  float scale;   // g = fp32(grad) * scale: mean, unscale and clip in one factor; its sign is
                 // turned when the job maximizes
  float k[kScalarsMax];  // the kind's scalars, in the order of their struct
};

// Returns how many finite masters became Inf in a 16-bit `weight`.
using RunFn = uint64_t (*)(const RunArgs& args);

// Sums of squares of a tensor's part of one tile, of the masters before the step and of LAMB's
// update.
struct TileSquares {
  float p;
  float u;
};

// LAMB's first pass over a tensor's part of one tile: reads all of its state and gradient and
// writes nothing; ignores `weight`.
using LambSquaresFn = TileSquares (*)(const RunArgs& args);

// Widens `count` 16-bit values (or copies fp32) to fp32; exact.
using UpcastFn = void (*)(const void* from, float* to, size_t count);

// Rounds `count` fp32 values to `to` (or copies them), nearest even, every NaN to the canonical
// one (bf16 0x7FC0, fp16 0x7E00). Returns how many finite values became Inf.
using DowncastFn = uint64_t (*)(const float* from, void* to, size_t count);

// The kernels that step element by element; kinds that differ in their scalars only share one.
enum Rule : size_t {
  kRuleAdamW = 0,
  kRuleAdamWAmsgrad,
  kRuleAdam,
  kRuleAdamAmsgrad,
  kRuleSgd,
  kRuleSgdMomentum,
  kRuleAdagrad,
  kRuleLion,
  kRuleLamb,  // its second pass
  kRuleDelta,
  kRuleCount,
};

// The kernels of one instruction set; indices are DType's value - 1 (fp32, bf16, fp16).
// Every table holds functions with the same bits in state and weight, except NaN payloads.
struct KernelTable {
  RunFn run[kRuleCount][3][3];    // [rule][gradient][weight]
  LambSquaresFn lamb_squares[3];  // [gradient]
  UpcastFn upcast[3];
  DowncastFn downcast[3];
};

}  // namespace ballast::optim
