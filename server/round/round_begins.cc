#include "server/round/round_begins.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ballast::server {
namespace {

std::string PlaneDifference(const SlotBegin& ours, const SlotBegin& theirs, uint64_t round,
                            std::span<const StateArray> arrays) {
  const UploadPlane plane = ours.begin.upload;
  const UploadPlane other = theirs.begin.upload;
  if (IsUpload(other) != IsUpload(plane)) {
    const bool we_upload = IsUpload(plane);
    return absl::StrCat("slot ", we_upload ? ours.slot : theirs.slot, " uploads ",
                        UploadPlaneText(we_upload ? plane : other, arrays), " in round ", round,
                        ", which slot ", we_upload ? theirs.slot : ours.slot,
                        " steps; all slots must upload between the same two steps");
  }
  if (other == plane) return "";
  return absl::StrCat("slot ", ours.slot, " uploads ", UploadPlaneText(plane, arrays), " in round ",
                      round, ", in which slot ", theirs.slot, " uploads ",
                      UploadPlaneText(other, arrays),
                      "; all slots must upload the same, and begin with it together");
}

uint64_t BitsOf(double value) { return std::bit_cast<uint64_t>(value); }

std::string HyperDifference(const SlotBegin& ours, const SlotBegin& theirs,
                            std::span<const HyperKey> keys) {
  for (size_t g = 0; g < theirs.begin.hyper.size(); ++g) {
    const Hyper& there = theirs.begin.hyper[g];
    const Hyper& here = ours.begin.hyper[g];
    for (size_t k = 0; k < there.size(); ++k) {
      if (BitsOf(there[k]) == BitsOf(here[k])) continue;
      return absl::StrCat("group ", g, ": ", keys[k].name, " is ",
                          absl::StrFormat("%.17g", here[k]), " at slot ", ours.slot, " and ",
                          absl::StrFormat("%.17g", there[k]), " at slot ", theirs.slot,
                          "; every slot must send equal hyper-parameters");
    }
  }
  return "";
}

std::string Advice(const SlotBegin& ours, const SlotBegin& theirs, const std::string& what) {
  return absl::StrCat("gradients differ between slots ", std::min(ours.slot, theirs.slot), " and ",
                      std::max(ours.slot, theirs.slot), " in round ", ours.begin.round, " (", what,
                      "), in a job that says they are equal (gradients \"reduced\"): the model is "
                      "not in DDP, or a rank changed its gradient. Put the model in DDP, or use "
                      "gradients \"local\", which lets the servers average");
}

std::string ScatteredAdvice(const SlotBegin& ours, const SlotBegin& theirs,
                            const std::string& what) {
  return absl::StrCat("gradients differ between slots ", std::min(ours.slot, theirs.slot), " and ",
                      std::max(ours.slot, theirs.slot), " in round ", ours.begin.round, " (", what,
                      "), in a job whose trainers share one collective (gradients \"scattered\"): "
                      "all push parts of the same sums. Agree on which tensors have a gradient "
                      "before the collective, and push zeros where one trainer has none");
}

// Names the first tensor for which only one of the two has a gradient.
std::string PresenceDifference(const SlotBegin& ours, const SlotBegin& theirs,
                               const JobSpec& spec) {
  const auto has = [](const SlotBegin& slot, size_t tensor) {
    return slot.begin.presence.empty() || slot.begin.presence[tensor];
  };
  if (ours.begin.presence == theirs.begin.presence) return "";
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    if (has(ours, t) == has(theirs, t)) continue;
    return absl::StrCat("slot ", has(ours, t) ? theirs.slot : ours.slot, " has none for tensor \"",
                        spec.tensors[t].name, "\"");
  }
  return "";
}

bool SameKeys(const Hyper& a, const Hyper& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return BitsOf(x) == BitsOf(y); });
}

std::string UploadDifferenceText(const SlotBegin& ours, const SlotBegin& theirs,
                                 const JobSpec& spec) {
  const std::span<const StateArray> arrays = StateArraysOf(spec);
  const std::string planes = PlaneDifference(ours, theirs, ours.begin.round, arrays);
  if (!planes.empty()) return planes;
  if (theirs.begin.steps != ours.begin.steps) {
    return absl::StrCat("slot ", ours.slot, " uploads other step counts than slot ", theirs.slot,
                        "; all slots must load the same state");
  }
  const std::vector<uint32_t>& there = theirs.begin.weight_crc32c;
  const std::vector<uint32_t>& here = ours.begin.weight_crc32c;
  if (there.empty() || here.empty()) return "";
  const auto differ = std::mismatch(there.begin(), there.end(), here.begin(), here.end());
  if (differ.first == there.end()) return "";
  const auto tensor = static_cast<size_t>(differ.first - there.begin());
  const UploadPlane plane = ours.begin.upload;
  const std::string what =
      IsStatePlane(plane) ? absl::StrCat(UploadPlaneText(plane, arrays), " of ") : "";
  return absl::StrCat(what, "tensor \"", spec.tensors[tensor].name, "\" that slot ", ours.slot,
                      " uploads differs from slot ", theirs.slot,
                      "'s; all slots must make the same change to their weights");
}

}  // namespace

void CutPadding(size_t tensors, std::vector<bool>* presence) {
  const bool padded = presence->size() > tensors && presence->size() < tensors + 8;
  if (padded && std::find(presence->begin() + static_cast<ptrdiff_t>(tensors), presence->end(),
                          true) == presence->end()) {
    presence->resize(tensors);
  }
}

std::string UserStateRefusal(const SlotBegin& theirs, uint64_t others_bytes,
                             uint64_t all_bytes_max) {
  const auto& [slot, begin] = theirs;
  if (begin.user_state.size() > kUserStateBytesMax) {
    return absl::StrCat("slot ", slot, " sends a user state of ", begin.user_state.size(),
                        " bytes, the limit is ", kUserStateBytesMax,
                        "; keep a position there, not the data");
  }
  const uint64_t states = others_bytes + begin.user_state.size();
  if (states <= all_bytes_max) return "";
  return absl::StrCat("with slot ", slot, " the user states of round ", begin.round, " take ",
                      states, " bytes, the limit for all slots is ", all_bytes_max,
                      "; give smaller ones");
}

std::optional<BeginDifference> UploadDifference(const SlotBegin& ours, const SlotBegin& theirs,
                                                const JobSpec& spec) {
  std::string text = UploadDifferenceText(ours, theirs, spec);
  if (text.empty()) return std::nullopt;
  return BeginDifference{.reason = Reason::kInitMismatch, .text = std::move(text)};
}

std::optional<BeginDifference> StepDifference(const SlotBegin& ours, const SlotBegin& theirs,
                                              const JobSpec& spec) {
  std::string hyper = HyperDifference(ours, theirs, OptimizerRowOf(spec).hyper);
  if (!hyper.empty()) {
    return BeginDifference{absl::StatusCode::kAborted, Reason::kHyperparamMismatch,
                           std::move(hyper)};
  }
  if (spec.gradients == Gradients::kLocal) return std::nullopt;
  const std::string presence = PresenceDifference(ours, theirs, spec);
  if (presence.empty()) return std::nullopt;
  return BeginDifference{.reason = Reason::kGradientMismatch,
                         .text = spec.gradients == Gradients::kScattered
                                     ? ScatteredAdvice(ours, theirs, presence)
                                     : Advice(ours, theirs, presence)};
}

std::optional<BeginDifference> GradientDifference(const SlotBegin& ours, const SlotBegin& theirs,
                                                  const JobSpec& spec) {
  const std::vector<uint32_t>& here = ours.begin.gradient_crc32c;
  const std::vector<uint32_t>& there = theirs.begin.gradient_crc32c;
  if (here.empty() || there.empty()) return std::nullopt;
  const auto differ = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
  if (differ.first == here.end()) return std::nullopt;
  const std::string& tensor = spec.tensors[static_cast<size_t>(differ.first - here.begin())].name;
  return BeginDifference{.reason = Reason::kGradientMismatch,
                         .text = Advice(ours, theirs, absl::StrCat("tensor \"", tensor, "\""))};
}

std::string SizesRefusal(const SlotBegin& slot, size_t tensors) {
  const RoundBegin& begin = slot.begin;
  if (!begin.presence.empty() && begin.presence.size() != tensors) {
    return absl::StrCat("slot ", slot.slot, " sends presence of ", begin.presence.size(),
                        " tensors; the job has ", tensors);
  }
  const size_t digests = begin.gradient_crc32c.size();
  if (digests != 0 && (digests != tensors || IsUpload(begin.upload))) {
    return absl::StrCat("slot ", slot.slot, " sends digests of ", digests,
                        " gradients; the job has ", tensors, " tensors, and an upload none");
  }
  if (IsUpload(begin.upload) || (begin.weight_crc32c.empty() && !begin.steps.has_value())) {
    return "";
  }
  return absl::StrCat("slot ", slot.slot, " steps with checksums of ", begin.weight_crc32c.size(),
                      " tensors and step counts of ",
                      begin.steps.has_value() ? begin.steps->tensor.size() : 0,
                      "; only an upload has them");
}

std::string CountsRefusal(const RoundBegin& begin, const JobSpec& spec) {
  if (!begin.steps.has_value()) return "";
  const std::vector<uint64_t>& steps = begin.steps->tensor;
  uint64_t most = begin.steps->opt_step;
  for (const uint64_t step : steps) most = std::max(most, step);
  const size_t tensors = spec.tensors.size();
  if (!IsStatePlane(begin.upload) || steps.size() != tensors || most > kStepCountMax) {
    return absl::StrCat(" with step counts of ", steps.size(), " tensors, the largest ", most,
                        "; they come with a plane of the state, for all ", tensors,
                        " tensors, and the limit is ", kStepCountMax);
  }
  return ScheduleIndexRefusal(begin.steps->schedule_index, spec.policy.schedule.has_value());
}

void SetCounts(const std::optional<StepCounts>& steps, DecideInput* input) {
  if (!steps.has_value()) return;
  input->opt_step = steps->opt_step;
  input->schedule_index = steps->schedule_index;
}

bool SameHyper(const std::vector<Hyper>& a, const std::vector<Hyper>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameKeys);
}

}  // namespace ballast::server
