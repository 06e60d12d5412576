#include "server/exchange/export_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/safetensors/writer.h"
#include "common/text/names.h"
#include "server/exchange/universal.h"

namespace ballast::server {
namespace {

std::string FileName(absl::string_view stem, uint32_t shard, size_t shards) {
  if (shards == 1) return absl::StrCat(stem, ".safetensors");
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", stem, shard + 1, shards);
}

void Add(ExportFile* file, const TensorSpec& tensor, const ExportTensor& source,
         absl::string_view prefix, SafeDType dtype) {
  TensorEntry entry;
  entry.name = absl::StrCat(prefix, tensor.name);
  entry.dtype = dtype;
  if (source.kind != ExportKind::kStep) {
    entry.shape.assign(tensor.shape.begin(), tensor.shape.end());
  }
  file->entries.push_back(std::move(entry));
  file->sources.push_back(source);
}

// Masters only where the weights say less.
void AddState(ExportFile* file, const JobSpec& spec, uint32_t tensor, bool masters) {
  for (uint32_t array = masters ? 0 : 1; array < StateArrayCount(spec); ++array) {
    Add(file, spec.tensors[tensor], {tensor, ExportKind::kArray, array}, ArrayPrefix(spec, array),
        SafeDType::kF32);
  }
}

// First tensors of the shards, and the number of tensors after them.
std::vector<uint32_t> Cut(const JobSpec& spec, uint32_t shards) {
  const std::vector<LayoutTensor> tensors = LayoutTensors(spec.tensors);
  uint64_t total = 0;
  for (const LayoutTensor& tensor : tensors) total += tensor.elements;
  std::vector<uint32_t> cuts = {0};
  uint64_t sum = 0;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    // A tensor belongs to the shard in which its middle lies.
    const uint64_t middle = sum + tensors[t].elements / 2;
    const uint64_t shard = total == 0 ? 0 : middle / (total / shards + 1);
    if (t > cuts.back() && shard >= cuts.size()) cuts.push_back(t);
    sum += tensors[t].elements;
  }
  cuts.push_back(static_cast<uint32_t>(tensors.size()));
  return cuts;
}

}  // namespace

std::string ArrayPrefix(const JobSpec& spec, uint32_t array) {
  if (array == 0) return std::string(kMasterPrefix);
  return absl::StrCat(StateArraysOf(spec)[array - 1].name, ".");
}

SafeDType ToSafeDType(DType dtype) {
  if (dtype == DType::kBF16) return SafeDType::kBF16;
  return dtype == DType::kF16 ? SafeDType::kF16 : SafeDType::kF32;
}

std::map<std::string, std::string> OriginMetadata(const ExportOrigin& origin) {
  return {{std::string(kRoundKey), absl::StrCat(origin.round)},
          {std::string(kSnapshotKey), JobIdText(origin.snapshot)}};
}

absl::StatusOr<std::vector<ExportShard>> PlanExport(const JobSpec& spec, const ExportOrigin& origin,
                                                    const ExportOptions& options) {
  const std::vector<uint32_t> cuts = Cut(spec, std::max(options.shards, 1u));
  std::vector<ExportShard> shards(cuts.size() - 1);
  for (uint32_t s = 0; s < shards.size(); ++s) {
    ExportShard& shard = shards[s];
    shard.first_tensor = cuts[s];
    shard.tensor_count = cuts[s + 1] - cuts[s];
    if (options.format == ExportFormat::kUniversal) {
      BALLAST_RETURN_IF_ERROR(PlanUniversal(spec, origin.round, options.torch_optimizer, &shard));
      continue;
    }
    shard.weights.name = FileName("model", s, shards.size());
    shard.weights.metadata = OriginMetadata(origin);
    shard.weights.metadata.emplace("format", "pt");
    if (options.state) {
      shard.state.name = absl::StrCat(kStateDirectory, "/", FileName("state", s, shards.size()));
      shard.state.metadata = OriginMetadata(origin);
    }
    for (uint32_t t = cuts[s]; t < cuts[s + 1]; ++t) {
      const TensorSpec& tensor = spec.tensors[t];
      const SafeDType dtype = ToSafeDType(options.dtype == kNoDType ? tensor.dtype : options.dtype);
      Add(&shard.weights, tensor, {t, ExportKind::kWeight}, "", dtype);
      for (const std::string& alias : tensor.aliases) {
        shard.weights.metadata.emplace(alias, tensor.name);
      }
      if (options.state) AddState(&shard.state, spec, t, dtype != SafeDType::kF32);
    }
    // After the others, which lie on whole pages if their sizes are.
    for (uint32_t t = cuts[s]; t < cuts[s + 1] && options.state; ++t) {
      Add(&shard.state, spec.tensors[t], {t, ExportKind::kStep}, kStepPrefix, SafeDType::kI64);
    }
  }
  BALLAST_RETURN_IF_ERROR(ExportBytes(shards).status());
  return shards;
}

absl::StatusOr<uint64_t> ExportBytes(const std::vector<ExportShard>& shards) {
  uint64_t bytes = 0;
  for (const ExportShard& shard : shards) {
    for (const ExportFile* file : {&shard.weights, &shard.state}) {
      if (file->name.empty()) continue;
      const auto one = SafetensorsWriter::FileBytes(file->entries, file->metadata);
      if (!one.ok()) {
        return ReasonedError(
            absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
            absl::StrCat("the job cannot be written as safetensors: ", one.status().message()));
      }
      bytes += *one;
    }
    bytes += UniversalBytes(shard);
  }
  return bytes;
}

}  // namespace ballast::server
