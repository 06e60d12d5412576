// Calls and a driver by hand for the tests of HomeJob and HomeGrowth.
// Comes from: the tests in this folder. Goes to: HomeJob, HomeGrowth. Thread safety: one test's
// thread.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reason.h"
#include "server/home/home_job.h"

namespace ballast::server::testing {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr uint64_t kFirst = 100;  // + slot: the processes that made the job
constexpr uint64_t kSecond = 200;

inline home::Rules TestRules() {
  return {.self = 0,
          .servers = {0, 1},
          .limits = {},
          .attach_timeout = seconds(600),
          .takeover_wait = seconds(5),
          .lease = seconds(10),
          .trainerless = seconds(700)};
}

inline AttachCall HomeCall(uint32_t slot, uint64_t incarnation, bool variable = false) {
  AttachCall call;
  call.spec.name = "job";
  call.spec.world = 2;
  call.spec.tensors = {{"a", {400}, DType::kF32, 0, {}}, {"b", {200}, DType::kF32, 0, {}}};
  call.spec.tile_elements = 64;
  call.spec.extent_elements = 128;
  call.spec.durability = Durability::kProcess;
  call.spec.variable_world = variable;
  call.slot = slot;
  call.incarnation = incarnation;
  call.tensor_crc32c = {1, 2};
  call.resume = Resume::kAuto;
  return call;
}

inline ExtendCall GrowthCall(uint32_t slot, uint64_t incarnation) {
  ExtendCall call;
  call.slot = slot;
  call.incarnation = incarnation;
  call.epoch = 1;
  call.base_layout_version = 1;
  call.group_count = 2;
  call.tensors = {{"c", {80}, DType::kF32, 1, {}}};
  call.tensor_crc32c = {3};
  call.round = 2;
  return call;
}

// The effects of one kind, in order.
template <typename T>
std::vector<T> All(const home::Effects& effects) {
  std::vector<T> found;
  for (const home::Effect& effect : effects) {
    if (const T* const one = std::get_if<T>(&effect); one != nullptr) found.push_back(*one);
  }
  return found;
}
// The only effect of that kind; fails the test if there is none, or another one.
template <typename T>
T One(const home::Effects& effects) {
  const std::vector<T> found = All<T>(effects);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? T() : found.front();
}
template <typename T>
bool Has(const home::Effects& effects) {
  return !All<T>(effects).empty();
}
// The servers that effects of one kind name.
template <typename T>
std::vector<uint32_t> Servers(const home::Effects& effects) {
  std::vector<uint32_t> servers;
  for (const T& effect : All<T>(effects)) servers.push_back(effect.server);
  return servers;
}

// One HomeJob, its time, and the answers that servers would give.
class HomeRig {
 public:
  explicit HomeRig(HomeJob job) : job_(std::move(job)) {}
  // A job that two trainers have made on two servers.
  static HomeRig Running(const home::Rules* rules, bool variable = false) {
    HomeRig rig(HomeJob::New(rules, HomeCall(0, kFirst, variable)));
    for (const uint32_t slot : {0u, 1u}) rig.Attach(HomeCall(slot, kFirst + slot, variable));
    for (const uint32_t server : {0u, 1u}) rig.Feed(home::MadeInput{server, absl::OkStatus()});
    rig.Feed(home::SavedInput{absl::OkStatus()});
    EXPECT_EQ(rig.phase(), HomeJob::Phase::kRunning);
    return rig;
  }

  // Appends nothing to earlier effects: returns those of this step.
  home::Effects Feed(const home::Input& input) {
    home::Effects effects;
    job_.Step(now_, input, &effects);
    for (const home::SealAt& asked : All<home::SealAt>(effects)) change_ = asked.change;
    return effects;
  }
  // The time has come that Arm has set.
  home::Effects FeedDue(const home::Due& due) {
    return std::visit([this](const auto& input) { return Feed(home::Input(input)); }, due);
  }
  home::Effects Attach(const AttachCall& call) { return Feed(home::AttachInput{++ticket_, call}); }
  // The seat was looked at, for the newest call.
  home::Effects Seen(uint32_t slot, bool open, bool anybody = true) {
    return Feed(home::SeatSeenInput{slot, ticket_, open, anybody});
  }
  home::Effects Sealed(uint32_t server,
                       const absl::StatusOr<SealAnswer>& answer = SealAnswer{.version = 5}) {
    return Feed(home::SealedInput{change_, server, answer});
  }
  home::Effects Adopted(uint32_t epoch, uint32_t server,
                        const absl::Status& status = absl::OkStatus()) {
    return Feed(home::AdoptedInput{epoch, server, status});
  }
  // Both servers seal and adopt `epoch`; the effects of the last step.
  home::Effects Change(uint32_t epoch) {
    for (const uint32_t server : {0u, 1u}) Sealed(server);
    Adopted(epoch, 0);
    return Adopted(epoch, 1);
  }
  home::Effects Left(uint32_t slot, uint64_t incarnation) {
    return Feed(home::SeatFreeInput{slot, incarnation, true});
  }
  void Pass(nanoseconds time) { now_ += time; }

  HomeJob::Phase phase() const { return job_.phase(); }
  const HomeJob& job() const { return job_; }
  home::Ticket ticket() const { return ticket_; }
  std::vector<uint32_t> Slots() const {
    std::vector<uint32_t> slots;
    for (const Member& member : job_.plan().epoch.members) slots.push_back(member.slot);
    return slots;
  }

 private:
  HomeJob job_;
  nanoseconds now_ = seconds(1000);
  home::Ticket ticket_ = 0;
  uint32_t change_ = 0;  // that servers were last asked to seal for
};

}  // namespace ballast::server::testing
