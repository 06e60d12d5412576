#include "client/cpp/job/activity.h"

#include <algorithm>
#include <utility>

namespace ballast::client {
namespace {

constexpr std::chrono::seconds kFirstLog{30};

}  // namespace

bool Fetch::complete() const {
  return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.complete(); });
}

bool Fetch::Count(size_t index, uint64_t bytes) {
  Part& part = parts[index];
  part.received_bytes += bytes;
  return part.has_info && part.received_bytes <= part.expected_bytes;
}

void Fetch::TakeSteps(const v1::StateInfo& info, size_t tensor_count) {
  tensor_step.resize(tensor_count);
  for (size_t i = 0; i < std::min<size_t>(tensor_count, info.tensor_step_size()); ++i) {
    tensor_step[i] = std::max<uint64_t>(tensor_step[i], info.tensor_step(static_cast<int>(i)));
  }
}

Step::Step(RoundInput lent, RoundProgress progress_of_round, Time now)
    : input(std::move(lent)), progress(std::move(progress_of_round)), next_log(now + kFirstLog) {
  v1::ClientMessage message;
  *message.mutable_begin() = input.begin;
  begin = message.SerializeAsString();
  message.mutable_begin()->set_user_state(input.user_state);
  home_begin = message.SerializeAsString();
}

bool Step::Pushes(const JobView& job, uint32_t extent) const {
  return input.upload ? job.IsLeadTrainer() : job.Contributes(extent);
}

uint64_t HeldVersion(const Activity& activity, size_t index, uint64_t round) {
  const Step* const step = std::get_if<Step>(&activity);
  return step != nullptr && step->progress.done(index) ? round + 1 : round;
}

bool InRound(const Activity& activity) {
  return std::holds_alternative<Step>(activity) || std::holds_alternative<StaleStep>(activity);
}

bool SendsFrames(const Activity& activity) {
  return std::holds_alternative<Step>(activity) || std::holds_alternative<InitialUpload>(activity);
}

const char* SourceOf(const Activity& activity, FrameKind kind, uint32_t tensor) {
  const Step* const step = std::get_if<Step>(&activity);
  if (step == nullptr) {
    return static_cast<const char*>(std::get<InitialUpload>(activity).weights[tensor]);
  }
  return kind == FrameKind::kInit ? static_cast<const char*>(step->input.weights[tensor])
                                  : step->input.sources[tensor];
}

}  // namespace ballast::client
