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
    store_ = std::make_unique<ExtentStore>(MakeDramTier(StateShapeOf(plan_.spec)),
                                           &optim::Kernels(simd::Isa::kScalar));
    ASSERT_TRUE(store_->Add(layout_, owned_).ok());
    std::vector<PlacedExtent> placed = PlacedOf(layout_, owned_, {}, 0);
    for (size_t i = 0; i < placed.size(); ++i) placed[i].stored = versions[i];
    auto made = Checkpointer::Create(StateShapeOf(plan_.spec), std::move(placed), rounds);
    ASSERT_TRUE(made.ok()) << made.status();
    checkpointer_.emplace(*std::move(made));
  }
  void Pump(uint64_t version, bool short_of_room = false) {
    checkpointer_->Pump(store_->tier(), &log_, version, short_of_room,
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
      EXPECT_LE(log_.kept.size(), 2u) << "more than two copies under way";
      FinishOne();
      Pump(version);
    }
  }

  JobPlan plan_;
  Layout layout_ = testing::LayoutOf(testing::MakePlan({1}, 1, {0}));
  std::vector<uint32_t> owned_;
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

TEST_F(CheckpointerTest, AtMostTwoCopiesAreUnderWay) {
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

TEST_F(CheckpointerTest, ABufferThatIsStillHeldIsNotWrittenInto) {
  Make(9, 1, std::vector<uint64_t>(9, 1));
  std::vector<ExtentImage> holders;
  for (uint64_t round = 2; round < 20; ++round) {
    checkpointer_->OnRound();
    Pump(round);
    for (const auto& [image, done] : log_.kept) {
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

// With amsgrad an extent has four arrays. Two copies are under way at a time.
TEST_F(CheckpointerTest, CopiesOfFourArraysDoNotOverlap) {
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
      const uint64_t bytes = ImageFile::PayloadBytes({image.extent, kElements, 4});
      EXPECT_EQ(Crc32c(image.data, bytes), image.chunk_crcs.at(0)) << "extent " << image.extent;
    }
  }
  EXPECT_EQ(log_.images.size(), kExtents);
}

TEST_F(CheckpointerTest, AServerWithoutExtentsHasNothingToWrite) {
  auto made = Checkpointer::Create(StateShapeOf(plan_.spec), {}, 4);
  ASSERT_TRUE(made.ok()) << made.status();
  made->OnRound();
  made->Pump(nullptr, &log_, 2, /*short_of_room=*/true, [](const absl::Status&) {});
  EXPECT_TRUE(log_.images.empty());
}

}  // namespace
}  // namespace ballast::server
