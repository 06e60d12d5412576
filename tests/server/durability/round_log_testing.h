// A RoundLog on a disk in memory, its calls' outcomes, and how a log is filled.
// Comes from: the tests in this folder. Thread safety: Outcomes is thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "server/durability/job_storage.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {

inline constexpr char kDirectory[] = "/jobs/1";

// `elements[i]` elements in extent i; gradients of 4 bytes.
inline StorageOptions OptionsOf(const std::vector<uint32_t>& elements,
                                uint32_t checkpoint_rounds = 1) {
  StorageOptions options;
  options.images = {.job = 77, .server = 2, .optimizer = 1, .formula_id = 1, .tile_elements = 64};
  for (uint32_t e = 0; e < elements.size(); ++e) {
    options.shapes.push_back({e, elements[e], 3});
    options.gradient_bytes.push_back(uint64_t{elements[e]} * 4);
  }
  options.checkpoint_rounds = checkpoint_rounds;
  return options;
}

// Outcomes of calls, by the number the test gave them.
class Outcomes {
 public:
  RoundLog::Done Of(int call) {
    return [this, call](const absl::Status& status) {
      MutexLock lock(&mu_);
      outcomes_.emplace(call, status);
      changed_.NotifyAll();
    };
  }
  absl::Status Wait(int call) {
    MutexLock lock(&mu_);
    while (outcomes_.count(call) == 0) changed_.Wait(&mu_);
    return outcomes_.at(call);
  }
  bool Has(int call) {
    MutexLock lock(&mu_);
    return outcomes_.count(call) != 0;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<int, absl::Status> outcomes_ ABSL_GUARDED_BY(mu_);
};

// A log of two extents that is full after a few rounds.
class RoundLogTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kElements = 60'000;

  RoundLogTest() : disk_(uint64_t{1} << 30) { Start(); }

  void Start() {
    auto storage = JobStorage::Create(&disk_, kDirectory, options_);
    ASSERT_TRUE(storage.ok()) << storage.status();
    for (const char* parent : {"/", "/jobs"}) ASSERT_TRUE(disk_.SyncDirectory(parent).ok());
    log_ = JobStorage::MakeRoundLog(*std::move(storage), /*durable_round=*/0, ThreadSource::Get());
    log_->OnShortOfRoom([this] {
      MutexLock lock(&mu_);
      ++short_of_room_;
      changed_.NotifyAll();
    });
  }
  void Append(uint64_t round, uint32_t extent) {
    const auto data = std::make_shared<std::string>(Bytes(round * 10 + extent, kElements * 4));
    log_->AppendExtent({.at = {.epoch = 1,
                               .round = round,
                               .extent = extent,
                               .dtype = DType::kF32,
                               .sumsq = 0.5 + extent,
                               .bytes = data->size()},
                        .data = data->data(),
                        .owner = data});
  }
  // A whole round; its Prepare is answered as call `round`.
  void Round(uint64_t round) {
    for (const uint32_t extent : {0u, 1u}) Append(round, extent);
    log_->Prepare(MakePrepared(round, {0, 1}), outcomes_.Of(static_cast<int>(round)));
    log_->AppendDecision(MakeDecision(round));
  }
  // The extent's state of `version`, each byte of it `fill`, and waits for it.
  absl::Status Checkpoint(uint32_t extent, uint64_t version, char fill = 0, bool initial = false) {
    const ImageShape& shape = options_.shapes[extent];
    auto arena = std::make_shared<Arena>(*Arena::Create(ImageFile::BufferBytes(shape)));
    std::memset(arena->data(), fill, arena->bytes());
    const int call = next_image_++;
    log_->WriteImage({extent, version, arena->data(), arena, {}, initial}, outcomes_.Of(call));
    return outcomes_.Wait(call);
  }
  // Runs rounds until the log is full; returns the round whose Prepare waits.
  uint64_t Fill() {
    uint64_t round = 1;
    for (;; ++round) {
      Round(round);
      const int call = static_cast<int>(round);
      MutexLock lock(&mu_);
      while (short_of_room_ == 0 && !outcomes_.Has(call)) {
        changed_.WaitFor(&mu_, std::chrono::milliseconds(1));
      }
      if (!outcomes_.Has(call)) return round;
    }
  }

  MemoryDisk disk_;
  const StorageOptions options_ = OptionsOf({kElements, kElements});
  Outcomes outcomes_;
  Mutex mu_;
  CondVar changed_;
  int short_of_room_ ABSL_GUARDED_BY(mu_) = 0;
  int next_image_ = 100'000;
  std::unique_ptr<RoundLog> log_;  // Last: its threads use all of the above.
};

}  // namespace ballast::server
