#include "server/durability/log/log_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/faults/planted.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {
namespace {

constexpr std::array<char, 8> kSegmentMagic = {'B', 'A', 'L', 'L', 'S', 'E', 'G', '\n'};
constexpr std::array<char, 8> kRecordMagic = {'B', 'A', 'L', 'L', 'R', 'E', 'C', '\n'};
constexpr uint32_t kPlainVersion = 1;   // headers without a secret
constexpr uint32_t kSecretVersion = 2;  // with one
constexpr uint32_t kVersionMax = kSecretVersion;

// Offsets shared by all versions: a program that cannot read a version still recognizes it.
constexpr size_t kPageVersionAt = 8;
constexpr size_t kPageCrcAt = kPageBytes - 4;

enum SegmentField : size_t {
  kSegmentServer = 12,
  kSegmentJob = 16,
  kSegmentBytes = 24,
  kSegmentCount = 32,
  kSegmentGeneration = 36,
  kSegmentSequence = 40,
  kSegmentFirstLsn = 48,
  kSegmentFlushedLsn = 56,
  kSegmentPreviousCrc = 64,
  kSegmentSecret = 68,  // version 2
};

enum RecordField : size_t {
  kRecordType = 12,
  kRecordDType = 13,
  kRecordCodec = 14,  // and a reserved byte
  kRecordJob = 16,
  kRecordServer = 24,
  kRecordEpoch = 28,
  kRecordRound = 32,
  kRecordExtent = 40,
  kRecordGeneration = 44,
  kRecordLsn = 48,
  kRecordSequence = 56,
  kRecordOffset = 64,
  kRecordFlushedLsn = 72,
  kRecordPayloadBytes = 80,
  kRecordSumsq = 88,
  kRecordNonfinite = 96,
  kRecordPayloadCrc = 104,
  kRecordPreviousCrc = 108,
  kRecordNonfiniteKind = 112,
  kRecordNonfiniteElement = 116,
  kRecordNonfiniteSlot = 120,
  kRecordNonfiniteValue = 124,
  kRecordSecret = 128,  // version 2
};
// The fields that a payload's checksum is bound to: version 1, type, dtype, codec, job, server,
// epoch, round, extent.
constexpr size_t kIdentityBegin = kPageVersionAt;
constexpr size_t kIdentityEnd = kRecordGeneration;

void PutIdentity(const RecordHeader& header, char* page) {
  StoreNumber(kPlainVersion, page + kPageVersionAt);
  StoreNumber(header.type, page + kRecordType);
  StoreNumber(header.dtype, page + kRecordDType);
  StoreNumber(header.job, page + kRecordJob);
  StoreNumber(header.server, page + kRecordServer);
  StoreNumber(header.epoch, page + kRecordEpoch);
  StoreNumber(header.round, page + kRecordRound);
  StoreNumber(header.extent, page + kRecordExtent);
}

void PutNonfinite(const Nonfinite& nonfinite, char* page) {
  StoreNumber(nonfinite.kind, page + kRecordNonfiniteKind);
  StoreNumber(nonfinite.element, page + kRecordNonfiniteElement);
  StoreNumber(nonfinite.slot, page + kRecordNonfiniteSlot);
  StoreNumber(nonfinite.value_bits, page + kRecordNonfiniteValue);
}

Nonfinite GetNonfinite(const char* page) {
  Nonfinite nonfinite{.kind = LoadNumber<NonfiniteKind>(page + kRecordNonfiniteKind),
                      .element = LoadNumber<uint32_t>(page + kRecordNonfiniteElement),
                      .slot = LoadNumber<uint32_t>(page + kRecordNonfiniteSlot),
                      .value_bits = LoadNumber<uint32_t>(page + kRecordNonfiniteValue)};
  if (nonfinite.kind != NonfiniteKind::kNone)
    nonfinite.extent = LoadNumber<uint32_t>(page + kRecordExtent);
  return nonfinite;
}

// Writes the version that a header with this secret has, and the secret at `at`.
void PutSecret(uint64_t secret, size_t at, char* page) {
  StoreNumber(secret == 0 ? kPlainVersion : kSecretVersion, page + kPageVersionAt);
  StoreNumber(secret, page + at);
}

uint64_t GetSecret(const char* page, size_t at) {
  const bool plain = LoadNumber<uint32_t>(page + kPageVersionAt) <= kPlainVersion;
  return plain ? 0 : LoadNumber<uint64_t>(page + at);
}

uint32_t SealPage(char* page) {
  const uint32_t crc = Crc32c(page, kPageCrcAt);
  StoreNumber(crc, page + kPageCrcAt);
  return crc;
}

bool IsZeroed(const char* begin, const char* end) {
  return std::all_of(begin, end, [](char c) { return c == 0; });
}

// The checks that both headers have in common. The secret is the last field.
absl::Status CheckPage(const char* page, const std::array<char, 8>& magic, size_t secret_at) {
  if (std::memcmp(page, magic.data(), magic.size()) != 0) {
    return absl::DataLossError("no header begins here");
  }
  if (PageCrc(page) != Crc32c(page, kPageCrcAt)) {
    return absl::DataLossError("the header's checksum does not match");
  }
  const uint32_t version = LoadNumber<uint32_t>(page + kPageVersionAt);
  if (version > kVersionMax) {
    return absl::FailedPreconditionError(absl::StrCat(
        "gradient log of format version ", version, "; this program reads versions up ", "to ",
        kVersionMax, "; use the program that wrote it, or a newer one"));
  }
  const bool has_secret = GetSecret(page, secret_at) != 0;
  const size_t end = secret_at + (has_secret ? sizeof(uint64_t) : 0);
  if (version != (has_secret ? kSecretVersion : kPlainVersion) ||
      !IsZeroed(page + end, page + kPageCrcAt)) {
    return absl::DataLossError("the header is not one that this format has");
  }
  return absl::OkStatus();
}

// Whether the fields that depend on the record's type fit it.
bool FitsType(const RecordHeader& header) {
  switch (header.type) {
    case RecordType::kExtent:
      return DTypeBytes(header.dtype) != 0 && header.first_nonfinite.kind <= NonfiniteKind::kNorm &&
             (header.first_nonfinite.kind != NonfiniteKind::kNone ||
              header.first_nonfinite == Nonfinite());
    case RecordType::kPrepared:
    case RecordType::kDecision:
    case RecordType::kRatios:
      return header.dtype == kNoDType && header.extent == 0 && header.sumsq == 0 &&
             header.nonfinite == 0 && header.first_nonfinite == Nonfinite();
  }
  return false;
}

}  // namespace

uint32_t EncodePage(const SegmentHeader& header, char* page) {
  std::memset(page, 0, kPageBytes);
  std::memcpy(page, kSegmentMagic.data(), kSegmentMagic.size());
  PutSecret(header.secret, kSegmentSecret, page);
  StoreNumber(header.server, page + kSegmentServer);
  StoreNumber(header.job, page + kSegmentJob);
  StoreNumber(header.segment_bytes, page + kSegmentBytes);
  StoreNumber(header.segments, page + kSegmentCount);
  StoreNumber(header.generation, page + kSegmentGeneration);
  StoreNumber(header.sequence, page + kSegmentSequence);
  StoreNumber(header.first_lsn, page + kSegmentFirstLsn);
  StoreNumber(header.flushed_lsn, page + kSegmentFlushedLsn);
  StoreNumber(header.previous_crc, page + kSegmentPreviousCrc);
  return SealPage(page);
}

uint32_t EncodePage(const RecordHeader& header, char* page) {
  std::memset(page, 0, kPageBytes);
  std::memcpy(page, kRecordMagic.data(), kRecordMagic.size());
  PutIdentity(header, page);
  PutSecret(header.secret, kRecordSecret, page);
  StoreNumber(header.generation, page + kRecordGeneration);
  StoreNumber(header.lsn, page + kRecordLsn);
  StoreNumber(header.sequence, page + kRecordSequence);
  StoreNumber(header.offset, page + kRecordOffset);
  StoreNumber(header.flushed_lsn, page + kRecordFlushedLsn);
  StoreNumber(header.payload_bytes, page + kRecordPayloadBytes);
  StoreNumber(header.sumsq, page + kRecordSumsq);
  StoreNumber(header.nonfinite, page + kRecordNonfinite);
  StoreNumber(header.payload_crc, page + kRecordPayloadCrc);
  StoreNumber(header.previous_crc, page + kRecordPreviousCrc);
  PutNonfinite(header.first_nonfinite, page);
  return SealPage(page);
}

absl::StatusOr<SegmentHeader> DecodeSegmentPage(const char* page) {
  BALLAST_RETURN_IF_ERROR(CheckPage(page, kSegmentMagic, kSegmentSecret));
  return SegmentHeader{.job = LoadNumber<uint64_t>(page + kSegmentJob),
                       .server = LoadNumber<uint32_t>(page + kSegmentServer),
                       .segments = LoadNumber<uint32_t>(page + kSegmentCount),
                       .segment_bytes = LoadNumber<uint64_t>(page + kSegmentBytes),
                       .generation = LoadNumber<uint32_t>(page + kSegmentGeneration),
                       .sequence = LoadNumber<uint64_t>(page + kSegmentSequence),
                       .first_lsn = LoadNumber<uint64_t>(page + kSegmentFirstLsn),
                       .flushed_lsn = LoadNumber<uint64_t>(page + kSegmentFlushedLsn),
                       .previous_crc = LoadNumber<uint32_t>(page + kSegmentPreviousCrc),
                       .secret = GetSecret(page, kSegmentSecret)};
}

absl::StatusOr<RecordHeader> DecodeRecordPage(const char* page) {
  BALLAST_RETURN_IF_ERROR(CheckPage(page, kRecordMagic, kRecordSecret));
  const RecordHeader header{.type = LoadNumber<RecordType>(page + kRecordType),
                            .dtype = LoadNumber<DType>(page + kRecordDType),
                            .job = LoadNumber<uint64_t>(page + kRecordJob),
                            .server = LoadNumber<uint32_t>(page + kRecordServer),
                            .epoch = LoadNumber<uint32_t>(page + kRecordEpoch),
                            .round = LoadNumber<uint64_t>(page + kRecordRound),
                            .extent = LoadNumber<uint32_t>(page + kRecordExtent),
                            .generation = LoadNumber<uint32_t>(page + kRecordGeneration),
                            .lsn = LoadNumber<uint64_t>(page + kRecordLsn),
                            .sequence = LoadNumber<uint64_t>(page + kRecordSequence),
                            .offset = LoadNumber<uint64_t>(page + kRecordOffset),
                            .flushed_lsn = LoadNumber<uint64_t>(page + kRecordFlushedLsn),
                            .payload_bytes = LoadNumber<uint64_t>(page + kRecordPayloadBytes),
                            .sumsq = LoadNumber<double>(page + kRecordSumsq),
                            .nonfinite = LoadNumber<uint64_t>(page + kRecordNonfinite),
                            .first_nonfinite = GetNonfinite(page),
                            .payload_crc = LoadNumber<uint32_t>(page + kRecordPayloadCrc),
                            .previous_crc = LoadNumber<uint32_t>(page + kRecordPreviousCrc),
                            .secret = GetSecret(page, kRecordSecret)};
  if ((LoadNumber<uint16_t>(page + kRecordCodec) != 0 && !BALLAST_PLANTED) || !FitsType(header)) {
    return absl::DataLossError("the record header is not one that this format has");
  }
  return header;
}

bool LooksLikeRecord(const char* page) {
  return std::memcmp(page, kRecordMagic.data(), kRecordMagic.size()) == 0;
}

RecordPlace PlaceOf(const char* page) {
  return {.job = LoadNumber<uint64_t>(page + kRecordJob),
          .server = LoadNumber<uint32_t>(page + kRecordServer),
          .sequence = LoadNumber<uint64_t>(page + kRecordSequence),
          .offset = LoadNumber<uint64_t>(page + kRecordOffset),
          .secret = GetSecret(page, kRecordSecret)};
}

uint32_t PageCrc(const char* page) { return LoadNumber<uint32_t>(page + kPageCrcAt); }

uint32_t PayloadSeed(const RecordHeader& header) {
  std::array<char, kIdentityEnd> identity = {};
  PutIdentity(header, identity.data());
  return Crc32c(identity.data() + kIdentityBegin, kIdentityEnd - kIdentityBegin);
}

std::string SegmentName(uint32_t index) { return absl::StrFormat("log-%03u", index); }

}  // namespace ballast::server
