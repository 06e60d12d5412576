// Held state: images that a snapshot pins instead of copying them, and the log after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "common/faults/failpoint.h"
#include "tests/server/durability/images/image_testing.h"
#include "tests/server/durability/round_log_testing.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// --- Images --------------------------------------------------------------------------------------

class HeldImages : public ::testing::Test {
 protected:
  HeldImages() {
    images_ = *ImageFile::Create(&disk_, kImagePath, SmallImages(), SmallShapes());
    shape_ = SmallShapes().front();
  }
  absl::Status Write(uint64_t version) {
    const absl::Status written = WriteState(images_.get(), shape_, version);
    return written.ok() ? images_->Sync() : written;
  }
  void ExpectWhole(uint64_t version) {
    const auto state = ReadState(images_.get(), shape_, version);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(*state == Payload(shape_, version));
  }

  MemoryDisk disk_;
  ImageShape shape_;
  std::unique_ptr<ImageFile> images_;
};

TEST_F(HeldImages, AHeldVersionStaysWhateverIsWritten) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(Write(2).ok());
  EXPECT_EQ(*images_->Hold(shape_.extent), 2u);
  EXPECT_EQ(images_->Held(shape_.extent), 2u);
  for (uint64_t version = 3; version < 8; ++version) {
    ASSERT_TRUE(Write(version).ok());
    EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(version, 2u));
    ExpectWhole(2);
    ExpectWhole(version);
  }
}

TEST_F(HeldImages, AImageIsWrittenAgainOnceItWasLetGoAsOftenAsItWasHeld) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_EQ(*images_->Hold(shape_.extent), 1u);
  ASSERT_TRUE(Write(2).ok());
  EXPECT_EQ(*images_->Hold(shape_.extent), 1u) << "the version that is held already";
  images_->LetGo(shape_.extent);
  ASSERT_TRUE(Write(3).ok());
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(3u, 1u));
  images_->LetGo(shape_.extent);
  EXPECT_EQ(images_->Held(shape_.extent), std::nullopt);
  ASSERT_TRUE(Write(4).ok());
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(4u, 3u));
  images_->LetGo(shape_.extent);  // Once more than it was held: nothing.
  EXPECT_EQ(*images_->Hold(shape_.extent), 4u);
}

TEST_F(HeldImages, OnlyFlushedVersionsAreHeld) {
  EXPECT_EQ(images_->Hold(shape_.extent).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteState(images_.get(), shape_, 1).ok());
  EXPECT_EQ(images_->Hold(shape_.extent).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(images_->Sync().ok());
  ASSERT_TRUE(WriteState(images_.get(), shape_, 2).ok());
  EXPECT_EQ(*images_->Hold(shape_.extent), 1u);
  EXPECT_EQ(images_->Hold(99).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HeldImages, ForgottenVersionsAreNoLongerHeld) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(images_->Hold(shape_.extent).ok());
  images_->Forget(shape_.extent);
  EXPECT_EQ(images_->Held(shape_.extent), std::nullopt);
  EXPECT_EQ(images_->Hold(shape_.extent).status().code(), absl::StatusCode::kNotFound);
  images_->LetGo(shape_.extent);
  ASSERT_TRUE(Write(2).ok());
  EXPECT_EQ(*images_->Hold(shape_.extent), 2u);
}

TEST_F(HeldImages, AForgottenVersionThatIsRewrittenIsSafe) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(images_->Hold(shape_.extent).ok());
  images_->Forget(shape_.extent);
  ASSERT_TRUE(Write(2).ok());
  ASSERT_TRUE(WriteState(images_.get(), shape_, 3).ok());
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(3u, 2u)) << "2 is flushed, 3 is not";
  ExpectWhole(2);
}

TEST_F(HeldImages, TheHeldVersionStaysUntilItsRelease) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(images_->Hold(shape_.extent).ok());
  ASSERT_TRUE(Write(2).ok());
  EXPECT_EQ(images_->Flushed(shape_.extent), 1u) << "a write may be over version 2 any time";
  images_->LetGo(shape_.extent);
  EXPECT_EQ(images_->Flushed(shape_.extent), 2u);
}

// The write interrupted by the power loss is over the newer version: the held one is left. The
// written part stays: a disk that undid it would show the held version in either place.
TEST_F(HeldImages, PowerLossInAWriteLeavesTheHeldVersion) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(disk_.SyncDirectory("/").ok());
  ASSERT_TRUE(images_->Hold(shape_.extent).ok());
  ASSERT_TRUE(Write(2).ok());
  disk_.Fail(MemoryDisk::Operation::kWrite, 2, EIO);
  EXPECT_FALSE(Write(3).ok());
  images_.reset();
  disk_.Crash(kKeepAll);
  images_ = *ImageFile::Open(&disk_, kImagePath, SmallImages(), SmallShapes());
  EXPECT_EQ(images_->Held(shape_.extent), std::nullopt) << "a file does not remember";
  ExpectWhole(1);
}

// --- The log after them -------------------------------------------------------------------------

// Waits for the log's thread.
absl::StatusOr<RoundLog::HeldRounds> Rounds(RoundLog* log, uint64_t until) {
  std::promise<absl::StatusOr<RoundLog::HeldRounds>> rounds;
  log->ReadRounds(
      until, [&](const absl::StatusOr<RoundLog::HeldRounds>& found) { rounds.set_value(found); });
  return rounds.get_future().get();
}

class HeldLog : public RoundLogTest {
 protected:
  absl::StatusOr<HeldState> Hold() {
    std::promise<absl::StatusOr<HeldState>> held;
    log_->Hold([&](absl::StatusOr<HeldState> state) { held.set_value(std::move(state)); });
    return held.get_future().get();
  }
  void DoRound(uint64_t round) {
    Round(round);
    ASSERT_TRUE(outcomes_.Wait(static_cast<int>(round)).ok());
  }
  void CheckpointBoth(uint64_t version) {
    for (const uint32_t extent : {0u, 1u}) {
      ASSERT_TRUE(Checkpoint(extent, version, static_cast<char>('a' + version)).ok());
    }
  }
  // The first byte of a held state, all of whose bytes are alike.
  absl::StatusOr<char> ReadImage(uint32_t extent, uint64_t version) {
    const Arena image = *Arena::Create(ImageFile::BufferBytes(options_.shapes[extent]));
    const absl::Status status = log_->ReadHeld(extent, version, image.data());
    if (!status.ok()) return status;
    return image.data()[0];
  }
  absl::StatusOr<std::string> ReadGradient(const LoggedExtent& extent) {
    const Arena to = *Arena::Create(extent.bytes + kPageBytes);
    const absl::Status status = log_->ReadHeld(extent, to.data());
    if (!status.ok()) return status;
    return std::string(to.data(), extent.bytes);
  }
};

TEST_F(HeldLog, AHoldMovesToALaterVersionDuringRounds) {
  CheckpointBoth(1);
  DoRound(1);
  const auto held = Hold();
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_THAT(held->versions, ElementsAre(Pair(0, 1), Pair(1, 1)));
  DoRound(2);
  CheckpointBoth(3);
  DoRound(3);
  const auto rounds = Rounds(log_.get(), 3);
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  ASSERT_EQ(rounds->size(), 2u) << "1 and 2";
  for (const auto& [round, logged] : *rounds) {
    EXPECT_TRUE(logged.prepared.has_value());
    EXPECT_TRUE(logged.decision.has_value());
    for (const auto& [extent, gradient] : logged.extents) {
      const auto bytes = ReadGradient(gradient);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(*bytes, Bytes(round * 10 + extent, kElements * 4));
    }
  }
  for (const uint32_t extent : {0u, 1u}) {
    const auto state = ReadImage(extent, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(*state, 'b');
  }
  log_->LetAllGo();
}

TEST_F(HeldLog, OnlyOneSnapshotHoldsUntilItLetsAllGo) {
  EXPECT_EQ(Hold().status().code(), absl::StatusCode::kNotFound) << "no version yet";
  CheckpointBoth(1);
  ASSERT_TRUE(Hold().ok());
  const absl::Status second = Hold().status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()), HasSubstr("another snapshot"));
  for (const uint32_t extent : {0u, 1u}) log_->LetGo(extent);
  EXPECT_FALSE(Hold().ok()) << "it has not ended";
  log_->LetAllGo();
  EXPECT_TRUE(Hold().ok());
}

// Rounds never wait: the snapshot does without, and is told.
TEST_F(HeldLog, GivesWayToALogThatNeedsTheRoom) {
  CheckpointBoth(1);
  ASSERT_TRUE(Hold().ok());
  uint64_t round = 1;
  for (; ReadImage(0, 1).ok(); ++round) {
    ASSERT_LT(round, 100u) << "it never gives way";
    DoRound(round);
    CheckpointBoth(round + 1);
  }
  EXPECT_GE(round, options_.checkpoint_rounds + 2) << "what the log has room for";
  const absl::Status image = ReadImage(1, 1).status();
  EXPECT_EQ(image.code(), absl::StatusCode::kAborted) << image;
  EXPECT_THAT(std::string(image.message()), HasSubstr("storage.checkpoint_rounds"));
  EXPECT_EQ(Rounds(log_.get(), 2).status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(log_->short_of_room());
  {
    MutexLock lock(&mu_);
    EXPECT_EQ(short_of_room_, 0) << "no round has waited";
  }
  EXPECT_EQ(Hold().status().code(), absl::StatusCode::kAlreadyExists) << "it has not ended";
  log_->LetAllGo();
  DoRound(round);
  const auto again = Hold();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(ReadImage(0, again->versions.at(0)).ok());
}

// Records that wait for room are not in the log yet. The snapshot is refused for that reason.
TEST_F(HeldLog, TellsThatRoundsWaitForRoom) {
  CheckpointBoth(1);
  const uint64_t waits = Fill();
  ASSERT_TRUE(Hold().ok());
  EXPECT_TRUE(Rounds(log_.get(), 2).ok()) << "all of these are in the log";
  const absl::Status rounds = Rounds(log_.get(), waits + 1).status();
  EXPECT_EQ(rounds.code(), absl::StatusCode::kAborted) << rounds;
  EXPECT_THAT(std::string(rounds.message()), HasSubstr("storage.checkpoint_rounds"));
  log_->LetAllGo();
}

// While a held extent's other image is written, a crash leaves the held one and the log since.
TEST_F(HeldLog, ACrashWhileHeldFindsEveryRoundSinceTheHeldVersions) {
  CheckpointBoth(1);
  ASSERT_TRUE(Hold().ok());
  DoRound(1);
  CheckpointBoth(2);
  DoRound(2);
  DoRound(3);
  log_.reset();
  disk_.Crash(kLoseAll);
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT((*opened)->images()->Versions(0), ElementsAre(2u, 1u));
  for (uint64_t round = 1; round <= 3; ++round) {
    EXPECT_EQ((*opened)->log()->rounds().count(round), 1u) << round;
  }
}

TEST_F(HeldLog, AReleasedHoldMakesRoom) {
  CheckpointBoth(1);
  ASSERT_TRUE(Hold().ok());
  for (uint64_t round = 1; round < 20; ++round) {
    if (round == 2) log_->LetGo(0);
    if (round == 3) log_->LetGo(1);
    DoRound(round);
    CheckpointBoth(round + 1);
  }
  MutexLock lock(&mu_);
  EXPECT_EQ(short_of_room_, 0);
}

// A server that owns no extent has nothing to hold but the end of the last round.
TEST_F(HeldLog, WithoutExtentsTheLastRoundIsKeptUntilItIsRead) {
  const StorageOptions none = OptionsOf({});
  auto storage = JobStorage::Create(&disk_, "/jobs/2", none);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto log =
      JobStorage::MakeRoundLog(*std::move(storage), /*durable_round=*/0, ThreadSource::Get());
  const auto round = [&](uint64_t number) {
    log->Prepare(MakePrepared(number, {}), outcomes_.Of(static_cast<int>(number)));
    log->AppendDecision(MakeDecision(number));
    ASSERT_TRUE(outcomes_.Wait(static_cast<int>(number)).ok());
  };
  for (uint64_t number = 1; number <= 5; ++number) round(number);
  std::promise<absl::Status> held;
  log->Hold([&](const absl::StatusOr<HeldState>& state) { held.set_value(state.status()); });
  ASSERT_TRUE(held.get_future().get().ok());
  for (uint64_t number = 6; number <= 9; ++number) round(number);
  const auto rounds = Rounds(log.get(), 6);
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  EXPECT_EQ(rounds->count(5), 1u);
  log->LetAllGo();
}

TEST(NullRoundLogTest, HoldsNothing) {
  NullRoundLog log;
  log.Hold([](const absl::StatusOr<HeldState>& held) {
    EXPECT_EQ(held.status().code(), absl::StatusCode::kUnimplemented);
  });
}

}  // namespace
}  // namespace ballast::server
