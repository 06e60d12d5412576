// Names and contents of an export's files. Tensors are never cut: each server of the cluster writes
// a shard of whole tensors, in the job's order, of about as many bytes as the others'.
// docs/formats/export.md.
// Comes from: Exporter. Goes to: ExportWriter, Exports (indexes). Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/job_spec.h"
#include "common/safetensors/header.h"

namespace ballast::server {

// Metadata of every file: the first round of a job made from it, and the exported snapshot.
inline constexpr absl::string_view kRoundKey = "ballast.round";
inline constexpr absl::string_view kSnapshotKey = "ballast.snapshot";
// Next to the weights in an export's directory: its optimizer state.
inline constexpr absl::string_view kStateDirectory = "optimizer";
// Name of a tensor of the optimizer state: one of these, or the name of a state array and a dot,
// and the parameter's name.
inline constexpr absl::string_view kMasterPrefix = "master.";
inline constexpr absl::string_view kStepPrefix = "step.";
// The prefix of state array `array` of the job; 0 is the master weight.
std::string ArrayPrefix(const JobSpec& spec, uint32_t array);

// The subject of an export.
struct ExportOrigin {
  uint64_t snapshot = 0;  // its id
  uint64_t round = 0;
};
// As the metadata of every file says it.
std::map<std::string, std::string> OriginMetadata(const ExportOrigin& origin);

// Numbers equal ballast.v1.ExportFormat.
enum class ExportFormat : uint8_t { kSafetensors = 0, kUniversal = 1 };

struct ExportOptions {
  DType dtype = kNoDType;  // of the weights; unspecified: each tensor's own
  bool state = false;      // optimizer state, too
  uint32_t shards = 1;     // servers that write
  ExportFormat format = ExportFormat::kSafetensors;
  // kUniversal: for an optimizer of torch, not of DeepSpeed.
  bool torch_optimizer = false;
};

// The parts of a tensor in a file.
enum class ExportKind : uint8_t { kWeight, kArray, kStep };

struct ExportTensor {
  uint32_t tensor = 0;  // of the job
  ExportKind kind = ExportKind::kWeight;
  uint32_t array = 0;  // the state array that the values come from; of kWeight the master
};

struct ExportFile {
  std::string name;  // below the export's directory; empty: there is none
  std::vector<TensorEntry> entries;
  std::vector<ExportTensor> sources;  // of each entry
  std::map<std::string, std::string> metadata;
};

// The folder of a tensor in a universal checkpoint.
struct UniversalFolder {
  std::string path;  // below the export's directory
  std::vector<int64_t> shape;
  std::vector<std::string> files;  // one per state array, the master first
  bool step_is_tensor = false;
};

// The files of one shard.
struct ExportShard {
  uint32_t first_tensor = 0;
  uint32_t tensor_count = 0;
  ExportFile weights;
  ExportFile state;                        // with ExportOptions::state
  std::vector<UniversalFolder> universal;  // of each tensor, in place of the above, in kUniversal
};

// A small file of an export, which the home writes when all of the above exist.
struct LastFile {
  std::string path;  // below the export's directory
  std::string content;
};

// Shards, none of them empty: at most options.shards. Tied names are metadata of the
// weights, as model hubs have them; one with the name of other metadata is left out.
// INVALID_ARGUMENT BAD_SPEC: a name or a shape that safetensors files, or folders, cannot hold;
// UNIMPLEMENTED UNSUPPORTED: an optimizer that DeepSpeed lacks.
absl::StatusOr<std::vector<ExportShard>> PlanExport(const JobSpec& spec, const ExportOrigin& origin,
                                                    const ExportOptions& options);

// The dtype of weights in a file. kF32, kBF16 or kF16.
SafeDType ToSafeDType(DType dtype);

// Of all files, headers included. INVALID_ARGUMENT as PlanExport.
absl::StatusOr<uint64_t> ExportBytes(const std::vector<ExportShard>& shards);

}  // namespace ballast::server
