// Target log: the gradient log as a restarted server opens it, with header pages whose checksums
// are right for any content. An accepted page is written the same; a log's answers are the same
// when it is opened twice; and a log that opens takes further rounds and keeps them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>

#include "common/base/check.h"
#include "common/bytes/crc32c.h"
#include "server/durability/log/gradient_log.h"
#include "server/durability/log/log_format.h"
#include "server/durability/records/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/targets/pages.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::fuzz {
namespace {

using server::GradientLog;

constexpr size_t kSegments = 3;
constexpr size_t kPages = 8;  // of a segment
constexpr size_t kHeaderBytes = 136;
// docs/formats/log.md: fields of header pages.
constexpr size_t kSegmentPreviousCrc = 64;
constexpr uint32_t kIdentityVersion = 1;
constexpr size_t kIdentity = 12;
constexpr size_t kIdentityBytes = 32;
constexpr size_t kPayloadBytes = 80;
constexpr size_t kPayloadCrc = 104;
constexpr size_t kRecordPreviousCrc = 108;
// A round beyond is nothing that a job reaches.
constexpr uint64_t kRoundMax = uint64_t{1} << 62;

server::LogOptions Options() {
  server::LogOptions options = server::SmallLog(kPages, kSegments);
  options.direct = false;
  return options;
}

std::vector<std::string> Paths() {
  std::vector<std::string> paths;
  for (uint32_t i = 0; i < kSegments; ++i) {
    paths.push_back(std::string(server::kLogDirectory) + "/" + server::SegmentName(i));
  }
  return paths;
}

// The checksum of the payload after the header at `at`, as far as it is in the file.
uint32_t PayloadCrc(const std::string& file, size_t at) {
  const uint64_t room = file.size() - at - kPageBytes;
  const auto bytes = std::min(server::LoadNumber<uint64_t>(&file[at + kPayloadBytes]), room);
  const uint32_t version = Crc32c(&kIdentityVersion, sizeof(kIdentityVersion));
  const uint32_t seed = Crc32c(&file[at + kIdentity], kIdentityBytes, version);
  return Crc32c(file.data() + at + kPageBytes, bytes, seed);
}

// Forms the checksums that the items ask for, in their order.
void Seal(const std::vector<PageItem>& items, std::vector<std::string>* files) {
  uint32_t previous = 0;
  for (const PageItem& item : items) {
    if (item.bytes.compare(0, 4, "BALL") != 0) continue;
    std::string& file = (*files)[item.file % kSegments];
    const size_t at = item.page % kPages * kPageBytes;
    char* const page = &file[at];
    const bool record = server::LooksLikeRecord(page);
    if (record && (item.flags & PageItem::kSealPayload) != 0) {
      server::StoreNumber(PayloadCrc(file, at), page + kPayloadCrc);
    }
    if ((item.flags & PageItem::kSealChain) != 0) {
      server::StoreNumber(previous, page + (record ? kRecordPreviousCrc : kSegmentPreviousCrc));
    }
    if ((item.flags & PageItem::kSealHeader) != 0) {
      server::StoreNumber(Crc32c(page, kPageBytes - 4), page + kPageBytes - 4);
    }
    if (record) previous = server::PageCrc(page);
  }
}

// Whether a file that counts as never used, by its first two pages, holds something all the same.
bool UnusedHolds(const std::vector<std::string>& files) {
  return std::any_of(files.begin(), files.end(), [](const std::string& file) {
    const size_t first = file.find_first_not_of('\0');
    return first != std::string::npos && first >= 2 * kPageBytes;
  });
}

// Checks each page; whether one of them is of a newer version.
bool CheckPages(const std::vector<std::string>& files) {
  std::string page(kPageBytes, '\0');
  bool newer = false;
  for (const std::string& file : files) {
    for (size_t at = 0; at < file.size(); at += kPageBytes) {
      const absl::string_view read(file.data() + at, kPageBytes);
      if (const auto header = server::DecodeSegmentPage(read.data()); header.ok()) {
        server::EncodePage(*header, page.data());
        BALLAST_CHECK(read == page);
      }
      const auto header = server::DecodeRecordPage(read.data());
      newer = newer || absl::IsFailedPrecondition(header.status());
      if (header.ok()) {
        server::EncodePage(*header, page.data());
        BALLAST_CHECK(read == page);
      }
    }
  }
  return newer;
}

absl::StatusOr<std::unique_ptr<GradientLog>> Open(MemoryDisk* disk) {
  auto log = GradientLog::Open(disk, server::kLogDirectory, Options());
  if (!log.ok()) {
    const absl::StatusCode code = log.status().code();
    BALLAST_CHECK(code == absl::StatusCode::kDataLoss ||
                  code == absl::StatusCode::kFailedPrecondition);
  }
  return log;
}

// Every extent that the log lists is read, or is damaged.
void ReadAll(GradientLog* log) {
  static const Arena buffer = *Arena::Create(kSegments * kPages * kPageBytes);
  for (const auto& [round, logged] : log->rounds()) {
    for (const auto& [number, extent] : logged.extents) {
      BALLAST_CHECK(extent.round == round && extent.extent == number);
      BALLAST_CHECK(extent.bytes <= buffer.bytes());
      const absl::Status status = log->ReadExtent(extent, buffer.data());
      BALLAST_CHECK(status.ok() || absl::IsDataLoss(status));
    }
  }
}

// A round after all others, which must be found when the log is opened again.
void Continue(MemoryDisk* disk, std::unique_ptr<GradientLog> log) {
  uint64_t round = 1;
  if (!log->rounds().empty()) round = log->rounds().rbegin()->first + 2;
  if (round > kRoundMax) return;
  log->TrimTo(round);
  const server::TestExtent extent = server::MakeExtent(round, 4, 100, UINT32_MAX);
  absl::Status status = log->AppendExtent({.at = extent.at, .data = extent.data.data()});
  if (status.ok()) status = log->AppendPrepared(server::MakePrepared(round, {4}, UINT32_MAX));
  if (status.ok()) status = log->AppendDecision(server::MakeDecision(round, UINT32_MAX));
  if (status.ok()) status = log->Sync();
  if (!status.ok()) return;  // No room, which the segments in use say.
  const std::string kept = server::Describe(log->rounds(), round);
  log.reset();
  const auto again = Open(disk);
  BALLAST_CHECK(again.ok());
  BALLAST_CHECK(server::Describe((*again)->rounds(), round) == kept);
  ReadAll(again->get());
}

class Log : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    return {Seed(1, 0), Seed(2, 0), Seed(5, 0), Seed(2, 2), Seed(5, 3)};
  }

  void Run(absl::string_view input) const override {
    const std::vector<PageItem> items = ParseItems(input);
    std::vector<std::string> files = FilesOf(items, kSegments, kPages);
    Seal(items, &files);
    const bool newer = CheckPages(files);
    MemoryDisk disk;
    BALLAST_CHECK(disk.MakeDirectory(server::kLogDirectory).ok());
    for (size_t i = 0; i < kSegments; ++i) PutFile(&disk, Paths()[i], files[i]);
    auto log = Open(&disk);
    if (!log.ok()) return;
    ReadAll(log->get());
    const std::string said = server::Describe((*log)->rounds());
    log = Open(&disk);
    BALLAST_CHECK(log.ok() && server::Describe((*log)->rounds()) == said);
    // Content in a file that counts as never used is met when it is used.
    if (!newer && !UnusedHolds(files)) Continue(&disk, *std::move(log));
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    return MutateItems(input, random);
  }

 private:
  static absl::StatusOr<std::unique_ptr<GradientLog>> Reopened(MemoryDisk* disk,
                                                               std::unique_ptr<GradientLog> log) {
    BALLAST_CHECK(log->Sync().ok());
    log.reset();
    auto again = Open(disk);
    BALLAST_CHECK(again.ok());
    return again;
  }

  // A log of so many rounds, the first of them by a program without secrets.
  static std::string Seed(uint64_t rounds, uint64_t without_secret) {
    MemoryDisk disk;
    BALLAST_CHECK(disk.MakeDirectory(server::kLogDirectory).ok());
    server::LogOptions options = Options();
    if (without_secret > 0) options.secret = 0;
    auto log = GradientLog::Create(&disk, server::kLogDirectory, options);
    BALLAST_CHECK(log.ok());
    for (uint64_t round = 1; round <= rounds; ++round) {
      if (without_secret > 0 && round == without_secret + 1) log = Reopened(&disk, *std::move(log));
      (*log)->TrimTo(round);
      const server::TestExtent extent = server::MakeExtent(round, 4, 30);
      BALLAST_CHECK((*log)->AppendExtent({.at = extent.at, .data = extent.data.data()}).ok());
      BALLAST_CHECK((*log)->AppendPrepared(server::MakePrepared(round, {4})).ok());
      BALLAST_CHECK((*log)->Sync().ok());
      BALLAST_CHECK((*log)->AppendDecision(server::MakeDecision(round)).ok());
    }
    BALLAST_CHECK((*log)->Sync().ok());
    log->reset();
    return JoinItems(ItemsOf(&disk, Paths(), kHeaderBytes));
  }
};

}  // namespace

std::unique_ptr<FuzzTarget> LogTarget() { return std::make_unique<Log>(); }

}  // namespace ballast::fuzz
