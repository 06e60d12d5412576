// Power loss at every point of a gradient log's life, on a disk that keeps, loses or tears whatever
// was not flushed. After each restart: every flushed record is found, in order and with the right
// bytes; the others are found up to some record and not beyond it; nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {
namespace {

using Operation = MemoryDisk::Operation;

// A server that logs rounds, crashes, and continues from the recovered log.
class CrashingServer {
 public:
  explicit CrashingServer(uint64_t seed) : random_(seed) {
    extents_ = 1 + Draw(4);
    for (uint32_t e = 0; e < extents_; ++e) extent_bytes_.push_back(Draw(5 * kPageBytes));
    options_ = SmallLog(/*segment_pages=*/8 + Draw(20), /*segments=*/5 + Draw(3));
    options_.open_threads = static_cast<int>(1 + Draw(3));  // The result is the same.
    options_.secret = DrawSecret(&random_);
    EXPECT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    EXPECT_TRUE(disk_.SyncDirectory(".").ok());
    Adopt(GradientLog::Create(&disk_, kLogDirectory, options_));
  }

  // Does something. False when the log takes nothing more: then only a restart helps.
  bool Act() {
    if (Draw(10) == 0) disk_.Fail(Draw(2) == 0 ? Operation::kSync : Operation::kWrite, 1, EIO);
    const TestRecord record = NextRecord();
    absl::Status status = Append(log_.get(), record);
    if (absl::IsResourceExhausted(status)) {
      trimmed_ = FlushedVote();
      log_->TrimTo(trimmed_);
      status = Append(log_.get(), record);
      // Rounds that are begun again and again fill the ring of a server that does not say so;
      // log_epochs_test.cc has those that do.
      if (absl::IsResourceExhausted(status)) full_ = true;
    }
    if (!status.ok()) return false;
    records_.push_back(record);
    if (record.prepared.has_value() || Draw(8) == 0) {
      if (!log_->Sync().ok()) return false;
      flushed_ = records_.size();
    }
    return true;
  }

  // Power loss, restart, and a check of the recovered records.
  void Restart() {
    ++attempt_;
    disk_.Crash([this] { return random_(); });
    if (Draw(4) == 0) {
      // Opening is interrupted, too.
      disk_.Fail(Draw(2) == 0 ? Operation::kSync : Operation::kWrite, 1, EIO);
      options_.secret = DrawSecret(&random_);
      GradientLog::Open(&disk_, kLogDirectory, options_).status().IgnoreError();
      disk_.Crash([this] { return random_(); });
    }
    options_.secret = DrawSecret(&random_);
    Adopt(GradientLog::Open(&disk_, kLogDirectory, options_));
    if (log_ == nullptr) return;
    const size_t found = FindEnd();
    ASSERT_LE(found, records_.size()) << "the log holds what no prefix of the records explains:\n"
                                      << Describe(log_->rounds(), trimmed_);
    dropped_ += records_.size() - found;
    records_.resize(found);
    flushed_ = found;
    log_->TrimTo(trimmed_);
    CheckPayloads();
    CheckSecrets();
    begin_again_ = Draw(2) == 0;
  }

  void Adopt(absl::StatusOr<std::unique_ptr<GradientLog>> log) {
    // Faults that were still pending may strike; then once more.
    while (!log.ok() && absl::StrContains(log.status().message(), "Input/output error")) {
      log = GradientLog::Open(&disk_, kLogDirectory, options_);
    }
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }

  bool working() const { return log_ != nullptr && !full_; }
  size_t dropped() const { return dropped_; }
  // Restarts that continued a segment without a secret, and logs with segments of both kinds.
  size_t plain_tails() const { return plain_tails_; }
  size_t mixed() const { return mixed_; }
  uint64_t rounds() const { return records_.empty() ? 0 : records_.back().round(); }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }

  // The newest round whose vote survives; the decision on it may be lost, so it must stay.
  uint64_t FlushedVote() const {
    for (size_t i = flushed_; i-- > 0;) {
      if (records_[i].prepared.has_value()) return records_[i].round();
    }
    return 0;
  }

  // The number of records, at least the flushed ones, that explains the log's answers; more than
  // the number written when none does.
  size_t FindEnd() const {
    const std::string found = Describe(log_->rounds(), trimmed_);
    for (size_t count = records_.size() + 1; count-- > flushed_;) {
      if (Describe(Model(records_, count), trimmed_) == found) return count;
    }
    return records_.size() + 1;
  }

  void CheckPayloads() {
    for (const auto& [round, logged] : log_->rounds()) {
      for (const auto& [number, extent] : logged.extents) {
        const auto data = ReadBack(log_.get(), extent);
        ASSERT_TRUE(data.ok()) << data.status();
        ASSERT_EQ(*data == WrittenData(records_, records_.size(), extent), true)
            << "round " << round << " extent " << number;
      }
    }
  }

  // Segments without a secret are in front; all others have the same one.
  void CheckSecrets() {
    std::map<uint64_t, uint64_t> secrets;  // by sequence
    for (uint32_t i = 0; i < options_.segments; ++i) {
      const std::string path = absl::StrCat(kLogDirectory, "/", SegmentName(i));
      const auto file = ReadWholeFile(&disk_, path, options_.segment_bytes);
      ASSERT_TRUE(file.ok()) << file.status();
      const auto header = DecodeSegmentPage(file->data());
      if (header.ok()) secrets[header->sequence] = header->secret;
    }
    const uint64_t oldest = secrets.begin()->second, newest = secrets.rbegin()->second;
    bool known = false;
    for (const auto& [sequence, secret] : secrets) {
      known = known || secret != 0;
      ASSERT_EQ(secret, known ? newest : 0) << "segment " << sequence;
    }
    plain_tails_ += newest == 0 ? 1 : 0;
    mixed_ += oldest != newest ? 1 : 0;
  }

  // The next record that a server would log. After a restart it may begin the open round again in a
  // newer epoch, with the same sizes and other bytes.
  TestRecord NextRecord() {
    const std::map<uint64_t, LoggedRound> model = Model(records_, records_.size());
    const uint64_t newest = model.empty() ? 1 : model.rbegin()->first;
    const bool open = !model.empty() && !model.rbegin()->second.decision.has_value();
    const uint64_t round = model.empty() || open ? newest : newest + 1;
    const LoggedRound logged = open ? model.rbegin()->second : LoggedRound{};
    if (begin_again_) {
      begin_again_ = false;
      ++epoch_;
    } else if (logged.prepared.has_value()) {
      return {.decision = MakeDecision(round, logged.prepared->epoch)};
    }
    for (uint32_t e = 0; e < extents_; ++e) {
      const auto at = logged.extents.find(e);
      // The last extent keeps its record of an older epoch.
      if (at != logged.extents.end() && (at->second.epoch == epoch_ || e + 1 == extents_)) continue;
      // The same bytes again in every other attempt: dropped records must not come back even so.
      return {.extent = MakeExtent(round, e, extent_bytes_[e], epoch_, attempt_ / 2)};
    }
    std::vector<uint32_t> all;
    for (uint32_t e = 0; e < extents_; ++e) all.push_back(e);
    return {.prepared = MakePrepared(round, all, epoch_)};
  }

  std::mt19937_64 random_;
  MemoryDisk disk_;
  LogOptions options_;
  uint32_t extents_ = 0;
  std::vector<size_t> extent_bytes_;

  std::unique_ptr<GradientLog> log_;
  std::vector<TestRecord> records_;  // all that was appended and may be there
  size_t flushed_ = 0;               // how many of them must be there
  uint64_t trimmed_ = 0;
  uint32_t epoch_ = 1;
  uint64_t attempt_ = 0;
  size_t dropped_ = 0;
  size_t plain_tails_ = 0;
  size_t mixed_ = 0;
  bool begin_again_ = false;
  bool full_ = false;
};

TEST(LogCrash, ExactlyTheFlushedRecordsAreRead) {
  size_t dropped = 0, restarts = 0, full = 0, plain_tails = 0, mixed = 0;
  uint64_t rounds = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    CrashingServer server(seed);
    std::mt19937_64 random(seed * 31);
    for (int life = 0; life < 8 && server.working(); ++life) {
      for (uint64_t acts = random() % 40; acts > 0 && server.Act();) --acts;
      if (!server.working()) break;
      server.Restart();
      ++restarts;
      if (::testing::Test::HasFatalFailure()) return;
    }
    dropped += server.dropped();
    plain_tails += server.plain_tails();
    mixed += server.mixed();
    rounds += server.rounds();
    full += server.working() ? 0 : 1;
  }
  // The test is about something.
  EXPECT_GT(restarts, 3000u);
  EXPECT_GT(dropped, 2000u);
  EXPECT_GT(rounds, 4000u);
  EXPECT_LT(full, 100u);
  EXPECT_GT(plain_tails, 500u);
  EXPECT_GT(mixed, 200u);
}

// Keeps a write's first sector (512 bytes) and loses the others, or the other way round.
MemoryDisk::Random Tear(bool keep_first) {
  return [keep_first, draws = 0]() mutable -> uint64_t {
    if (draws++ == 0) return 2;  // MemoryDisk tears the write.
    return (draws == 2) == keep_first ? 0 : 1;
  };
}

// A log without a secret, of whole segments that hold a round each.
class OldLog {
 public:
  explicit OldLog(uint64_t rounds) : rounds_(rounds) {
    EXPECT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    EXPECT_TRUE(disk_.SyncDirectory(".").ok());
    log_ = *GradientLog::Create(&disk_, kLogDirectory, options_);
    for (uint64_t round = 1; round <= rounds; ++round) {
      log_->TrimTo(round);
      Take({.extent = MakeExtent(round, 0, 4 * kPageBytes)});
      Take({.prepared = MakePrepared(round, {0})});
    }
    EXPECT_TRUE(log_->Sync().ok());
  }

  // A program with this secret starts and finds everything.
  void Open(uint64_t secret) {
    options_.secret = secret;
    auto log = GradientLog::Open(&disk_, kLogDirectory, options_);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
    log_->TrimTo(rounds_);
    ASSERT_EQ(Describe(log_->rounds(), rounds_),
              Describe(Model(records_, records_.size()), rounds_));
  }
  // Power is lost while the header of the next segment is written.
  void TearNextHeader(bool keep_first) {
    disk_.FailNext(Operation::kSync, next_path_, EIO);
    ASSERT_FALSE(Append(log_.get(), next_).ok());
    ASSERT_TRUE(NextHeader().ok());
    disk_.Crash(Tear(keep_first));
    ASSERT_FALSE(NextHeader().ok());
  }
  void AddRound() {
    Take(next_);
    ASSERT_TRUE(log_->Sync().ok());
    disk_.Crash(kLoseAll);
  }
  absl::StatusOr<SegmentHeader> NextHeader() {
    return DecodeSegmentPage(ReadWholeFile(&disk_, next_path_, options_.segment_bytes)->data());
  }

 private:
  void Take(const TestRecord& record) {
    ASSERT_TRUE(Append(log_.get(), record).ok());
    records_.push_back(record);
  }

  const uint64_t rounds_;
  const TestRecord next_{.extent = MakeExtent(rounds_ + 1, 0, 4 * kPageBytes)};
  const std::string next_path_ = absl::StrCat(kLogDirectory, "/", SegmentName(rounds_ % 3));
  MemoryDisk disk_;
  LogOptions options_ = [] {
    LogOptions options = SmallLog(/*segment_pages=*/8, /*segments=*/3);
    options.secret = 0;
    return options;
  }();
  std::unique_ptr<GradientLog> log_;
  std::vector<TestRecord> records_;
};

// Over zeros in the first lap, else over the header of an older segment.
TEST(LogCrash, ATornFirstHeaderWithASecretLeavesALogWithoutOne) {
  for (const uint64_t rounds : {1, 2, 4, 5}) {
    for (const bool keep_first : {true, false}) {
      SCOPED_TRACE(absl::StrCat(rounds, " rounds, first sector kept: ", keep_first));
      OldLog log(rounds);
      log.Open(101);
      log.TearNextHeader(keep_first);
      log.Open(202);
      log.AddRound();
      log.Open(303);
      ASSERT_FALSE(HasFailure());
      EXPECT_EQ(log.NextHeader()->secret, 202u);
    }
  }
}

class LogTailTest : public ::testing::TestWithParam<LogForm> {
 protected:
  LogTailTest() {
    EXPECT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    EXPECT_TRUE(disk_.SyncDirectory(".").ok());
  }
  std::unique_ptr<GradientLog> Create() {
    auto log = GradientLog::Create(&disk_, kLogDirectory, Options(GetParam().made));
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  std::unique_ptr<GradientLog> Open() {
    auto log = GradientLog::Open(&disk_, kLogDirectory, Options(GetParam().opened));
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  static LogOptions Options(uint64_t secret) {
    LogOptions options = SmallLog(/*segment_pages=*/32, /*segments=*/3);
    options.secret = secret;
    return options;
  }
  absl::Status Extent(GradientLog* log, uint32_t extent) {
    const TestExtent made = MakeExtent(1, extent, 100);
    return log->AppendExtent({.at = made.at, .data = made.data.data()});
  }

  MemoryDisk disk_;
};

INSTANTIATE_TEST_SUITE_P(Forms, LogTailTest, ::testing::ValuesIn(kLogForms), NameOfForm);

// The dropped records are whole and stand where the chain would look for them, since the same
// record is written again in front of them.
TEST_P(LogTailTest, DroppedRecordsStayDroppedWhenTheMissingOneIsWrittenAgain) {
  auto log = Create();
  disk_.LoseNextWrite();
  for (const uint32_t extent : {0, 1, 2}) ASSERT_TRUE(Extent(log.get(), extent).ok());
  ASSERT_TRUE(log->AppendPrepared(MakePrepared(1, {0, 1, 2})).ok());
  disk_.Crash(kKeepAll);
  log = Open();
  EXPECT_TRUE(log->rounds().empty());
  ASSERT_TRUE(Extent(log.get(), 0).ok());
  disk_.Crash(kKeepAll);
  log = Open();
  EXPECT_EQ(log->rounds().at(1).extents.size(), 1u);
  EXPECT_FALSE(log->rounds().at(1).prepared.has_value());
}

// Opening said that the round was not prepared; the body that was missing then arrives later, in
// the place of the old one, without the header that goes with it.
TEST_P(LogTailTest, DroppedRecordsStayDroppedWhenTheirMissingBodyArrivesLater) {
  auto log = Create();
  const TestExtent first = MakeExtent(1, 0, 100);
  ASSERT_TRUE(log->AppendExtent({.at = first.at, .data = first.data.data()}).ok());
  ASSERT_TRUE(log->AppendPrepared(MakePrepared(1, {0})).ok());
  log.reset();
  auto file = disk_.Open("job/log-000", {.mode = OpenMode::kWrite});
  std::string body(kPageBytes, '\0');
  ASSERT_TRUE((*file)->WriteAt(2 * kPageBytes, {ConstBytes{body.data(), body.size()}}).ok());
  log = Open();
  EXPECT_TRUE(log->rounds().empty());
  log.reset();
  std::copy(first.data.begin(), first.data.end(), body.begin());
  ASSERT_TRUE((*file)->WriteAt(2 * kPageBytes, {ConstBytes{body.data(), body.size()}}).ok());
  log = Open();
  EXPECT_TRUE(log->rounds().empty());
}

TEST_P(LogTailTest, RecordsFoundByOpeningAreFlushedBeforeTheAnswer) {
  auto log = Create();
  ASSERT_TRUE(Extent(log.get(), 0).ok());
  ASSERT_TRUE(log->AppendPrepared(MakePrepared(1, {0})).ok());
  log.reset();  // The process dies without a flush; the kernel has everything.
  log = Open();
  ASSERT_TRUE(log->rounds().at(1).prepared.has_value());
  disk_.Crash(kLoseAll);
  log = Open();
  EXPECT_TRUE(log->rounds().at(1).prepared.has_value());
}

TEST_P(LogTailTest, AVoteCountsOnlyWithAllItsExtents) {
  for (const uint32_t lost : {0, 1, 2}) {
    ASSERT_TRUE(disk_.RemoveAll(kLogDirectory).ok());
    ASSERT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    auto log = Create();
    for (const uint32_t extent : {0, 1, 2}) {
      if (extent == lost) disk_.LoseNextWrite();
      ASSERT_TRUE(Extent(log.get(), extent).ok());
    }
    ASSERT_TRUE(log->AppendPrepared(MakePrepared(1, {0, 1, 2})).ok());
    log = Open();
    const bool any = log->rounds().count(1) != 0;
    EXPECT_EQ(any, lost != 0);
    if (any) {
      EXPECT_EQ(log->rounds().at(1).extents.size(), lost);
      EXPECT_FALSE(log->rounds().at(1).prepared.has_value());
    }
  }
}

// After a failed flush the kernel may give back bytes that the disk does not have, and no later
// flush writes them: whoever builds on them must write them again.
TEST_P(LogTailTest, OpeningRewritesTheBytesOfAFailedFlush) {
  auto log = Create();
  ASSERT_TRUE(Extent(log.get(), 0).ok());
  disk_.Fail(Operation::kSync, 1, EIO);
  ASSERT_FALSE(log->Sync().ok());
  log = Open();
  ASSERT_EQ(log->rounds().size(), 1u);
  disk_.Crash(kLoseAll);
  log = Open();
  EXPECT_EQ(log->rounds().size(), 1u);
}

}  // namespace
}  // namespace ballast::server
