// Power loss and ended processes at every point of an image file's life: of each extent the newest
// flushed version is whole, or a newer one; no version ever has other bytes than were written for
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/server/durability/images/image_testing.h"

namespace ballast::server {
namespace {

using Operation = MemoryDisk::Operation;

class CrashingImages {
 public:
  explicit CrashingImages(uint64_t seed) : random_(seed) {
    Adopt(ImageFile::Create(&disk_, kImagePath, SmallImages(), shapes_));
  }

  // Writes a newer version of some extent or flushes. False when the file takes nothing more.
  bool Act() {
    if (random_() % 12 == 0) {
      disk_.Fail(random_() % 2 == 0 ? Operation::kSync : Operation::kWrite, 1 + random_() % 2, EIO);
    }
    const ImageShape& shape = shapes_[random_() % shapes_.size()];
    if (written_.count(shape.extent) != 0 || random_() % 4 == 0) {
      if (!images_->Sync().ok()) return false;
      for (const auto& [extent, version] : written_) flushed_[extent] = version;
      written_.clear();
      return true;
    }
    const uint64_t version = newest_[shape.extent] + 1 + random_() % 3;
    newest_[shape.extent] = version;
    attempt_[{shape.extent, version}] = life_;
    if (!WriteState(images_.get(), shape, version, life_).ok()) return false;
    written_[shape.extent] = version;
    return true;
  }

  // Images found after a restart count as flushed, also when only the process had ended.
  void Restart() {
    if (random_() % 3 != 0) disk_.Crash([this] { return random_(); });
    ++life_;
    written_.clear();
    Adopt(ImageFile::Open(&disk_, kImagePath, SmallImages(), shapes_));
    if (images_ == nullptr) return;
    for (const ImageShape& shape : shapes_) {
      const uint64_t found = NewestWhole(shape);
      ASSERT_GE(found, flushed_[shape.extent]) << "extent " << shape.extent;
      // From here on it is flushed, and versions continue after it.
      flushed_[shape.extent] = found;
      newest_[shape.extent] = found;
    }
  }

  bool working() const { return images_ != nullptr; }
  size_t torn() const { return torn_; }

 private:
  void Adopt(absl::StatusOr<std::unique_ptr<ImageFile>> images) {
    // Faults that were still pending may strike; then once more.
    while (!images.ok() && absl::StrContains(images.status().message(), "Input/output error")) {
      images = ImageFile::Open(&disk_, kImagePath, SmallImages(), shapes_);
    }
    ASSERT_TRUE(images.ok()) << images.status();
    images_ = *std::move(images);
  }

  // As recovery looks for it: newest first, passing over damaged images. 0 for none.
  uint64_t NewestWhole(const ImageShape& shape) {
    for (const uint64_t version : images_->Versions(shape.extent)) {
      const auto state = ReadState(images_.get(), shape, version);
      if (state.ok()) {
        EXPECT_TRUE(*state == Payload(shape, version, attempt_[{shape.extent, version}]))
            << "extent " << shape.extent << " version " << version;
        return version;
      }
      EXPECT_TRUE(absl::IsDataLoss(state.status())) << state.status();
      ++torn_;
    }
    return 0;
  }

  std::mt19937_64 random_;
  MemoryDisk disk_;
  const std::vector<ImageShape> shapes_ = SmallShapes();
  std::unique_ptr<ImageFile> images_;

  std::map<uint32_t, uint64_t> newest_;   // version last tried
  std::map<uint32_t, uint64_t> written_;  // since the last flush
  std::map<uint32_t, uint64_t> flushed_;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> attempt_;  // that wrote a version last
  uint64_t life_ = 0;
  size_t torn_ = 0;
};

// After a failed flush the kernel may give back bytes that the disk does not have, and no later
// flush saves them; whoever trims the log because of them would lose the state with the power.
TEST(ImageCrash, OpeningRewritesTheBytesOfAFailedFlush) {
  MemoryDisk disk;
  const std::vector<ImageShape> shapes = SmallShapes();
  auto images = ImageFile::Create(&disk, kImagePath, SmallImages(), shapes);
  ASSERT_TRUE(images.ok()) << images.status();
  for (const uint64_t version : {1, 2}) {
    for (const ImageShape& shape : shapes) {
      ASSERT_TRUE(WriteState(images->get(), shape, version).ok());
    }
    if (version == 2) disk.Fail(Operation::kSync, 1, EIO);
    EXPECT_EQ((*images)->Sync().ok(), version == 1);
  }
  images = ImageFile::Open(&disk, kImagePath, SmallImages(), shapes);
  ASSERT_TRUE(images.ok()) << images.status();
  for (const ImageShape& shape : shapes) {
    ASSERT_THAT((*images)->Versions(shape.extent), ::testing::ElementsAre(2, 1));
  }
  disk.Crash([] { return 1; });
  images = ImageFile::Open(&disk, kImagePath, SmallImages(), shapes);
  ASSERT_TRUE(images.ok()) << images.status();
  for (const ImageShape& shape : shapes) {
    const auto state = ReadState(images->get(), shape, 2);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(*state == Payload(shape, 2), true) << shape.extent;
  }
}

TEST(ImageCrash, TheNewestFlushedVersionIsAlwaysThere) {
  size_t torn = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    CrashingImages images(seed);
    std::mt19937_64 random(seed * 17);
    for (int life = 0; life < 6 && images.working(); ++life) {
      for (uint64_t acts = random() % 20; acts > 0 && images.Act();) --acts;
      images.Restart();
      if (::testing::Test::HasFailure()) return;
    }
    torn += images.torn();
  }
  EXPECT_GT(torn, 100u);  // The test is about something.
}

}  // namespace
}  // namespace ballast::server
