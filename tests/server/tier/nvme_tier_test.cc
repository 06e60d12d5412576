// The NVMe tier alone: the reads and writes of a sweep, the waits between tasks, and disk errors.
#include "server/tier/nvme_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/server/tier/memory_images.h"

namespace ballast::server {
namespace {

using testing::MemoryImages;

constexpr uint32_t kElements = 64;

class NvmeTierTest : public ::testing::Test {
 protected:
  NvmeTierTest() : images_(kElements * 3 * sizeof(float)) {}

  void Make(uint32_t extents, uint32_t buffers) {
    auto made = NvmeTier::Create(
        {.shape = {kElements, 3}, .extent_elements = kElements, .buffers = buffers});
    ASSERT_TRUE(made.ok()) << made.status();
    tier_ = *std::move(made);
    tier_->Connect(
        &images_, [](ImageIo::Done done) { return done; },
        [this](const absl::Status& status) { failures_.push_back(status); });
    images_.images.clear();
    for (uint32_t e = 0; e < extents; ++e) {
      ASSERT_TRUE(tier_->AddExtent(e, kElements).ok());
      images_.images[e][1] = std::string(kElements * 3 * sizeof(float), '\0');
      tier_->SetStored(e, 1);
      order_.push_back(e);
    }
    tier_->SetVersion(1);
  }

  // Steps all extents as the engine does.
  void Sweep(uint64_t version) {
    const std::vector<uint32_t> order = tier_->BeginSweep(order_);
    size_t next = 0;
    size_t under_way = 0;
    size_t stepped = 0;
    while (stepped < order.size()) {
      while (next < order.size() && under_way < tier_->sweep_depth()) {
        const uint32_t e = order[next++];
        ++under_way;
        tier_->Acquire(e, [&, e](const absl::Status& status) {
          ASSERT_TRUE(status.ok()) << status;
          tier_->Tile(e, 0).array[0][0] += 1;
          ready_.push_back(e);
        });
      }
      if (ready_.empty()) {
        ASSERT_FALSE(images_.kept.empty()) << "nobody will ever be ready";
        images_.RunOne();
        continue;
      }
      const uint32_t e = ready_.front();
      ready_.erase(ready_.begin());
      --under_way;
      ++stepped;
      tier_->Release(e, version);
    }
    tier_->SetVersion(version);
    tier_->Flush([](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
    images_.Run();
  }

  MemoryImages images_;
  std::unique_ptr<NvmeTier> tier_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> ready_;
  std::vector<absl::Status> failures_;
};

TEST_F(NvmeTierTest, ASweepReadsAndWritesWhatIsNotInMemoryAndFlushesOnce) {
  for (const uint32_t buffers : {4u, 10u, 20u, 39u, 40u}) {
    tier_.reset();
    order_.clear();
    Make(40, buffers);
    for (uint64_t version = 2; version <= 4; ++version) Sweep(version);
    images_.reads = images_.writes = images_.flushes = 0;
    Sweep(5);
    EXPECT_EQ(images_.reads, 40 - static_cast<int>(buffers)) << buffers;
    EXPECT_EQ(images_.writes, 40 - static_cast<int>(buffers)) << buffers;
    EXPECT_EQ(images_.flushes, 1);
    EXPECT_EQ(images_.writes_flushed, images_.writes);
    for (const uint32_t e : order_) {
      bool ready = false;
      tier_->Acquire(e, [&](const absl::Status&) { ready = true; });
      images_.Run();
      ASSERT_TRUE(ready);
      EXPECT_EQ(tier_->Tile(e, 0).array[0][0], 4) << e;
      tier_->Release(e, 0);
    }
  }
  EXPECT_TRUE(failures_.empty());
}

TEST_F(NvmeTierTest, NoImageIsOlderThanTwoSweeps) {
  Make(23, 6);
  for (uint64_t version = 2; version <= 9; ++version) {
    Sweep(version);
    for (const auto& [extent, versions] : images_.images) {
      EXPECT_GE(versions.rbegin()->first + 2, version) << "extent " << extent;
    }
  }
}

TEST_F(NvmeTierTest, WaitersForRoomAreServedInOrder) {
  Make(8, 4);
  std::vector<uint32_t> ready;
  for (uint32_t e = 0; e < 7; ++e) {
    tier_->Acquire(e, [&ready, e](const absl::Status&) { ready.push_back(e); });
  }
  images_.Run();
  EXPECT_EQ(ready, (std::vector<uint32_t>{0, 1, 2, 3}));
  tier_->Release(2, 0);
  tier_->Release(0, 7);  // It has to be written first.
  images_.Run();
  EXPECT_EQ(ready, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(images_.images[0].rbegin()->first, 7u);
  tier_->Release(1, 0);
  images_.Run();
  EXPECT_EQ(ready.back(), 6u);
}

TEST_F(NvmeTierTest, AnExtentThatIsBeingWrittenIsGivenBackWhenItIsWritten) {
  Make(8, 4);
  for (uint32_t e = 0; e < 4; ++e) {
    tier_->Acquire(e, [](const absl::Status&) {});
    images_.Run();
    tier_->Tile(e, 0).array[2][5] = 3;
    tier_->Release(e, 2);
  }
  bool other = false;
  bool again = false;
  tier_->Acquire(5, [&](const absl::Status&) { other = true; });  // Writes extent 0.
  ASSERT_EQ(images_.kept.size(), 1u);
  tier_->Acquire(0, [&](const absl::Status&) { again = true; });
  EXPECT_FALSE(again);
  images_.Run();
  EXPECT_TRUE(again);
  EXPECT_TRUE(other);
  EXPECT_EQ(tier_->Tile(0, 0).array[2][5], 3);
}

TEST_F(NvmeTierTest, SavesOldExtentsThatNobodySteps) {
  Make(6, 4);
  tier_->SetVersion(9);
  EXPECT_EQ(tier_->OldestBelow(1), -1);
  EXPECT_EQ(tier_->OldestBelow(9), 0);
  for (uint32_t saved = 0; saved < 6; ++saved) {
    const int64_t oldest = tier_->OldestBelow(9);
    ASSERT_EQ(oldest, saved);
    tier_->Save(static_cast<uint32_t>(oldest), false,
                [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
    images_.Run();
    EXPECT_EQ(images_.images[saved].rbegin()->first, 9u);
  }
  EXPECT_EQ(tier_->OldestBelow(9), -1);
}

TEST_F(NvmeTierTest, AFlushWaitsForWritesUnderWay) {
  Make(6, 4);
  tier_->SetVersion(2);
  tier_->Save(0, false, [](const absl::Status&) {});
  images_.RunOne();  // The read.
  bool flushed = false;
  bool quiet = false;
  tier_->Flush([&](const absl::Status&) { flushed = true; });
  tier_->WhenQuiet([&] { quiet = true; });
  ASSERT_EQ(images_.kept.size(), 1u) << "the write only";
  EXPECT_FALSE(quiet);
  images_.RunOne();
  EXPECT_FALSE(flushed);
  images_.Run();
  EXPECT_TRUE(flushed);
  EXPECT_TRUE(quiet);
  EXPECT_EQ(images_.writes_flushed, 1);
}

TEST_F(NvmeTierTest, AReadThatFailsIsToldToAllWhoWait) {
  Make(12, 4);
  images_.read_error = absl::DataLossError("image of extent 0 is damaged");
  std::vector<absl::Status> told;
  for (uint32_t e = 0; e < 8; ++e) {
    tier_->Acquire(e, [&](const absl::Status& status) { told.push_back(status); });
  }
  images_.Run();
  ASSERT_EQ(told.size(), 8u);
  for (const absl::Status& status : told) EXPECT_EQ(status, images_.read_error);
  tier_->Acquire(9, [&](const absl::Status& status) { told.push_back(status); });
  EXPECT_EQ(told.back(), images_.read_error) << "it is final";
}

TEST_F(NvmeTierTest, AWriteThatFailsIsTold) {
  Make(12, 4);
  images_.write_error = absl::ResourceExhaustedError("no space left on device");
  for (uint32_t e = 0; e < 4; ++e) {
    tier_->Acquire(e, [](const absl::Status&) {});
    images_.Run();
    tier_->Release(e, 2);
  }
  absl::Status told;
  tier_->Acquire(4, [&](const absl::Status& status) { told = status; });
  images_.Run();
  EXPECT_EQ(told, images_.write_error);
  ASSERT_FALSE(failures_.empty());
  EXPECT_EQ(failures_.front(), images_.write_error);
}

// A job may end while an extent is read for a save, or while another user of it delays the save.
TEST_F(NvmeTierTest, NoSaveStartsOnceTheImagesAreGone) {
  Make(8, 4);
  tier_->SetVersion(2);
  std::vector<absl::Status> saved;
  const auto save = [&](uint32_t extent) {
    tier_->Save(extent, /*initial=*/false,
                [&saved](const absl::Status& status) { saved.push_back(status); });
  };
  tier_->Acquire(0, [](const absl::Status& status) { ASSERT_TRUE(status.ok()); });
  images_.Run();
  save(0);
  save(1);
  tier_->Connect(nullptr, nullptr, nullptr);
  images_.Run();
  tier_->Release(0, 0);
  ASSERT_EQ(saved.size(), 2u);
  for (const absl::Status& status : saved) EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(images_.writes, 0);
}

TEST_F(NvmeTierTest, PrefetchFillsFreeMemoryAndEvictsNothing) {
  Make(12, 5);
  tier_->Prefetch(order_);
  images_.Run();
  EXPECT_EQ(images_.reads, 5);
  tier_->Prefetch({7, 8, 9});
  images_.Run();
  EXPECT_EQ(images_.reads, 5);
  for (uint32_t e = 0; e < 12; ++e) EXPECT_EQ(tier_->IsHere(e), e < 5) << e;
}

TEST_F(NvmeTierTest, ALargerExtentGetsLargerBuffersAndWhatIsHereStays) {
  Make(2, 4);
  tier_->Acquire(0, [](const absl::Status&) {});
  images_.Run();
  EXPECT_TRUE(absl::IsResourceExhausted(tier_->AddExtent(9, 5 * 4096))) << "one is acquired";
  tier_->State(0)[7] = 3;
  tier_->Release(0, 2);
  const uint64_t before = tier_->bytes();
  ASSERT_TRUE(tier_->AddExtent(9, 5 * 4096).ok());
  EXPECT_GE(tier_->bytes(), before + 4 * 4 * 4096 * 3 * sizeof(float));
  tier_->Acquire(9, [](const absl::Status&) {});
  tier_->Acquire(0, [](const absl::Status&) {});
  images_.Run();
  tier_->State(9)[3 * 5 * 4096 - 1] = 5;
  EXPECT_EQ(tier_->State(0)[7], 3);
}

TEST_F(NvmeTierTest, SweepsAlternateTheirDirectionAndWhatComesNextIsLoadedFirst) {
  Make(12, 4);
  EXPECT_EQ(tier_->BeginSweep({0, 1, 2}), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_TRUE(tier_->BeginSweep({}).empty()) << "the end of a sweep";
  tier_->Prefetch(order_);
  images_.Run();
  for (uint32_t e = 0; e < 12; ++e) EXPECT_EQ(tier_->IsHere(e), e >= 8) << e;
  EXPECT_EQ(tier_->BeginSweep({0, 1, 2}), (std::vector<uint32_t>{2, 1, 0}));
  EXPECT_EQ(tier_->BeginSweep({5, 7}), (std::vector<uint32_t>{5, 7}));
}

TEST_F(NvmeTierTest, TooFewBuffersAreRefused) {
  const auto made = NvmeTier::Create(
      {.shape = {kElements, 3}, .extent_elements = kElements, .buffers = kNvmeBuffersMin - 1});
  EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
}

}  // namespace
}  // namespace ballast::server
