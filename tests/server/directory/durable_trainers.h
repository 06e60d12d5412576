// The two trainers of a durable job, who push numbers that only the round decides: equal rounds
// give equal bits on any servers. Comes from: the tests in this folder. Goes to:
// DurableDirectories.
// Thread safety: one test's thread.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/directory/durable_cluster.h"

namespace ballast::server::testing {

// Masters and moments, by array and extent.
using State = std::map<std::pair<int, uint32_t>, std::vector<char>>;

// Two trainers of the job `name`, as the client is: they know what the home has told them.
class Trainers {
 public:
  Trainers(DurableDirectories* cluster, uint32_t home, std::string name)
      : cluster_(cluster), home_(home), name_(std::move(name)) {}

  // New processes take the seats; the old ones are gone.
  absl::Status Attach(uint64_t first) {
    End();
    done_ = 0;
    AttachAnswer answers[2];
    for (const uint32_t slot : {0u, 1u}) {
      AttachCall call = SeatCall(slot, first + slot);
      call.spec.name = name_;
      cluster_->At(home_)->apis().trainers->Attach(call, answers[slot].Setter());
    }
    for (AttachAnswer& answer : answers) {
      if (!answer.Get().ok()) return answer.Get().status();
    }
    // The seats may have changed hands one after the other.
    AttachResult result = *answers[0].Get();
    if (answers[1].Get()->plan.epoch.epoch > result.plan.epoch.epoch) result = *answers[1].Get();
    plan_ = result.plan;
    first_ = first;
    servers_.clear();
    for (const ServerAddress& server : result.servers) servers_.push_back(server.id);
    for (const uint32_t id : servers_) {
      if (cluster_->Engine(id, plan_.job) == nullptr) {
        return absl::NotFoundError(absl::StrCat("server ", id, " has no such job"));
      }
      for (const uint32_t slot : {0u, 1u}) {
        sinks_[{id, slot}] = cluster_->OpenStream(
            id, plan_.job, {.slot = slot, .incarnation = first + slot, .epoch = plan_.epoch.epoch});
      }
    }
    return absl::OkStatus();
  }

  // They were killed.
  void End() {
    for (const auto& [key, sink] : std::exchange(sinks_, {})) {
      const auto engine =
          cluster_->At(key.first) == nullptr ? nullptr : cluster_->Engine(key.first, plan_.job);
      if (engine != nullptr) engine->trainers().SlotLost({key.second, sink.get(), "it was killed"});
    }
  }

  absl::Status RunRounds(uint64_t rounds) {
    const uint64_t begin = plan_.epoch.start_round + done_;
    for (uint64_t round = begin; round < begin + rounds; ++round, ++done_) {
      if (round == 1) Send(FrameKind::kInit, 0, round);
      for (const uint32_t slot : {0u, 1u}) {
        for (const uint32_t id : servers_) {
          cluster_->Engine(id, plan_.job)->Begin(slot, MakeBegin(round));
        }
        Send(FrameKind::kGradient, slot, round);
      }
      for (const auto& [key, sink] : sinks_) {
        if (absl::Status ended = sink->Wait(round); !ended.ok()) return ended;
      }
    }
    return absl::OkStatus();
  }

  State FetchState() {
    for (const uint32_t id : servers_) {
      sinks_.at({id, 0})->ForgetState();
      const auto engine = cluster_->Engine(id, plan_.job);
      engine->trainers().FetchState({0, plan_.epoch.start_round + done_, false, {0, 1, 2}});
    }
    State state;
    const Layout layout = *LayoutOfSpec(plan_.spec);
    for (uint32_t e = 0; e < layout.extents().size(); ++e) {
      for (const int array : {0, 1, 2}) {
        state[{array, e}] =
            sinks_.at({plan_.owner[e], 0})->AwaitState(array, e, layout.extents()[e].elements);
      }
    }
    return state;
  }

  // The job rests then, everywhere.
  void Leave() {
    for (const uint32_t id : servers_) {
      const auto engine = cluster_->Engine(id, plan_.job);
      for (const uint32_t slot : {0u, 1u}) engine->trainers().Leave(slot, first_ + slot);
      while (!cluster_->Record(id, plan_.job).resting) {
        Answer<std::vector<JobStatus>> jobs;
        cluster_->At(id)->apis().jobs->Status(jobs.Setter());
        jobs.Get();
      }
    }
  }

  const JobPlan& plan() const { return plan_; }
  const std::vector<uint32_t>& servers() const { return servers_; }

 private:
  // Numbers that only the slot, the round and the extent decide.
  void Send(FrameKind kind, uint32_t slot, uint64_t round) {
    const Layout layout = *LayoutOfSpec(plan_.spec);
    for (uint32_t e = 0; e < layout.extents().size(); ++e) {
      std::mt19937 rng(static_cast<uint32_t>(1000 * round + 10 * e + slot));
      std::normal_distribution<float> normal;
      std::vector<float> values(layout.extents()[e].elements);
      for (float& value : values) value = normal(rng);
      for (const ChunkRange& range : ChunkRanges(layout, e, kChunk, {})) {
        const std::string bytes(reinterpret_cast<const char*>(values.data()) + range.offset_bytes,
                                range.length_bytes);
        FrameHeader header = MakeFrame(plan_, kind, slot, round, e, range);
        header.epoch = plan_.epoch.epoch;
        header.incarnation = first_ + slot;
        header.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(header));
        cluster_->Engine(plan_.owner[e], plan_.job)->Frame(header, Payload::FromString(bytes));
      }
    }
  }

  DurableDirectories* const cluster_;
  const uint32_t home_;
  const std::string name_;
  JobPlan plan_;
  uint64_t first_ = 0;
  uint64_t done_ = 0;              // rounds of this epoch
  std::vector<uint32_t> servers_;  // as the home has named them
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<RecordingSink>> sinks_;
};

}  // namespace ballast::server::testing
