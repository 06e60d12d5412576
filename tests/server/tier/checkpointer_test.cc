// Checkpointer: which slot is written when, checked over many shapes by writing down every image.
#include "server/tier/checkpointer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "common/bytes/crc32c.h"
#include "common/io/arena.h"
#include "server/optim/dispatch.h"
#include "server/state/extent_store.h"
#include "server/tier/dram_tier.h"
#include "server/tier/image_copy.h"
#include "server/tier/tier.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

struct Image {
  uint32_t extent = 0;
  uint64_t version = 0;
};

// Writes images down and keeps their outcome back until the test gives it.
class Log : public ImageStore {
 public:
  using Done = std::function<void(absl::Status)>;
  void WriteImage(ExtentImage image, Done done) override {
    images.push_back({image.extent, image.version});
    kept.push_back({std::move(image), std::move(done)});
  }

  std::vector<Image> images;                       // in order of their start
  std::vector<std::pair<ExtentImage, Done>> kept;  // not over yet
};

class CheckpointerTest : public ::testing::Test {
 protected:
  // `extents` extents of which this server owns every one; `versions` are those on disk.
  void Make(uint32_t extents, uint32_t rounds, std::vector<uint64_t> versions) {
    MakeOf(testing::MakePlan({static_cast<int64_t>(extents) * 128}, 1, {0}), extents, rounds,
           std::move(versions));
  }
  void MakeOf(JobPlan plan, uint32_t extents, uint32_t rounds, std::vector<uint64_t> versions) {
    plan_ = std::move(plan);
    layout_ = testing::LayoutOf(plan_);
    for (uint32_t e = 0; e < extents; ++e) owned_.push_back(extents - 1 - e);
    tier_ = MakeDramTier(StateShapeOf(plan_.spec));
    store_ = std::make_unique<ExtentStore>(tier_.get(), &optim::Kernels(simd::Isa::kScalar));
    ASSERT_TRUE(store_->Add(layout_, owned_).ok());
    std::vector<PlacedExtent> placed = PlacedOf(layout_, owned_, {}, 0);
    for (size_t i = 0; i < placed.size(); ++i) placed[i].stored = versions[i];
    auto made = Checkpointer::Create(StateShapeOf(plan_.spec), std::move(placed), rounds);
    ASSERT_TRUE(made.ok()) << made.status();
    checkpointer_.emplace(*std::move(made));
  }
  void Pump(uint64_t version, bool short_of_room = false) {
    checkpointer_->Pump(
        tier_, &log_, version, short_of_room, [](ImageIo::Done done) { return done; },
        [this](const absl::Status&) { ++written_; });
  }
  // The oldest write under way is over.
  void FinishOne() {
    const auto [image, done] = log_.kept.front();
    log_.kept.erase(log_.kept.begin());
    done(absl::OkStatus());
    checkpointer_->OnWritten();
  }
  void FinishAll(uint64_t version) {
    while (!log_.kept.empty()) {
      EXPECT_LE(log_.kept.size(), 2u) << "more than two writes under way";
      FinishOne();
      Pump(version);
    }
  }

  bool AcquiredNow(uint32_t extent) {
    const auto acquired = std::make_shared<bool>(false);
    tier_->Acquire(extent, [acquired](const absl::Status&) { *acquired = true; });
    return *acquired;
  }

  JobPlan plan_;
  Layout layout_ = testing::LayoutOf(testing::MakePlan({1}, 1, {0}));
  std::vector<uint32_t> owned_;
  std::shared_ptr<DramTier> tier_;
  std::unique_ptr<ExtentStore> store_;
  std::optional<Checkpointer> checkpointer_;
  Log log_;
  int written_ = 0;
};

TEST_F(CheckpointerTest, NothingIsWrittenBeforeAnythingIsDue) {
  Make(5, 2, {1, 1, 1, 1, 1});
  Pump(7);
  EXPECT_TRUE(log_.images.empty());
  EXPECT_FALSE(checkpointer_->initial_pending());
}

struct Shape {
  uint32_t extents;
  uint32_t rounds;
};

void PrintTo(const Shape& shape, std::ostream* os) {
  *os << shape.extents << " extents in " << shape.rounds << " rounds";
}

class Rolling : public CheckpointerTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(Rolling, EveryExtentIsWrittenOnceInThatManyRoundsAndTheOldestFirst) {
  const auto [extents, rounds] = GetParam();
  std::vector<uint64_t> versions(extents, 1);
  Make(extents, rounds, versions);
  size_t seen = 0;
  for (uint64_t round = 2; round < 2 + 4 * rounds; ++round) {
    checkpointer_->OnRound();
    Pump(round);
    FinishAll(round);
    for (; seen < log_.images.size(); ++seen) {
      const Image& image = log_.images[seen];
      const auto index = static_cast<size_t>(std::find(owned_.begin(), owned_.end(), image.extent) -
                                             owned_.begin());
      ASSERT_LT(index, owned_.size());
      EXPECT_EQ(image.version, round) << "an image is of the present state";
      EXPECT_LT(versions[index], round) << "extent " << image.extent << " twice in a round";
      EXPECT_EQ(versions[index], *std::min_element(versions.begin(), versions.end()))
          << "extent " << image.extent << " before an older one";
      versions[index] = round;
    }
    const uint64_t oldest = *std::min_element(versions.begin(), versions.end());
    EXPECT_LT(round - oldest, rounds);
  }
  // Not much more often than that either: whole shares only.
  EXPECT_LE(log_.images.size(), 4u * rounds * ((extents + rounds - 1) / rounds));
  EXPECT_EQ(written_, static_cast<int>(log_.images.size()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rolling,
                         ::testing::Values(Shape{1, 1}, Shape{1, 4}, Shape{7, 1}, Shape{7, 2},
                                           Shape{7, 4}, Shape{7, 7}, Shape{7, 20}, Shape{16, 4},
                                           Shape{33, 5}));

TEST_F(CheckpointerTest, AtMostTwoWritesAreUnderWay) {
  Make(9, 1, std::vector<uint64_t>(9, 1));
  checkpointer_->OnRound();
  Pump(2);
  Pump(2);
  EXPECT_EQ(log_.images.size(), 2u);
  FinishOne();
  Pump(2);
  EXPECT_EQ(log_.images.size(), 3u);
  FinishAll(2);
  EXPECT_EQ(log_.images.size(), 9u);
}

TEST_F(CheckpointerTest, AMissedWriteOfARoundIsMadeUpForOnce) {
  Make(6, 3, std::vector<uint64_t>(6, 1));
  for (uint64_t round = 2; round < 50; ++round) checkpointer_->OnRound();
  Pump(50);
  FinishAll(50);
  EXPECT_EQ(log_.images.size(), 6u);
  Pump(51);
  EXPECT_EQ(log_.images.size(), 6u) << "nothing is due any more";
}

TEST_F(CheckpointerTest, AVersionIsNeverWrittenTwice) {
  Make(3, 1, std::vector<uint64_t>(3, 1));
  for (int i = 0; i < 5; ++i) {
    checkpointer_->OnRound();
    Pump(2, /*short_of_room=*/true);
    FinishAll(2);
  }
  EXPECT_EQ(log_.images.size(), 3u);
}

TEST_F(CheckpointerTest, AfterARestartTheExtentWithTheOldestSlotComesFirst) {
  Make(4, 4, {8, 5, 9, 6});
  std::vector<uint32_t> order;
  for (uint64_t round = 10; round < 14; ++round) {
    checkpointer_->OnRound();
    Pump(round);
    FinishAll(round);
  }
  for (const Image& image : log_.images) order.push_back(image.extent);
  EXPECT_EQ(order, (std::vector<uint32_t>{owned_[1], owned_[3], owned_[0], owned_[2]}));
}

TEST_F(CheckpointerTest, InitialWeightsComeBeforeWhatIsDueAndAreWaitedFor) {
  Make(5, 1, {0, 0, 0, 0, 0});
  checkpointer_->OnRound();
  for (const uint32_t extent : {3u, 0u, 4u}) checkpointer_->AddInitial(extent);
  EXPECT_TRUE(checkpointer_->initial_pending());
  Pump(1);
  Pump(1);
  ASSERT_EQ(log_.images.size(), 2u);
  EXPECT_EQ(log_.images[0].extent, 3u);
  EXPECT_EQ(log_.images[1].extent, 0u);
  FinishOne();
  Pump(1);
  ASSERT_EQ(log_.images.size(), 3u);
  EXPECT_EQ(log_.images[2].extent, 4u);
  FinishOne();
  EXPECT_TRUE(checkpointer_->initial_pending()) << "the last one is being written";
  FinishOne();
  EXPECT_FALSE(checkpointer_->initial_pending());
  Pump(1);
  FinishAll(1);
  EXPECT_EQ(log_.images.size(), 5u) << "then what is due, of the others only";
}

TEST_F(CheckpointerTest, ShortOfRoomLiftsTheQuotaOneAtATimeAndTheOldestFirst) {
  Make(6, 6, {4, 3, 4, 4, 2, 4});
  Pump(5, /*short_of_room=*/true);
  ASSERT_EQ(log_.images.size(), 1u) << "one, then look again";
  EXPECT_EQ(log_.images[0].extent, owned_[4]);
  FinishOne();
  Pump(5, /*short_of_room=*/true);
  ASSERT_EQ(log_.images.size(), 2u);
  EXPECT_EQ(log_.images[1].extent, owned_[1]);
  FinishOne();
  Pump(5, /*short_of_room=*/false);
  EXPECT_EQ(log_.images.size(), 2u) << "there is room again";
}

// Their last tiles have another form in images, so they are copied.
TEST_F(CheckpointerTest, ABufferThatIsStillHeldIsNotWrittenInto) {
  JobPlan plan = testing::MakePlan({}, 1, {0});
  for (uint32_t group = 0; group < 9; ++group) {
    plan.spec.tensors.push_back({"t" + std::to_string(group), {77}, DType::kF32, group, {}});
    plan.owner.push_back(0);
  }
  plan.spec.group_count = 9;
  MakeOf(plan, 9, 1, std::vector<uint64_t>(9, 1));
  std::vector<ExtentImage> holders;
  for (uint64_t round = 2; round < 20; ++round) {
    checkpointer_->OnRound();
    Pump(round);
    for (const auto& [image, done] : log_.kept) {
      EXPECT_NE(image.data, tier_->State(image.extent));
      EXPECT_TRUE(AcquiredNow(image.extent)) << "it has been copied";
      for (const ExtentImage& held : holders) EXPECT_NE(held.data, image.data);
    }
    while (!log_.kept.empty()) {
      holders.push_back(log_.kept.front().first);
      FinishOne();
    }
  }
  EXPECT_FALSE(holders.empty());
  EXPECT_LE(holders.size(), 4u) << "the pool is bounded; what finds no buffer waits";
  const size_t before = log_.images.size();
  holders.clear();
  Pump(20);
  FinishAll(20);
  EXPECT_GT(log_.images.size(), before) << "and continues when it is given back";
}

// The image is read from the pages that a step changes.
TEST_F(CheckpointerTest, AnExtentIsAcquiredWhenItsImageIsWritten) {
  Make(3, 1, std::vector<uint64_t>(3, 1));
  checkpointer_->OnRound();
  Pump(2);
  ASSERT_EQ(log_.kept.size(), 2u);
  std::vector<uint32_t> acquired;
  for (uint32_t e = 0; e < 3; ++e) {
    tier_->Acquire(e, [&acquired, e](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      acquired.push_back(e);
    });
  }
  bool quiet = false;
  tier_->WhenQuiet([&quiet] { quiet = true; });
  EXPECT_EQ(acquired, (std::vector<uint32_t>{0})) << "it is not being written";
  EXPECT_EQ(log_.images[0].extent, 2u);
  EXPECT_EQ(log_.kept[0].first.data, tier_->State(2));
  // The bytes are on the disk, if not yet safe.
  log_.kept[1].first.owner = nullptr;
  EXPECT_EQ(acquired, (std::vector<uint32_t>{0, 1}));
  EXPECT_FALSE(quiet);
  log_.kept[0].first.owner = nullptr;
  EXPECT_EQ(acquired, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_TRUE(quiet);
}

TEST_F(CheckpointerTest, OfAnEndedJobNoWaitingCallIsAnswered) {
  Make(1, 1, {1});
  checkpointer_->OnRound();
  Pump(2);
  tier_->Acquire(0, [](const absl::Status&) { ADD_FAILURE() << "the job has ended"; });
  tier_->DropWaiting();
  log_.kept.clear();
  EXPECT_TRUE(AcquiredNow(0));
}

TEST_F(CheckpointerTest, AnImageHoldsTheStateAsASlotWantsIt) {
  Make(2, 1, {1, 1});
  for (const uint32_t extent : owned_) {
    for (uint32_t t = 0; t < TileCount(layout_, extent); ++t) {
      const TileView tile = store_->Tile(extent, t);
      for (uint32_t i = 0; i < tile.elements; ++i) {
        tile.array[0][i] = static_cast<float>(extent * 1000 + t * 100 + i);
        tile.array[1][i] = -tile.array[0][i];
        tile.array[2][i] = tile.array[0][i] * 2;
      }
    }
  }
  checkpointer_->OnRound();
  Pump(2);
  ASSERT_EQ(log_.kept.size(), 2u);
  for (const auto& [image, done] : log_.kept) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(image.data) % kPageBytes, 0u);
    std::vector<char> expected(3 * 128 * sizeof(float));
    CopyToImage(store_->State(image.extent), layout_.extents()[image.extent].elements,
                StateShapeOf(plan_.spec), expected.data());
    EXPECT_EQ(std::memcmp(image.data, expected.data(), expected.size()), 0);
    const auto* values = static_cast<const float*>(image.data);
    EXPECT_EQ(values[0], static_cast<float>(image.extent * 1000)) << "p of the first tile";
    EXPECT_EQ(values[64], -values[0]) << "m of the first tile";
    EXPECT_EQ(values[128], values[0] * 2) << "v of the first tile";
    EXPECT_EQ(values[192], values[0] + 100) << "p of the second tile";
  }
}

// Tiles of one chunk per array and of several, and a last one whose arrays lie across chunks.
TEST(CopyToImage, BringsTheChecksumsOfItsChunks) {
  JobPlan plan = testing::MakePlan({100'003}, 1, {0});
  plan.spec.tile_elements = 16'384;
  plan.spec.extent_elements = 65'536;
  plan.owner = {0, 0};
  const Layout layout = testing::LayoutOf(plan);
  ExtentStore store(MakeDramTier(StateShapeOf(plan.spec)), &optim::Kernels(simd::Isa::kScalar));
  ASSERT_TRUE(store.Add(layout, {0, 1}).ok());
  for (const uint32_t extent : {0u, 1u}) {
    std::vector<float> expected;
    for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
      const TileView tile = store.Tile(extent, t);
      ASSERT_EQ(tile.arrays, 3u);
      for (float* const array : {tile.array[0], tile.array[1], tile.array[2]}) {
        for (uint32_t i = 0; i < tile.elements; ++i) {
          array[i] = static_cast<float>(expected.size());
          expected.push_back(array[i]);
        }
      }
    }
    const size_t bytes = expected.size() * sizeof(float);
    const ImageShape shape{extent, layout.extents()[extent].elements, 3};
    const Arena image = *Arena::Create(ImageFile::BufferBytes(shape));
    const std::vector<uint32_t> crcs =
        CopyToImage(store.State(extent), shape.elements, StateShapeOf(plan.spec), image.data());
    EXPECT_EQ(std::memcmp(image.data(), expected.data(), bytes), 0);
    std::vector<uint32_t> wanted;
    for (size_t at = 0; at < bytes; at += kImageChunkBytes) {
      wanted.push_back(Crc32c(image.data() + at, std::min<size_t>(kImageChunkBytes, bytes - at)));
    }
    EXPECT_EQ(crcs, wanted);
  }
}

// With amsgrad an extent has four arrays.
TEST_F(CheckpointerTest, ImagesOfFourArraysHaveAllOfThem) {
  constexpr uint32_t kExtents = 4, kElements = 1024;
  JobPlan plan = testing::MakePlan({kExtents * kElements}, 1, {0});
  plan.spec.extent_elements = kElements;
  plan.spec.options = {1, 0};
  MakeOf(plan, kExtents, 1, std::vector<uint64_t>(kExtents, 1));
  for (uint32_t e = 0; e < kExtents; ++e) {
    for (uint32_t t = 0; t < TileCount(layout_, e); ++t) {
      const TileView tile = store_->Tile(e, t);
      ASSERT_EQ(tile.arrays, 4u);
      for (uint32_t a = 0; a < tile.arrays; ++a) {
        std::fill_n(tile.array[a], tile.elements, static_cast<float>(100 * e + 10 * t + a));
      }
    }
  }
  checkpointer_->OnRound();
  for (Pump(2); !log_.kept.empty(); FinishOne(), Pump(2)) {
    ASSERT_EQ(log_.kept.size(), std::min<size_t>(2, kExtents - written_));
    for (const auto& [image, done] : log_.kept) {
      std::vector<char> expected(ImageFile::PayloadBytes({image.extent, kElements, 4}));
      CopyToImage(tier_->State(image.extent), kElements, StateShapeOf(plan_.spec), expected.data());
      EXPECT_EQ(std::memcmp(image.data, expected.data(), expected.size()), 0) << image.extent;
    }
  }
  EXPECT_EQ(log_.images.size(), kExtents);
}

TEST_F(CheckpointerTest, AServerWithoutExtentsHasNothingToWrite) {
  auto made = Checkpointer::Create(StateShapeOf(plan_.spec), {}, 4);
  ASSERT_TRUE(made.ok()) << made.status();
  made->OnRound();
  made->Pump(nullptr, &log_, 2, /*short_of_room=*/true, nullptr, [](const absl::Status&) {});
  EXPECT_TRUE(log_.images.empty());
}

}  // namespace
}  // namespace ballast::server
