#include "server/meta/value_codec.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/bytes/crc32c.h"
#include "common/bytes/little_endian.h"
#include "common/faults/planted.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kValueMagic("BLMV", 4);
// First byte under the checksum.
constexpr size_t kCoveredFrom = 8;

uint32_t Checksum(absl::string_view key, absl::string_view covered) {
  std::string key_bytes;
  AppendLittleEndian(static_cast<uint32_t>(key.size()), &key_bytes);
  uint32_t crc = Crc32c(key_bytes.data(), key_bytes.size());
  crc = Crc32c(key.data(), key.size(), crc);
  return Crc32c(covered.data(), covered.size(), crc);
}

absl::Status Damaged(absl::string_view key, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat("stored value of metadata key '", absl::CHexEscape(key), "' ", why));
}

// What all versions have in common: magic and checksum.
absl::Status CheckWhole(absl::string_view key, absl::string_view stored) {
  if (stored.size() < kMetaHeaderBytes) {
    return Damaged(key, absl::StrCat("has ", stored.size(), " bytes, its header alone ",
                                     kMetaHeaderBytes, ": it is cut off"));
  }
  if (stored.substr(0, kValueMagic.size()) != kValueMagic) {
    return Damaged(key, absl::StrCat("begins with '", absl::CHexEscape(stored.substr(0, 4)),
                                     "' instead of '", kValueMagic, "'"));
  }
  const uint32_t written = ReadLittleEndian<uint32_t>(stored, 4);
  const uint32_t actual = Checksum(key, stored.substr(kCoveredFrom));
  if (written != actual) {
    return Damaged(key, absl::StrFormat("has checksum 0x%08x, but key and bytes give 0x%08x: it "
                                        "was changed, or written for another key",
                                        written, actual));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeMetaValue(const MetaEntry& entry) {
  BALLAST_CHECK(entry.value.size() <= kMetaValueBytesMax);
  std::string covered;
  covered.reserve(kMetaHeaderBytes - kCoveredFrom + entry.value.size());
  AppendLittleEndian(kMetaFormatVersion, &covered);
  AppendLittleEndian(uint16_t{0}, &covered);
  AppendLittleEndian(static_cast<uint32_t>(entry.value.size()), &covered);
  AppendLittleEndian(entry.create_revision, &covered);
  AppendLittleEndian(entry.mod_revision, &covered);
  covered += entry.value;
  std::string stored(kValueMagic);
  AppendLittleEndian(Checksum(entry.key, covered), &stored);
  stored += covered;
  return stored;
}

absl::StatusOr<MetaEntry> DecodeMetaValue(absl::string_view key, absl::string_view stored) {
  if (absl::Status whole = CheckWhole(key, stored); !whole.ok()) return whole;
  const auto version = ReadLittleEndian<uint16_t>(stored, 8);
  if (version != kMetaFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "stored value of metadata key '", absl::CHexEscape(key), "' has format version ", version,
        ", this release reads ", kMetaFormatVersion, "; run the release that wrote it"));
  }
  const auto flags = ReadLittleEndian<uint16_t>(stored, 10);
  const auto value_bytes = ReadLittleEndian<uint32_t>(stored, 12);
  MetaEntry entry;
  entry.create_revision = ReadLittleEndian<uint64_t>(stored, 16);
  entry.mod_revision = ReadLittleEndian<uint64_t>(stored, 24);
  if ((flags != 0 && !BALLAST_PLANTED) || value_bytes != stored.size() - kMetaHeaderBytes ||
      entry.create_revision > entry.mod_revision) {
    return Damaged(key, absl::StrCat("has a header that contradicts itself: flags ", flags,
                                     ", value bytes ", value_bytes, " of ",
                                     stored.size() - kMetaHeaderBytes, ", create revision ",
                                     entry.create_revision, ", mod revision ", entry.mod_revision));
  }
  entry.key = std::string(key);
  entry.value = std::string(stored.substr(kMetaHeaderBytes));
  return entry;
}

}  // namespace ballast::server
