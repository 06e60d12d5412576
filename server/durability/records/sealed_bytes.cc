#include "server/durability/records/sealed_bytes.h"

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {
namespace {

constexpr size_t kVersionAt = 8;
constexpr size_t kReservedAt = 12;
constexpr size_t kLengthAt = 16;
constexpr size_t kFixedBytes = 24;
constexpr size_t kCrcBytes = 4;

}  // namespace

std::string SealBytes(absl::string_view magic, uint32_t version, absl::string_view body) {
  ByteWriter file;
  file.PutBytes(magic);
  file.Put(version);
  file.Put<uint32_t>(0);
  file.Put<uint64_t>(kFixedBytes + body.size() + kCrcBytes);
  file.PutBytes(body);
  std::string bytes = file.Take();
  ByteWriter crc;
  crc.Put(Crc32c(bytes.data(), bytes.size()));
  return bytes + crc.Take();
}

absl::StatusOr<absl::string_view> OpenSealed(absl::string_view magic, uint32_t version,
                                             absl::string_view bytes, absl::string_view otherwise) {
  if (bytes.size() < kFixedBytes + kCrcBytes || bytes.substr(0, magic.size()) != magic) {
    return absl::DataLossError(otherwise);
  }
  const auto found = LoadNumber<uint32_t>(bytes.data() + kVersionAt);
  const size_t end = bytes.size() - kCrcBytes;
  if (LoadNumber<uint32_t>(bytes.data() + end) != Crc32c(bytes.data(), end)) {
    return absl::DataLossError("its checksum does not match");
  }
  if (found > version) {
    return absl::FailedPreconditionError(absl::StrCat("it has format version ", found,
                                                      "; this program reads version ", version,
                                                      "; use the program that wrote it"));
  }
  const bool whole = found == version && LoadNumber<uint32_t>(bytes.data() + kReservedAt) == 0 &&
                     LoadNumber<uint64_t>(bytes.data() + kLengthAt) == bytes.size();
  if (!whole) return absl::DataLossError("its header is not one that this format has");
  return bytes.substr(kFixedBytes, end - kFixedBytes);
}

}  // namespace ballast::server
