// The promises of every placement of a state: the one in memory, and the one on NVMe with several
// sizes of its memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "common/tensor/layout.h"
#include "server/tier/nvme_tier.h"
#include "server/tier/state_placement.h"
#include "server/tier/tile_layout.h"
#include "tests/server/tier/memory_images.h"

namespace ballast::server {
namespace {

using testing::MemoryImages;

constexpr uint32_t kTile = 64;
constexpr uint32_t kElements = 2 * kTile;
constexpr uint32_t kExtents = 8;  // the last one shorter
constexpr uint32_t kArrays = 3;
constexpr uint32_t kRounds = 3;  // of a checkpoint
constexpr size_t kBytes = kElements * kArrays * sizeof(float);
constexpr StateShape kShape{.tile_elements = kTile, .arrays = kArrays, .initial = {0, 0, 0.5f}};

struct PlacementCase {
  const char* name;
  uint32_t buffers;  // 0: in memory
};

void PrintTo(const PlacementCase& placement, std::ostream* os) { *os << placement.name; }

Layout LayoutOf(uint32_t extents) {
  return *Layout::Build({{(extents - 1) * kElements + 23, DType::kF32, 0}}, kTile, kElements);
}

float ValueOf(uint32_t extent, uint32_t array, uint32_t element, uint64_t version) {
  return static_cast<float>(extent * 1000 + array * 333 + element) +
         0.25f * static_cast<float>(version);
}

class PlacementConformance : public ::testing::TestWithParam<PlacementCase> {
 protected:
  void SetUp() override {
    placement_ = MakePlacement(
        {.shape = kShape, .checkpoint_rounds = kRounds, .buffers = GetParam().buffers});
    for (uint32_t e = kExtents; e-- > 0;) owned_.push_back(e);
    ASSERT_TRUE(placement_->Place(layout_, owned_, 0).ok());
  }
  void Connect(MemoryImages* images, uint64_t version) {
    version_ = version;
    placement_->Connect({.images = images,
                         .wrap = [](ImageIo::Done done) { return done; },
                         .failed = [this](const absl::Status& s) { failures_.push_back(s); },
                         .progress = [this] { OnProgress(); }},
                        version);
  }
  // As the driver does.
  void OnProgress() {
    ++progress_;
    placement_->KeepImages(version_, short_of_room_);
  }

  template <typename Change>
  void ForEach(uint32_t extent, Tier* tier, const Change& change) {
    const uint32_t tiles = layout_.extents()[extent].elements > kTile ? 2 : 1;
    for (uint32_t t = 0; t < tiles; ++t) {
      const TileView tile = tier->Tile(extent, t);
      for (uint32_t a = 0; a < kArrays; ++a) {
        for (uint32_t i = 0; i < tile.elements; ++i) change(a, t * kTile + i, tile.array[a] + i);
      }
    }
  }
  void SetIn(Tier* tier, uint32_t extent, uint64_t version) {
    ForEach(extent, tier, [&](uint32_t array, uint32_t i, float* value) {
      *value = ValueOf(extent, array, i, version);
    });
  }
  void Set(uint32_t extent, uint64_t version) { SetIn(placement_->tier(), extent, version); }
  void Put(uint32_t extent) {
    placement_->PutInitial(extent, 1, [this, extent] { Set(extent, 1); });
  }
  void Acquire(uint32_t extent, MemoryImages* images) {
    bool ready = false;
    placement_->tier()->Acquire(extent, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ready = true;
    });
    images->Run();
    ASSERT_TRUE(ready) << "extent " << extent;
  }
  // `version` 0: initial values.
  void Expect(uint32_t extent, uint64_t version, MemoryImages* images) {
    ASSERT_NO_FATAL_FAILURE(Acquire(extent, images));
    ForEach(extent, placement_->tier(), [&](uint32_t array, uint32_t i, const float* value) {
      ASSERT_EQ(*value, version == 0 ? kShape.initial[array] : ValueOf(extent, array, i, version))
          << "extent " << extent << " array " << array << " element " << i;
    });
    placement_->tier()->Release(extent, 0);
  }
  // A round that steps every extent below `stepped`.
  void Round(uint32_t stepped) {
    std::vector<uint32_t> extents;
    for (uint32_t e = 0; e < stepped; ++e) extents.push_back(e);
    for (const uint32_t e : placement_->tier()->BeginSweep(extents)) {
      ASSERT_NO_FATAL_FAILURE(Acquire(e, &images_));
      Set(e, version_ + 1);
      placement_->tier()->Release(e, version_ + 1);
      state_of_[e] = version_ + 1;
    }
    placement_->OnRound(++version_);
    placement_->KeepImages(version_, short_of_room_);
    images_.Run();
  }
  // All extents have initial weights on the disk.
  void Begin() {
    Connect(&images_, 1);
    for (const uint32_t e : owned_) Put(e);
    images_.Run();
    ASSERT_TRUE(placement_->initial_durable());
    state_of_.assign(kExtents, 1);
  }
  // The payload of an image of `extent` that was last changed by version `version`.
  std::string PayloadOf(uint32_t extent, uint64_t version) const {
    const uint32_t elements = layout_.extents()[extent].elements;
    std::string payload(kBytes, '\0');
    auto* to = reinterpret_cast<float*>(payload.data());
    for (uint32_t begin = 0; begin < elements; begin += kTile) {
      const uint32_t end = std::min(elements, begin + kTile);
      for (uint32_t a = 0; a < kArrays; ++a) {
        for (uint32_t i = begin; i < end; ++i) *to++ = ValueOf(extent, a, i, version);
      }
    }
    return payload;
  }
  size_t PayloadBytes(uint32_t extent) const {
    return layout_.extents()[extent].elements * kArrays * sizeof(float);
  }
  void ExpectPayload(uint32_t extent, const std::string& payload) const {
    ASSERT_EQ(payload.size(), kBytes) << "extent " << extent;
    const std::string wanted = PayloadOf(extent, state_of_[extent]);
    EXPECT_EQ(std::memcmp(payload.data(), wanted.data(), PayloadBytes(extent)), 0) << extent;
  }
  std::unique_ptr<ImageFile> MakeFile(uint32_t extents) {
    std::vector<ImageShape> shapes;
    for (uint32_t e = 0; e < extents; ++e) {
      shapes.push_back({e, LayoutOf(extents).extents()[e].elements, kArrays});
    }
    return *ImageFile::Create(&disk_, "/images", {.job = 1, .tile_elements = kTile}, shapes);
  }
  // Fills `images` with the newest ones of `file`.
  void Fill(ImageFile* file, uint32_t extents, MemoryImages* images) {
    const Arena buffer = *Arena::Create(kPageBytes);
    for (uint32_t e = 0; e < extents; ++e) {
      const std::vector<uint64_t> versions = file->Versions(e);
      if (versions.empty()) continue;
      ASSERT_TRUE(file->Read(e, versions.front(), buffer.data()).ok());
      images->images[e][versions.front()] = std::string(buffer.data(), kBytes);
    }
  }

  MemoryDisk disk_;
  MemoryImages images_{kBytes};
  Layout layout_ = LayoutOf(kExtents);
  std::vector<uint32_t> owned_;
  std::unique_ptr<StatePlacement> placement_;
  uint64_t version_ = 0;
  bool short_of_room_ = false;
  std::vector<uint64_t> state_of_;  // which version changed the extent last
  std::vector<absl::Status> failures_;
  int progress_ = 0;
};

TEST_P(PlacementConformance, ExtentsBeginWithInitialValues) {
  Connect(&images_, 1);
  for (const uint32_t e : owned_) Expect(e, 0, &images_);
  EXPECT_TRUE(placement_->initial_durable());
}

TEST_P(PlacementConformance, InitialWeightsAreDurableWhenAllOfThemSurvive) {
  Connect(&images_, 1);
  for (const uint32_t e : {5u, 7u, 0u}) Put(e);
  EXPECT_FALSE(placement_->initial_durable());
  images_.RunOne();
  for (const uint32_t e : {1u, 2u, 3u, 4u, 6u}) Put(e);  // More comes while some are written.
  while (!images_.kept.empty()) {
    const int before = progress_;
    images_.RunOne();
    if (!placement_->initial_durable()) continue;
    EXPECT_GT(progress_, before) << "no later call would notice";
    for (const uint32_t e : owned_) EXPECT_EQ(images_.Survives(e), 1) << "extent " << e;
  }
  EXPECT_TRUE(placement_->initial_durable());
  for (const uint32_t e : owned_) {
    EXPECT_EQ(std::memcmp(images_.images[e][1].data(), PayloadOf(e, 1).data(), PayloadBytes(e)), 0);
    Expect(e, 1, &images_);
  }
}

// The flush of the first begins before the second is written, and ends before or after it: disks
// answer in any order.
TEST_P(PlacementConformance, InitialWeightsThatComeDuringAFlushNeedAnotherOne) {
  Connect(&images_, 1);
  for (const bool reversed : {false, true}) {
    const uint32_t first = reversed ? 2 : 0;
    Put(first);
    images_.RunOne();
    Put(first + 1);
    if (reversed) std::reverse(images_.kept.begin(), images_.kept.end());
    while (!images_.kept.empty()) {
      images_.RunOne();
      if (placement_->initial_durable()) {
        EXPECT_EQ(images_.Survives(first), 1) << reversed;
        EXPECT_EQ(images_.Survives(first + 1), 1) << reversed;
      }
    }
    EXPECT_TRUE(placement_->initial_durable()) << reversed;
  }
}

TEST_P(PlacementConformance, DroppedInitialWeightsAreNotWaitedForAndComeAgain) {
  Connect(&images_, 1);
  for (const uint32_t e : owned_) Put(e);
  placement_->DropInitial();
  images_.Run();
  EXPECT_TRUE(placement_->initial_durable());
  // In memory at most two copies are on their way to the disk at a time; the others were queued.
  EXPECT_EQ(images_.writes, GetParam().buffers == 0 ? 2 : static_cast<int>(kExtents));
  for (const uint32_t e : owned_) {
    placement_->PutInitial(e, 1, [this, e] { Set(e, 2); });
  }
  EXPECT_FALSE(placement_->initial_durable());
  images_.Run();
  EXPECT_TRUE(placement_->initial_durable());
  for (const uint32_t e : owned_) {
    EXPECT_EQ(images_.Survives(e), 1) << "extent " << e;
    EXPECT_EQ(std::memcmp(images_.images[e][1].data(), PayloadOf(e, 2).data(), PayloadBytes(e)), 0)
        << "extent " << e;
  }
}

// Weights that come again while older ones are written do not change the bytes under the disk.
TEST_P(PlacementConformance, InitialWeightsThatComeAgainWaitForAWriteUnderWay) {
  Connect(&images_, 1);
  for (int i = 0; i < 3; ++i) {
    const uint64_t value = 2 + static_cast<uint64_t>(i);
    if (i > 0) placement_->DropInitial();
    placement_->PutInitial(4, 1, [this, value] { Set(4, value); });
    EXPECT_FALSE(placement_->initial_durable());
  }
  while (!images_.kept.empty()) {
    images_.RunOne();
    if (images_.images[4].empty()) continue;
    const std::string& payload = images_.images[4].rbegin()->second;
    int equal = 0;
    for (uint64_t value = 2; value <= 4; ++value) {
      equal += std::memcmp(payload.data(), PayloadOf(4, value).data(), PayloadBytes(4)) == 0;
    }
    EXPECT_EQ(equal, 1) << "an image of two states";
  }
  EXPECT_TRUE(placement_->initial_durable());
  EXPECT_EQ(std::memcmp(images_.images[4][1].data(), PayloadOf(4, 4).data(), PayloadBytes(4)), 0);
}

TEST_P(PlacementConformance, ImagesStayYoungAndHoldTheStateOfTheirVersion) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  for (int round = 0; round < 15; ++round) {
    ASSERT_NO_FATAL_FAILURE(Round(round % 4 == 3 ? 0 : 5));  // 5 to 7 are never stepped.
    for (uint32_t e = 0; e < kExtents; ++e) {
      EXPECT_GE(images_.Survives(e) + kRounds, version_) << "extent " << e;
      const auto& [version, payload] = *images_.images[e].rbegin();
      EXPECT_LE(version, version_);
      if (version >= state_of_[e]) ExpectPayload(e, payload);
    }
  }
  for (uint32_t e = 0; e < kExtents; ++e) Expect(e, state_of_[e], &images_);
  EXPECT_TRUE(failures_.empty());
}

TEST_P(PlacementConformance, ALogThatIsShortOfRoomGetsImagesOfThePresentState) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Round(3));
  short_of_room_ = true;
  placement_->KeepImages(version_, short_of_room_);
  images_.Run();
  // Extents whose arrays are here and changed are written when the tier makes room for others.
  for (uint32_t e = 3; e < kExtents; ++e) EXPECT_EQ(images_.Survives(e), version_) << e;
  const int writes = images_.writes;
  placement_->KeepImages(version_, short_of_room_);
  images_.Run();
  EXPECT_EQ(images_.writes, writes) << "nothing is older than the state";
}

TEST_P(PlacementConformance, AfterTheEndNothingBeginsAndNothingIsHeard) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(Round(5));
  short_of_room_ = true;
  for (uint32_t e = 0; e < 4; ++e) Put(e);  // Something is under way.
  placement_->Disconnect();
  const int progress = progress_;
  images_.Run();
  const int writes = images_.writes;
  placement_->KeepImages(version_, short_of_room_);
  images_.Run();
  EXPECT_EQ(progress_, progress);
  EXPECT_EQ(images_.writes, writes);
  EXPECT_TRUE(failures_.empty());
}

TEST_P(PlacementConformance, AFailedWriteIsToldAndNothingCountsAsDurable) {
  Connect(&images_, 1);
  images_.write_error = absl::DataLossError("the disk is broken");
  for (const uint32_t e : owned_) Put(e);
  images_.Run();
  ASSERT_FALSE(failures_.empty());
  EXPECT_EQ(failures_.front(), images_.write_error);
  EXPECT_FALSE(placement_->initial_durable());
}

// On an error the owner ends the job, and the job disconnects the placement.
TEST_P(PlacementConformance, ADiskThatFailsMayEndTheJobAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  placement_->Connect({.images = &images_,
                       .wrap = [](ImageIo::Done done) { return done; },
                       .failed =
                           [this, text = std::string(100, 'x')](const absl::Status& status) {
                             placement_->Disconnect();
                             failures_.push_back(absl::InternalError(text));
                             failures_.push_back(status);
                           },
                       .progress = [] {}},
                      2);
  version_ = 2;
  images_.write_error = absl::DataLossError("the disk is broken");
  placement_->KeepImages(version_, /*short_of_room=*/true);
  images_.Run();
  ASSERT_GE(failures_.size(), 2u);
  EXPECT_EQ(failures_[0].message(), std::string(100, 'x'));
  EXPECT_EQ(failures_[1], images_.write_error);
}

TEST_P(PlacementConformance, ABrokenDiskIsNotAskedAgain) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  images_.write_error = absl::DataLossError("the disk is broken");
  version_ = 9;
  placement_->OnRound(version_);
  placement_->KeepImages(version_, /*short_of_room=*/true);
  images_.Run();
  EXPECT_FALSE(failures_.empty());
  const int writes = images_.writes;
  for (int i = 0; i < 3; ++i) placement_->KeepImages(version_, /*short_of_room=*/true);
  images_.Run();
  EXPECT_LE(images_.writes, writes + 3);
}

TEST_P(PlacementConformance, AGrownJobKeepsItsStateInNewFiles) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Round(3));
  ASSERT_NO_FATAL_FAILURE(Round(5));
  placement_->KeepImages(version_, /*short_of_room=*/true);
  bool quiet = false;
  placement_->Quiesce([&] { quiet = true; });
  images_.Run();
  ASSERT_TRUE(quiet);
  images_.at_once = true;  // CopyTo waits for the disk.
  const auto file = MakeFile(kExtents);
  ASSERT_TRUE(placement_->CopyTo(file.get(), version_).ok());
  MemoryImages grown(kBytes);
  ASSERT_NO_FATAL_FAILURE(Fill(file.get(), kExtents, &grown));
  for (uint32_t e = 0; e < kExtents; ++e) ExpectPayload(e, grown.images[e][version_]);
  const Layout larger = *Layout::Build(
      {{(kExtents - 1) * kElements + 23, DType::kF32, 0}, {kElements, DType::kF32, 1}}, kTile,
      kElements);
  layout_ = larger;
  std::vector<uint32_t> owned = owned_;
  owned.insert(owned.begin(), kExtents);
  ASSERT_TRUE(placement_->Place(layout_, owned, version_).ok());
  Connect(&grown, version_);
  for (uint32_t e = 0; e < kExtents; ++e) Expect(e, state_of_[e], &grown);
  Expect(kExtents, 0, &grown);
  placement_->PutInitial(kExtents, version_, [this] { Set(kExtents, version_); });
  grown.Run();
  EXPECT_TRUE(placement_->initial_durable());
  EXPECT_EQ(grown.Survives(kExtents), version_);
  EXPECT_EQ(images_.images.count(kExtents), 0u) << "the old files";
  placement_->OnRound(++version_);
  placement_->KeepImages(version_, /*short_of_room=*/true);
  grown.Run();
  EXPECT_TRUE(failures_.empty()) << failures_.front();
}

TEST_P(PlacementConformance, RecoveredExtentsAreTheStateAndTheImagesHoldTheirVersion) {
  const auto file = MakeFile(kExtents);
  const Arena buffer = *Arena::Create(kPageBytes);
  for (uint32_t e = 0; e < kExtents; ++e) {
    std::memcpy(buffer.data(), PayloadOf(e, 4).data(), kBytes);
    ASSERT_TRUE(file->Write(e, 4, buffer.data()).ok());
  }
  ASSERT_TRUE(file->Sync().ok());
  const size_t lanes = std::min<size_t>(placement_->recovery_lanes(), 3);
  std::vector<uint64_t> stored;
  for (size_t i = 0; i < owned_.size(); ++i) {
    const uint32_t e = owned_[i];
    Tier* const tier = placement_->RecoveryTier(i % lanes);
    float* const state = tier->State(e);
    ASSERT_TRUE(file->Read(e, 4, state).ok());
    tier::SpreadLastTile(layout_.extents()[e].elements, kTile, kArrays, state);
    const bool stepped = e % 2 == 0;
    if (stepped) SetIn(tier, e, 6);
    const auto kept =
        placement_->Keep({i % lanes, e, layout_.extents()[e].elements, 4, 6, stepped}, file.get());
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(file->Versions(e).front(), *kept);
    stored.push_back(*kept);
  }
  ASSERT_TRUE(placement_->EndRecovery(stored, file.get()).ok());
  for (uint32_t e = 0; e < kExtents; ++e) EXPECT_EQ(file->Flushed(e), file->Versions(e).front());
  ASSERT_NO_FATAL_FAILURE(Fill(file.get(), kExtents, &images_));
  Connect(&images_, 6);
  for (uint32_t e = 0; e < kExtents; ++e) Expect(e, e % 2 == 0 ? 6 : 4, &images_);
  // The images that recovery found count: those of version 4 are the oldest.
  placement_->OnRound(++version_);
  short_of_room_ = true;
  placement_->KeepImages(version_, short_of_room_);
  images_.Run();
  for (uint32_t e = 0; e < kExtents; ++e) EXPECT_EQ(images_.Survives(e), version_) << e;
  EXPECT_TRUE(failures_.empty());
}

TEST(NvmePlacement, FewerBuffersThanItNeedsAreRefused) {
  const auto placement = MakePlacement({.shape = kShape, .buffers = kNvmeBuffersMin - 1});
  EXPECT_EQ(placement->Place(LayoutOf(kExtents), {1, 0}, 0).code(),
            absl::StatusCode::kInvalidArgument);
}

// Larger extents need larger buffers, which nothing may use meanwhile.
TEST(NvmePlacement, APlaceThatFailsLeavesTheStateWhereItWas) {
  MemoryImages images(kBytes);
  const auto placement = MakePlacement({.shape = kShape, .buffers = kNvmeBuffersMin});
  constexpr uint32_t kLarge = 8 * kElements;
  const Layout layout = *Layout::Build({{kElements, DType::kF32, 0}}, kTile, kLarge);
  ASSERT_TRUE(placement->Place(layout, {0}, 0).ok());
  const auto connect = [&] {
    placement->Connect({.images = &images,
                        .wrap = [](ImageIo::Done done) { return done; },
                        .failed = [](const absl::Status& status) { ADD_FAILURE() << status; },
                        .progress = [] {}},
                       1);
  };
  connect();
  placement->PutInitial(0, 1, [&] { placement->tier()->Tile(0, 0).array[0][3] = 7; });
  images.Run();
  bool ready = false;
  placement->tier()->Acquire(0, [&](const absl::Status& status) { ready = status.ok(); });
  images.Run();
  ASSERT_TRUE(ready);
  const Layout larger =
      *Layout::Build({{kElements, DType::kF32, 0}, {kLarge, DType::kF32, 1}}, kTile, kLarge);
  const absl::Status refused = placement->Place(larger, {1, 0}, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(placement->tier()->Tile(0, 0).array[0][3], 7);
  placement->tier()->Release(0, 0);
  // Once the extent is free, the same call finds room.
  EXPECT_TRUE(placement->Place(larger, {1, 0}, 1).ok());
  connect();
  placement->tier()->Acquire(0, [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  images.Run();
  EXPECT_EQ(placement->tier()->Tile(0, 0).array[0][3], 7);
}

INSTANTIATE_TEST_SUITE_P(Placements, PlacementConformance,
                         ::testing::Values(PlacementCase{"Dram", 0}, PlacementCase{"Nvme4", 4},
                                           PlacementCase{"Nvme5", 5}, PlacementCase{"Nvme20", 20}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ballast::server
