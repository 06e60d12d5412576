#include "server/durability/records/records.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/durability/records/bytes.h"
#include "server/durability/records/policy_bytes.h"

namespace ballast::server {
namespace {

// Version 2 knows uploads of weights, version 3 those of state planes, and each is written for them
// only, so older programs refuse them.
constexpr uint32_t kDecisionVersion = 3;
// Version 2 is version 1 followed by user states, and is written only when there are some. Version
// 3 is that of an upload of weights: version 2, whose user states may be none. Version 4 is that of
// a state plane: version 3 followed by the plane and step counts. Version 5 is that of a vote with
// rates: version 2, whose user states may be none, followed by the rates.
constexpr uint32_t kPreparedVersion = 5;
constexpr uint32_t kPreparedUpload = 3;
constexpr uint32_t kPreparedPlane = 4;
constexpr uint32_t kPreparedRates = 5;
constexpr uint32_t kSkipped = 0;
constexpr uint32_t kApplied = 1;
constexpr uint32_t kHalted = 2;
constexpr uint32_t kUploaded = 3;
constexpr uint32_t kPlaneSet = 4;
constexpr size_t kNormBytes = 12;
constexpr size_t kScalarSetBytesMin = 16;
constexpr size_t kUserStateBytesMin = 8;

void PutScalars(const std::vector<ScalarSet>& sets, ByteWriter* out) {
  out->Put<uint32_t>(sets.size());
  for (const ScalarSet& set : sets) {
    out->Put(set.group);
    out->Put(set.step);
    out->Put<uint32_t>(set.bits.size());
    for (const uint32_t bits : set.bits) out->Put(bits);
  }
}

std::vector<ScalarSet> GetScalars(ByteReader* in) {
  std::vector<ScalarSet> sets(in->GetCount(kScalarSetBytesMin));
  for (ScalarSet& set : sets) {
    set.group = in->Get<uint32_t>();
    set.step = in->Get<uint64_t>();
    set.bits.resize(in->GetCount(sizeof(uint32_t)));
    for (uint32_t& bits : set.bits) bits = in->Get<uint32_t>();
  }
  return sets;
}

void PutNonfinite(const Nonfinite& nonfinite, ByteWriter* out) {
  out->Put(static_cast<uint32_t>(nonfinite.kind));
  out->Put(nonfinite.extent);
  out->Put(nonfinite.element);
  out->Put(nonfinite.slot);
  out->Put(nonfinite.value_bits);
}

Nonfinite GetNonfinite(ByteReader* in) {
  const uint32_t kind = in->Get<uint32_t>();
  if (kind > static_cast<uint32_t>(NonfiniteKind::kNorm)) in->Fail();
  return {.kind = static_cast<NonfiniteKind>(kind),
          .extent = in->Get<uint32_t>(),
          .element = in->Get<uint32_t>(),
          .slot = in->Get<uint32_t>(),
          .value_bits = in->Get<uint32_t>()};
}

void PutPresent(const std::vector<bool>& present, ByteWriter* out) {
  out->Put<uint32_t>(present.size());
  for (size_t begin = 0; begin < present.size(); begin += 8) {
    uint8_t bits = 0;
    for (size_t i = begin; i < present.size() && i < begin + 8; ++i) {
      if (present[i]) bits = static_cast<uint8_t>(bits | 1u << (i - begin));
    }
    out->Put(bits);
  }
}

std::vector<bool> GetPresent(size_t bytes_max, ByteReader* in) {
  const uint32_t count = in->Get<uint32_t>();
  if (count / 8 > bytes_max) {
    in->Fail();
    return {};
  }
  std::vector<bool> present(count);
  for (size_t begin = 0; begin < count; begin += 8) {
    const uint8_t bits = in->Get<uint8_t>();
    for (size_t i = begin; i < begin + 8; ++i) {
      const bool set = (bits >> (i - begin) & 1) != 0;
      if (i < count) {
        present[i] = set;
      } else if (set) {
        in->Fail();
      }
    }
  }
  return present;
}

void PutUserStates(const std::map<uint32_t, std::string>& states, ByteWriter* out) {
  out->Put<uint32_t>(states.size());
  for (const auto& [slot, state] : states) {
    out->Put(slot);
    out->Put<uint32_t>(state.size());
    out->PutBytes(state);
  }
}

// None empty, slots ascending.
std::map<uint32_t, std::string> GetUserStates(ByteReader* in) {
  std::map<uint32_t, std::string> states;
  const uint32_t count = in->GetCount(kUserStateBytesMin);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t slot = in->Get<uint32_t>();
    const std::string state = in->GetBytes(in->GetCount(1));
    if (state.empty() || (!states.empty() && slot <= states.rbegin()->first)) in->Fail();
    states.emplace_hint(states.end(), slot, state);
  }
  return states;
}

uint32_t PreparedVersionOf(const PreparedRecord& record) {
  if (IsStatePlane(record.upload)) return kPreparedPlane;
  if (IsUpload(record.upload)) return kPreparedUpload;
  if (!record.vote.rates.empty()) return kPreparedRates;
  return record.user_state.empty() ? 1 : 2;
}

uint32_t DecisionVersionOf(const Decision& decision) {
  return IsStatePlane(decision.upload) ? 3 : IsUpload(decision.upload) ? 2 : 1;
}

void PutPlane(UploadPlane plane, ByteWriter* out) { out->Put(static_cast<uint32_t>(plane)); }

UploadPlane GetPlane(ByteReader* in) {
  const uint32_t plane = in->Get<uint32_t>();
  if (plane < static_cast<uint32_t>(UploadPlane::kMaster) || plane > kUploadPlaneMax) in->Fail();
  return static_cast<UploadPlane>(plane);
}

void PutSteps(const std::optional<StepCounts>& steps, ByteWriter* out) {
  const bool positioned = steps.has_value() && steps->schedule_index.has_value();
  out->Put<uint32_t>(positioned ? 2 : steps.has_value() ? 1 : 0);
  if (!steps.has_value()) return;
  if (positioned) out->Put(*steps->schedule_index);
  out->Put(steps->opt_step);
  out->Put<uint32_t>(steps->tensor.size());
  for (const uint64_t step : steps->tensor) out->Put(step);
}

std::optional<StepCounts> GetSteps(ByteReader* in) {
  const uint32_t has = in->Get<uint32_t>();
  if (has > 2) in->Fail();
  if (has != 1 && has != 2) return std::nullopt;
  StepCounts steps;
  if (has == 2) {
    const auto index = in->Get<int64_t>();
    if (!ScheduleIndexRefusal(index, true).empty()) in->Fail();
    steps.schedule_index = index;
  }
  steps.opt_step = in->Get<uint64_t>();
  steps.tensor.resize(in->GetCount(sizeof(uint64_t)));
  for (uint64_t& step : steps.tensor) step = in->Get<uint64_t>();
  return steps;
}

uint32_t OutcomeOf(const Decision& decision) {
  if (IsStatePlane(decision.upload)) return kPlaneSet;
  if (IsUpload(decision.upload)) return kUploaded;
  return decision.applied ? kApplied : decision.halted ? kHalted : kSkipped;
}

absl::Status CheckVersion(const char* what, uint32_t version, uint32_t newest) {
  if (version <= newest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " record of version ", version, "; this program reads versions up to ",
                   newest, "; use the program that wrote it, or a newer one"));
}

absl::Status Malformed(const char* what, size_t bytes) {
  return absl::DataLossError(absl::StrCat(what, " record of ", bytes,
                                          " bytes is not one that this program writes; the ",
                                          "log was damaged or written by something else"));
}

}  // namespace

std::vector<uint64_t> StepsAfter(const PreparedRecord& prepared, const Decision& decision) {
  std::vector<uint64_t> steps =
      prepared.steps.has_value() ? prepared.steps->tensor : prepared.tensor_step;
  if (!decision.applied || IsUpload(decision.upload)) return steps;
  for (size_t t = 0; t < steps.size() && t < prepared.present.size(); ++t) {
    if (prepared.present[t]) ++steps[t];
  }
  return steps;
}

std::string EncodePrepared(const PreparedRecord& record) {
  ByteWriter out;
  const uint32_t version = PreparedVersionOf(record);
  out.Put(version);
  out.Put(record.epoch);
  out.Put(record.round);
  out.Put(record.vote.server);
  out.Put(record.vote.contributor_digest);
  out.Put(record.vote.nonfinite);
  PutNonfinite(record.vote.first_nonfinite, &out);
  out.Put<uint32_t>(record.vote.norms.size());
  for (const ExtentNorm& norm : record.vote.norms) {
    out.Put(norm.extent);
    out.Put(norm.sumsq);
  }
  PutScalars(record.vote.scalars, &out);
  PutPresent(record.present, &out);
  out.Put<uint32_t>(record.tensor_step.size());
  for (const uint64_t step : record.tensor_step) out.Put(step);
  PutPolicy(record.policy, &out);
  if (version > 1) PutUserStates(record.user_state, &out);
  if (version == kPreparedPlane) {
    PutPlane(record.upload, &out);
    PutSteps(record.steps, &out);
  }
  if (version == kPreparedRates) PutRates(record.vote.rates, &out);
  return out.Take();
}

absl::StatusOr<PreparedRecord> DecodePrepared(absl::string_view bytes) {
  ByteReader in(bytes);
  const uint32_t version = in.Get<uint32_t>();
  BALLAST_RETURN_IF_ERROR(CheckVersion("PREPARED", version, kPreparedVersion));
  PreparedRecord record;
  record.epoch = in.Get<uint32_t>();
  record.round = in.Get<uint64_t>();
  record.vote.server = in.Get<uint32_t>();
  record.vote.contributor_digest = in.Get<uint32_t>();
  record.vote.nonfinite = in.Get<uint64_t>();
  record.vote.first_nonfinite = GetNonfinite(&in);
  record.vote.norms.resize(in.GetCount(kNormBytes));
  for (ExtentNorm& norm : record.vote.norms) {
    norm.extent = in.Get<uint32_t>();
    norm.sumsq = in.Get<double>();
  }
  record.vote.scalars = GetScalars(&in);
  record.present = GetPresent(bytes.size(), &in);
  record.tensor_step.resize(in.GetCount(sizeof(uint64_t)));
  for (uint64_t& step : record.tensor_step) step = in.Get<uint64_t>();
  BALLAST_ASSIGN_OR_RETURN(record.policy, GetPolicy(&in));
  if (version > 1) record.user_state = GetUserStates(&in);
  if (version == kPreparedUpload) record.upload = UploadPlane::kWeights;
  if (version == kPreparedPlane) {
    record.upload = GetPlane(&in);
    record.steps = GetSteps(&in);
  }
  if (version == kPreparedRates) record.vote.rates = GetRates(&in);
  if (version != PreparedVersionOf(record) || !in.AtEnd())
    return Malformed("PREPARED", bytes.size());
  return record;
}

std::string EncodeDecision(const DecisionRecord& record) {
  const Decision& decision = record.decision;
  ByteWriter out;
  const uint32_t version = DecisionVersionOf(decision);
  out.Put(version);
  out.Put(record.epoch);
  out.Put(record.round);
  out.Put(OutcomeOf(decision));
  out.Put(decision.grad_norm);
  out.Put(decision.clip_coef);
  out.Put(decision.nonfinite);
  PutNonfinite(decision.first_nonfinite, &out);
  out.Put<uint32_t>(decision.grad_scale.size());
  for (const float scale : decision.grad_scale) out.Put(scale);
  PutScalars(decision.scalars, &out);
  PutPolicy(decision.policy, &out);
  if (version == 3) PutPlane(decision.upload, &out);
  return out.Take();
}

absl::StatusOr<DecisionRecord> DecodeDecision(absl::string_view bytes) {
  ByteReader in(bytes);
  const uint32_t version = in.Get<uint32_t>();
  BALLAST_RETURN_IF_ERROR(CheckVersion("DECISION", version, kDecisionVersion));
  DecisionRecord record;
  Decision& decision = record.decision;
  record.epoch = in.Get<uint32_t>();
  record.round = in.Get<uint64_t>();
  const uint32_t outcome = in.Get<uint32_t>();
  if (version == 1 ? outcome > kHalted : outcome != version + 1) in.Fail();
  if (outcome == kUploaded) decision.upload = UploadPlane::kWeights;
  decision.applied = outcome != kSkipped && outcome != kHalted;
  decision.halted = outcome == kHalted;
  decision.grad_norm = in.Get<double>();
  decision.clip_coef = in.Get<double>();
  decision.nonfinite = in.Get<uint64_t>();
  decision.first_nonfinite = GetNonfinite(&in);
  decision.grad_scale.resize(in.GetCount(sizeof(float)));
  for (float& scale : decision.grad_scale) scale = in.Get<float>();
  decision.scalars = GetScalars(&in);
  BALLAST_ASSIGN_OR_RETURN(decision.policy, GetPolicy(&in));
  if (version == 3) decision.upload = GetPlane(&in);
  if (version == 0 || !in.AtEnd()) return Malformed("DECISION", bytes.size());
  return record;
}

}  // namespace ballast::server
