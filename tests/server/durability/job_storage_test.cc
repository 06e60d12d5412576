// JobStorage and its RoundLog: the geometry of a job's disk, and the effect of a full or broken
// disk on rounds and checkpoints.
#include "server/durability/job_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <thread>

#include "common/base/reason.h"
#include "tests/server/durability/log/log_testing.h"
#include "tests/server/durability/round_log_testing.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

uint64_t UsedBytes(MemoryDisk* disk, uint64_t capacity) { return capacity - *disk->FreeBytes("/"); }

// --- Geometry -----------------------------------------------------------------------------------

struct GeometryCase {
  std::vector<uint32_t> elements;
  uint32_t checkpoint_rounds;
  uint32_t tensors = 1;
};

void PrintTo(const GeometryCase& geometry, std::ostream* os) {
  const uint64_t sum = std::accumulate(geometry.elements.begin(), geometry.elements.end(), 0ul);
  *os << geometry.elements.size() << " extents of " << sum << " elements and " << geometry.tensors
      << " tensors in " << geometry.checkpoint_rounds << " rounds";
}

StorageOptions CaseOptions(const GeometryCase& one) {
  StorageOptions options = OptionsOf(one.elements, one.checkpoint_rounds);
  options.record_bytes = 1024 + 9 * uint64_t{one.tensors} + 16 * one.elements.size();
  return options;
}

std::vector<GeometryCase> GeometryCases() {
  std::vector<GeometryCase> cases = {{{}, 4}, {{1}, 1}, {{1}, 9}, {{5}, 3, 1'000'000}};
  std::mt19937 random(7);
  for (int i = 0; i < 24; ++i) {
    GeometryCase one{.checkpoint_rounds = static_cast<uint32_t>(1 + random() % 6)};
    one.tensors = 1u << random() % 20;
    const uint32_t extents = 1 + random() % 30;
    // From many that fill no page to few that are larger than the smallest segment.
    const uint32_t elements_max = 1u << (4 + random() % 15);
    for (uint32_t e = 0; e < extents && e * elements_max < (4u << 20); ++e) {
      one.elements.push_back(1 + random() % elements_max);
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

class Geometry : public ::testing::TestWithParam<GeometryCase> {};

// The promise rounds rely on: the log takes checkpoint_rounds and two more without any trimming.
TEST_P(Geometry, TheLogTakesTheRoundsItIsMadeFor) {
  const StorageOptions options = CaseOptions(GetParam());
  MemoryDisk disk(uint64_t{4} << 30);
  auto storage = JobStorage::Create(&disk, kDirectory, options);
  ASSERT_TRUE(storage.ok()) << storage.status();
  GradientLog* const log = (*storage)->log();
  std::vector<uint32_t> extents;
  for (const ImageShape& shape : options.shapes) extents.push_back(shape.extent);
  std::mt19937 random(1);
  for (uint64_t round = 1; round <= options.checkpoint_rounds + 2; ++round) {
    std::shuffle(extents.begin(), extents.end(), random);  // In the order they are reduced.
    for (const uint32_t extent : extents) {
      TestExtent record = MakeExtent(round, extent, options.gradient_bytes[extent]);
      const absl::Status status = log->AppendExtent({.at = record.at, .data = record.data.data()});
      ASSERT_TRUE(status.ok()) << "round " << round << ": " << status;
    }
    PreparedRecord prepared = MakePrepared(round, extents);
    prepared.tensor_step.assign(GetParam().tensors, round);
    prepared.present.assign(GetParam().tensors, true);
    ASSERT_LE(EncodePrepared(prepared).size() + EncodeDecision(MakeDecision(round)).size(),
              options.record_bytes);
    absl::Status status = log->AppendPrepared(prepared);
    if (status.ok()) status = log->Sync();
    if (status.ok()) status = log->AppendDecision(MakeDecision(round));
    ASSERT_TRUE(status.ok()) << "round " << round << ": " << status;
  }
}

TEST_P(Geometry, DiskBytesAreWhatCreateTakes) {
  const StorageOptions options = CaseOptions(GetParam());
  const uint64_t needed = JobStorage::DiskBytes(options);
  MemoryDisk disk(needed);
  const auto storage = JobStorage::Create(&disk, kDirectory, options);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ(UsedBytes(&disk, needed), needed);

  MemoryDisk small(needed - 1);
  const absl::Status refused = JobStorage::Create(&small, kDirectory, options).status();
  EXPECT_EQ(ReasonOf(refused), Reason::kOverBudget) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(needed) + " bytes"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(needed - 1) + " are free"));
  EXPECT_TRUE(small.Paths().empty()) << "refused before anything is written";
}

INSTANTIATE_TEST_SUITE_P(Shapes, Geometry, ::testing::ValuesIn(GeometryCases()));

TEST(JobStorageTest, ReopensWithTheSameOptionsOnly) {
  MemoryDisk disk;
  const StorageOptions options = OptionsOf({100, 200});
  ASSERT_TRUE(JobStorage::Create(&disk, kDirectory, options).ok());
  EXPECT_TRUE(JobStorage::Open(&disk, kDirectory, options).ok());
  StorageOptions other = options;
  other.images.job = 78;
  EXPECT_EQ(JobStorage::Open(&disk, kDirectory, other).status().code(),
            absl::StatusCode::kDataLoss);
  other = options;
  other.images.server = 3;
  EXPECT_EQ(JobStorage::Open(&disk, kDirectory, other).status().code(),
            absl::StatusCode::kDataLoss);
}

// --- The round log ------------------------------------------------------------------------------

TEST_F(RoundLogTest, APreparedRoundIsDurableAndSurvivesPowerLoss) {
  EXPECT_EQ(log_->durable_round(), 0u);
  EXPECT_TRUE(log_->keeps_images());
  Round(1);
  ASSERT_TRUE(outcomes_.Wait(1).ok());
  EXPECT_EQ(log_->durable_round(), 1u);
  log_.reset();
  disk_.Crash(kLoseAll);
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto& rounds = (*opened)->log()->rounds();
  ASSERT_EQ(rounds.count(1), 1u);
  EXPECT_TRUE(rounds.at(1).prepared.has_value());
  EXPECT_EQ(rounds.at(1).extents.size(), 2u);
}

// Another trainer may have to upload them when the first one's are on disk already. Of the two only
// the later may ever be read again.
TEST_F(RoundLogTest, InitialWeightsThatAreSentAgainReplaceThoseInTheImages) {
  ASSERT_TRUE(Checkpoint(0, 1, 'a', /*initial=*/true).ok());
  const absl::Status again = Checkpoint(0, 1, 'b', /*initial=*/true);
  ASSERT_TRUE(again.ok()) << again;
  ASSERT_TRUE(Checkpoint(1, 1, 'a').ok());
  EXPECT_FALSE(Checkpoint(1, 1, 'b').ok()) << "no other image is of a version that is there";
  log_.reset();
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ImageFile* const images = (*opened)->images();
  ASSERT_EQ(images->Versions(0), std::vector<uint64_t>{1});
  const Arena image = *Arena::Create(ImageFile::BufferBytes(options_.shapes[0]));
  ASSERT_TRUE(images->Read(0, 1, image.data()).ok());
  const auto is_later = [](char c) { return c == 'b'; };
  const uint64_t bytes = ImageFile::PayloadBytes(options_.shapes[0]);
  EXPECT_TRUE(std::all_of(image.data(), image.data() + bytes, is_later));
}

TEST_F(RoundLogTest, ADecisionSurvivesAFlush) {
  Round(1);
  log_->EndEpoch(1, outcomes_.Of(50));
  ASSERT_TRUE(outcomes_.Wait(50).ok());
  log_.reset();
  disk_.Crash(kLoseAll);
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE((*opened)->log()->rounds().at(1).decision.has_value());
}

TEST_F(RoundLogTest, ALogThatIsClosedStillWritesADecisionThatWaits) {
  for (const uint32_t extent : {0u, 1u}) Append(1, extent);
  log_->Prepare(MakePrepared(1, {0, 1}), outcomes_.Of(1));
  ASSERT_TRUE(outcomes_.Wait(1).ok());
  // The log's thread is busy until the log is being closed.
  std::promise<void> busy, closing;
  log_->Hold([&](const absl::StatusOr<HeldState>&) {
    busy.set_value();
    closing.get_future().get();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  busy.get_future().get();
  log_->AppendDecision(MakeDecision(1));
  Append(2, 0);
  closing.set_value();
  log_.reset();
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto& rounds = (*opened)->log()->rounds();
  EXPECT_TRUE(rounds.at(1).decision.has_value());
  EXPECT_EQ(rounds.count(2), 0u);
}

TEST_F(RoundLogTest, AFullLogIsShortOfRoomOnceAndGoesOnAfterNewerImages) {
  const uint64_t waiting = Fill();
  EXPECT_GE(waiting, options_.checkpoint_rounds + 3) << "made for that many and two more";
  EXPECT_TRUE(log_->short_of_room());
  EXPECT_EQ(log_->durable_round(), waiting - 1);
  // One extent's image frees nothing: the other still needs the old rounds.
  ASSERT_TRUE(Checkpoint(0, waiting).ok());
  EXPECT_TRUE(log_->short_of_room());
  ASSERT_TRUE(Checkpoint(1, waiting).ok());
  ASSERT_TRUE(outcomes_.Wait(static_cast<int>(waiting)).ok());
  log_->EndEpoch(1, outcomes_.Of(50));  // After the decision.
  ASSERT_TRUE(outcomes_.Wait(50).ok());
  EXPECT_FALSE(log_->short_of_room());
  EXPECT_EQ(log_->durable_round(), waiting);
  {
    MutexLock lock(&mu_);
    EXPECT_EQ(short_of_room_, 1);
  }
  // What waited was written in order and whole.
  log_.reset();
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const LoggedRound& round = (*opened)->log()->rounds().at(waiting);
  ASSERT_EQ(round.extents.size(), 2u);
  for (const uint32_t extent : {0u, 1u}) {
    const auto bytes = ReadBack((*opened)->log(), round.extents.at(extent));
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, Bytes(waiting * 10 + extent, kElements * 4));
  }
}

TEST_F(RoundLogTest, EveryShortageIsTold) {
  uint64_t waiting = Fill();
  for (int shortage = 2; shortage < 5; ++shortage) {
    for (const uint32_t extent : {0u, 1u}) ASSERT_TRUE(Checkpoint(extent, waiting).ok());
    ASSERT_TRUE(outcomes_.Wait(static_cast<int>(waiting)).ok());
    for (;;) {
      Round(++waiting);
      const int call = static_cast<int>(waiting);
      MutexLock lock(&mu_);
      while (short_of_room_ < shortage && !outcomes_.Has(call)) {
        changed_.WaitFor(&mu_, std::chrono::milliseconds(1));
      }
      if (!outcomes_.Has(call)) break;
    }
  }
  MutexLock lock(&mu_);
  EXPECT_EQ(short_of_room_, 4);
}

TEST_F(RoundLogTest, ALogThatIsShortOfRoomCanBeClosed) {
  Fill();
  log_.reset();
  EXPECT_TRUE(JobStorage::Open(&disk_, kDirectory, options_).ok());
}

class DiskError : public RoundLogTest,
                  public ::testing::WithParamInterface<std::pair<MemoryDisk::Operation, int>> {};

// Whatever the disk says, nothing is called durable from then on.
TEST_P(DiskError, OnTheLogReachesPrepareAndIsFinal) {
  const auto [operation, error] = GetParam();
  Round(1);
  ASSERT_TRUE(outcomes_.Wait(1).ok());
  log_->EndEpoch(1, outcomes_.Of(50));
  ASSERT_TRUE(outcomes_.Wait(50).ok());
  disk_.Fail(operation, 1, error);
  Round(2);
  const absl::Status status = outcomes_.Wait(2);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), absl::StatusCode::kResourceExhausted) << "no trim makes it good";
  EXPECT_THAT(std::string(status.message()), HasSubstr("log-00")) << status;
  EXPECT_EQ(log_->durable_round(), 1u);
  EXPECT_FALSE(log_->short_of_room());
  // The disk works again; the log does not trust it.
  Round(3);
  EXPECT_FALSE(outcomes_.Wait(3).ok());
  log_->EndEpoch(1, outcomes_.Of(51));
  EXPECT_FALSE(outcomes_.Wait(51).ok());
  EXPECT_EQ(log_->durable_round(), 1u);
}

TEST_P(DiskError, OnTheImagesReachesTheImagesOwner) {
  const auto [operation, error] = GetParam();
  ASSERT_TRUE(Checkpoint(0, 1).ok());
  disk_.Fail(operation, 1, error);
  const absl::Status status = Checkpoint(0, 2);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("slots")) << status;
  EXPECT_FALSE(Checkpoint(0, 3).ok()) << "final";
  EXPECT_FALSE(Checkpoint(1, 3).ok()) << "also for other extents";
  // Everything that was safe before still exists after a restart.
  log_.reset();
  disk_.Crash(kLoseAll);
  const auto opened = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT((*opened)->images()->Versions(0), ::testing::Contains(1u));
}

INSTANTIATE_TEST_SUITE_P(Errors, DiskError,
                         ::testing::Values(std::pair{MemoryDisk::Operation::kWrite, EIO},
                                           std::pair{MemoryDisk::Operation::kWrite, ENOSPC},
                                           std::pair{MemoryDisk::Operation::kSync, EIO},
                                           std::pair{MemoryDisk::Operation::kSync, ENOSPC}),
                         [](const auto& test) {
                           const bool write = test.param.first == MemoryDisk::Operation::kWrite;
                           return std::string(write ? "Write" : "Sync") +
                                  (test.param.second == EIO ? "Fails" : "FindsNoRoom");
                         });

TEST_F(RoundLogTest, ARoundIsNotDurableWhenOneOfItsExtentsIsNotInTheLog) {
  Append(1, 0);  // Extent 1 is missing.
  log_->Prepare(MakePrepared(1, {0, 1}), outcomes_.Of(1));
  EXPECT_FALSE(outcomes_.Wait(1).ok());
  EXPECT_EQ(log_->durable_round(), 0u);
}

TEST_F(RoundLogTest, AppendedMemoryIsHeldUntilItIsWritten) {
  const auto data = std::make_shared<std::string>(Bytes(1, kElements * 4));
  const std::weak_ptr<std::string> watched = data;
  log_->AppendExtent({.at = {.epoch = 1,
                             .round = 1,
                             .extent = 0,
                             .dtype = DType::kF32,
                             .sumsq = 0.5,
                             .bytes = data->size()},
                      .data = data->data(),
                      .owner = data});
  log_->EndEpoch(1, outcomes_.Of(50));
  ASSERT_TRUE(outcomes_.Wait(50).ok());
  EXPECT_LE(watched.use_count(), 2) << "the test's, and at most that of the task being put away";
}

}  // namespace
}  // namespace ballast::server
