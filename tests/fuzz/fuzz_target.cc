#include "tests/fuzz/fuzz_target.h"

namespace ballast::fuzz {

const std::vector<NamedTarget>& FuzzTargets() {
  static const std::vector<NamedTarget> targets = {
      {"frame", &FrameTarget, 40000},
      {"attach", &AttachTarget, 40000},
      {"peer", &PeerTarget, 40000},
      {"authz", &AuthzTarget, 40000},
      {"records", &RecordsTarget, 40000},
      {"config", &ConfigTarget, 4000},
      {"log", &LogTarget, 2000},
      {"slots", &SlotsTarget, 2000},
      {"fsm", &FsmTarget, 4000},
      {.name = "safetensors", .make = &SafetensorsTarget, .runs = 40000, .cuts_corpus = true},
      {.name = "job_file", .make = &JobFileTarget, .runs = 40000, .cuts_corpus = true},
  };
  return targets;
}

const NamedTarget* FindTarget(absl::string_view name) {
  for (const NamedTarget& target : FuzzTargets()) {
    if (name == target.name) return &target;
  }
  return nullptr;
}

}  // namespace ballast::fuzz
