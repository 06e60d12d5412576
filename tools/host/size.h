// `ballastctl size`: a job's future use of each server, by the same plans that a server makes
// before it accepts the job.
// Comes from: size_command. Goes to: server/round (PlanMemory), server/durability (DiskBytes).
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/job_spec.h"

namespace ballast::tools {

struct SizeQuestion {
  uint64_t parameters = 0;
  uint32_t trainers = 1;
  uint32_t servers = 1;
  std::string optimizer;    // its name in the table of optimizers; empty: AdamW
  std::string dtype;        // of weights and gradients: fp32, bf16, fp16; empty: bf16
  bool collective = false;  // trainers sum the gradients among them, and each pushes its share
};

// Bytes at one server.
struct SizeAnswer {
  uint32_t server = 0;
  uint64_t state = 0;          // master weights and the optimizer's arrays
  uint64_t gradients_min = 0;  // of all trainers, with the smallest window
  uint64_t gradients_max = 0;  // and where memory has room for all extents
  uint64_t sums = 0;
  uint64_t weights = 0;  // on their way out
  uint64_t disk = 0;     // a durable job's images and log
  uint64_t memory_min() const { return state + gradients_min + sums + weights; }
  uint64_t memory_max() const { return state + gradients_max + sums + weights; }
};

// Bytes that collective= takes at one trainer, in addition to parameters and gradients.
struct TrainerSize {
  uint64_t buckets = 0;    // one bucket, and one part of it
  uint64_t sums_host = 0;  // of its share; of those on the CPU only these pages are used
  uint64_t sums_gpu = 0;   // at most, where all parameters are on a GPU
};

// "7e9", "350M", "7B": at least 1. INVALID_ARGUMENT names the text and these forms.
absl::StatusOr<uint64_t> ParseParameters(const std::string& text);

// One answer for each server, ascending. Extents and windows are those of a default configuration;
// tensors have at most 64 Mi elements. INVALID_ARGUMENT names an unknown optimizer or dtype, or a
// value above its limit.
absl::StatusOr<std::vector<SizeAnswer>> SizeOf(const SizeQuestion& question);

// As ballast.torch.shares takes it (docs/collectives.md#memory); zeros without `collective`.
// Errors: those of SizeOf.
absl::StatusOr<TrainerSize> TrainerSizeOf(const SizeQuestion& question);

}  // namespace ballast::tools
