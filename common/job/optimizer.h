// What an optimizer kind consists of: its hyper-parameter keys and its state arrays. Rooms, logs
// and files take both from here as data, so that a further optimizer changes no format.
// Comes from: JobSpec. Goes to: rounds, state, the wire. Thread safety: immutable tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ballast {

// Numbers equal ballast.v1.OptimizerKind.
enum class OptimizerKind : uint8_t { kUnspecified = 0, kAdamW = 1 };

// Order of AdamW's hyper-parameters on the wire (torch.optim.AdamW's names).
enum AdamWKey : size_t { kLr = 0, kBeta1, kBeta2, kEps, kWeightDecay, kAdamWKeyCount };
inline constexpr std::array<const char*, kAdamWKeyCount> kAdamWKeys = {"lr", "beta1", "beta2",
                                                                       "eps", "weight_decay"};

// fp32 state arrays per parameter, the master weight first.
inline constexpr size_t kAdamWStateArrays = 3;  // master, exp_avg, exp_avg_sq

// Raw hyper-parameters of one group, in key order.
using Hyper = std::vector<double>;

}  // namespace ballast
