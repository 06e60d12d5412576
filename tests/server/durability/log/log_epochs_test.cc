// A round that is begun again in one epoch after the other: the log keeps everything the present
// epoch and a restart need, gives the rest back, and loses nothing at any moment of a change.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {
namespace {

constexpr uint32_t kExtents = 3;
constexpr size_t kExtentBytes = 5000;  // two pages, so three with the header

// A server whose slots are always new: it needs the log for the open round and for the vote and the
// decision of the one before. Its epoch counts as durable as soon as it is saved.
class RepeatingServer {
 public:
  explicit RepeatingServer(uint64_t seed) : random_(seed), secrets_(seed) {
    EXPECT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    EXPECT_TRUE(disk_.SyncDirectory(".").ok());
    secret_ = DrawSecret(&secrets_);
    Take(GradientLog::Create(&disk_, kLogDirectory, Options()));
  }

  // Logs up to `steps` steps of the open round: extents, then the vote, then the decision.
  void Advance(uint64_t steps) {
    while (steps-- > 0) {
      const LoggedRound logged = Open();
      if (logged.prepared.has_value()) {
        ASSERT_TRUE(log_->AppendDecision(MakeDecision(round_, epoch_)).ok());
        decided_in_[round_++] = epoch_;
        continue;
      }
      const uint32_t next = static_cast<uint32_t>(logged.extents.size());
      if (next < kExtents) {
        const TestExtent extent = MakeExtent(round_, next, kExtentBytes, epoch_);
        const absl::Status status =
            log_->AppendExtent({.at = extent.at, .data = extent.data.data()});
        ASSERT_TRUE(status.ok()) << status;
        continue;
      }
      const absl::Status status = log_->AppendPrepared(MakePrepared(round_, All(), epoch_));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(log_->Sync().ok());
      flushed_round_ = round_;
      prepared_round_ = round_;
      Trim();
    }
  }

  // The first `parts` of the four parts of a change; the power goes off after them.
  void ChangeEpoch(int parts) {
    if (parts-- == 0) return;
    absl::Status status = log_->Repeat(round_ - 1);
    ASSERT_TRUE(status.ok()) << status;
    if (parts-- == 0) return;
    ASSERT_TRUE(log_->Sync().ok());
    flushed_round_ = round_;
    if (parts-- == 0) return;
    start_ = round_;
    ++epoch_;
    if (parts == 0) return;
    log_->BeginEpoch(epoch_, start_);
    prepared_round_ = std::min(prepared_round_, start_ - 1);
    Trim();
  }

  void Restart(const MemoryDisk::Random& random) {
    log_.reset();
    disk_.Crash(random);
    secret_ = DrawSecret(&secrets_);
    Take(GradientLog::Open(&disk_, kLogDirectory, Options()));
    if (log_ == nullptr) return;
    // A decision that no flush covered may be lost; then its vote is found.
    uint64_t open = start_;
    for (const auto& [round, logged] : log_->rounds()) {
      if (logged.decision.has_value()) open = std::max(open, round + 1);
    }
    ASSERT_LE(open, round_);
    ASSERT_GE(open, flushed_round_) << "a round that was over is open again";
    round_ = open;
    prepared_round_ = Open().prepared.has_value() ? round_ : round_ - 1;
    Trim();
    CheckWhatIsNeeded();
  }

  void CheckWhatIsNeeded() {
    if (round_ > 1) {
      const auto last = log_->rounds().find(round_ - 1);
      ASSERT_NE(last, log_->rounds().end());
      const uint32_t epoch = decided_in_.at(round_ - 1);
      ASSERT_TRUE(last->second.prepared.has_value() && last->second.decision.has_value());
      EXPECT_EQ(EncodePrepared(*last->second.prepared),
                EncodePrepared(MakePrepared(round_ - 1, All(), epoch)));
      EXPECT_EQ(EncodeDecision(*last->second.decision),
                EncodeDecision(MakeDecision(round_ - 1, epoch)));
    }
    for (const auto& [number, extent] : Open().extents) {
      EXPECT_EQ(extent.epoch, epoch_);
      const auto data = ReadBack(log_.get(), extent);
      ASSERT_TRUE(data.ok()) << data.status();
      EXPECT_TRUE(*data == MakeExtent(round_, number, kExtentBytes, epoch_).data);
    }
  }

  uint64_t Draw(uint64_t below) { return random_() % below; }
  uint64_t round() const { return round_; }
  uint32_t epoch() const { return epoch_; }
  MemoryDisk::Random Random() {
    return [this] { return random_(); };
  }

 private:
  // Room for rather more than two rounds.
  LogOptions Options() const {
    LogOptions options = SmallLog(/*segment_pages=*/12, /*segments=*/5);
    options.epoch = epoch_;
    options.start_round = start_;
    options.secret = secret_;
    return options;
  }
  LoggedRound Open() const {
    const auto found = log_->rounds().find(round_);
    return found == log_->rounds().end() ? LoggedRound{} : found->second;
  }
  static std::vector<uint32_t> All() {
    std::vector<uint32_t> all;
    for (uint32_t e = 0; e < kExtents; ++e) all.push_back(e);
    return all;
  }
  void Trim() { log_->TrimTo(std::min(round_, std::max(prepared_round_, start_))); }
  void Take(absl::StatusOr<std::unique_ptr<GradientLog>> log) {
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }

  std::mt19937_64 random_;
  std::mt19937_64 secrets_;  // Apart: the acts of a seed do not depend on secrets.
  MemoryDisk disk_;
  std::unique_ptr<GradientLog> log_;
  uint32_t epoch_ = 1;
  uint64_t start_ = 1;
  uint64_t secret_ = 0;
  uint64_t round_ = 1;
  uint64_t prepared_round_ = 0;
  uint64_t flushed_round_ = 1;  // this round's beginning survives
  std::map<uint64_t, uint32_t> decided_in_;
};

TEST(LogEpochs, OneRoundInAnyNumberOfEpochsNeverFillsTheLog) {
  for (const uint64_t first : {1, 2, 6}) {  // the round that never ends
    RepeatingServer server(first);
    server.Advance((first - 1) * (kExtents + 2));
    ASSERT_EQ(server.round(), first);
    for (int attempt = 0; attempt < 200; ++attempt) {
      SCOPED_TRACE(absl::StrCat("round ", first, " attempt ", attempt));
      server.Advance(attempt % (kExtents + 2));  // Up to the vote.
      server.ChangeEpoch(4);
      if (attempt % 3 == 0) server.Restart(attempt % 2 == 0 ? kLoseAll : kKeepAll);
      server.CheckWhatIsNeeded();
      if (::testing::Test::HasFailure()) return;
    }
    server.Advance(5 * (kExtents + 2));  // And it continues.
    EXPECT_EQ(server.round(), first + 5);
    server.CheckWhatIsNeeded();
  }
}

TEST(LogEpochs, PowerLossAtAnyMomentOfAChangeLosesNothing) {
  uint64_t rounds = 0, epochs = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RepeatingServer server(seed);
    for (int act = 0; act < 60; ++act) {
      server.Advance(server.Draw(7));
      const int parts = static_cast<int>(server.Draw(8));
      server.ChangeEpoch(std::min(parts, 4));
      if (parts < 4 || server.Draw(4) == 0) server.Restart(server.Random());
      if (::testing::Test::HasFailure()) return;
    }
    rounds += server.round();
    epochs += server.epoch();
  }
  EXPECT_GT(rounds, 3000u);
  EXPECT_GT(epochs, 5000u);
}

TEST(LogEpochs, DecidedRecordsOfAnOlderEpochAreNotDead) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
  auto log = GradientLog::Create(&disk, kLogDirectory, SmallLog());
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->AppendPrepared(MakePrepared(1, {})).ok());
  ASSERT_TRUE((*log)->AppendDecision(MakeDecision(1)).ok());
  EXPECT_EQ((*log)->Repeat(2).code(), absl::StatusCode::kInternal) << "it is not over";
  (*log)->BeginEpoch(2, 1);
  EXPECT_TRUE((*log)->rounds().at(1).prepared.has_value());
  EXPECT_TRUE((*log)->rounds().at(1).decision.has_value());
}

}  // namespace
}  // namespace ballast::server
