#include "server/snapshot/manifest.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/durability/bytes.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kMagic = "BALLSNP\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kFixedBytes = 24;  // magic, version, reserved, length
constexpr size_t kCrcBytes = 4;     // at the end, of all that is in front

void PutText(absl::string_view text, ByteWriter* to) {
  to->Put<uint32_t>(static_cast<uint32_t>(text.size()));
  to->PutBytes(text);
}

std::string GetText(ByteReader* from) {
  const uint32_t count = from->GetCount(1);
  return from->GetBytes(count);
}

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

absl::StatusOr<absl::string_view> Body(absl::string_view bytes) {
  if (bytes.size() < kFixedBytes + kCrcBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("it is no snapshot manifest, or was cut off");
  }
  const auto version = LoadNumber<uint32_t>(bytes.data() + kMagic.size());
  const size_t end = bytes.size() - kCrcBytes;
  if (LoadNumber<uint32_t>(bytes.data() + end) != Crc32c(bytes.data(), end)) {
    return absl::DataLossError("its checksum does not match");
  }
  if (version > kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("it has format version ", version,
                                                      "; this program reads version ", kVersion,
                                                      "; use the program that wrote it"));
  }
  const bool whole = version == kVersion && LoadNumber<uint32_t>(bytes.data() + 12) == 0 &&
                     LoadNumber<uint64_t>(bytes.data() + 16) == bytes.size();
  if (!whole) return absl::DataLossError("its header is not one that this format has");
  return bytes.substr(kFixedBytes, end - kFixedBytes);
}

}  // namespace

absl::Status CheckSnapshotName(absl::string_view name) {
  const bool fits = !name.empty() && name.size() <= kSnapshotNameBytesMax && name[0] != '.' &&
                    name[0] != '-' && std::all_of(name.begin(), name.end(), IsNameByte);
  if (fits) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
      absl::StrCat("\"", absl::CHexEscape(name.substr(0, 2 * kSnapshotNameBytesMax)),
                   "\" is no name of a snapshot: that is 1 to ", kSnapshotNameBytesMax,
                   " letters, digits, '.', '_' and '-', and does not begin with '.' or '-'"));
}

std::string EncodeManifest(const SnapshotManifest& manifest) {
  ByteWriter body;
  body.Put(manifest.id);
  PutText(manifest.name, &body);
  PutText(manifest.job, &body);
  body.Put(manifest.created_s);
  body.Put(manifest.round);
  body.Put(manifest.bytes);
  PutText(manifest.plan, &body);
  PutText(EncodePrepared(manifest.prepared), &body);
  PutText(EncodeDecision(manifest.decision), &body);
  const std::string content = body.Take();
  ByteWriter file;
  file.PutBytes(kMagic);
  file.Put(kVersion);
  file.Put<uint32_t>(0);
  file.Put<uint64_t>(kFixedBytes + content.size() + kCrcBytes);
  file.PutBytes(content);
  std::string bytes = file.Take();
  ByteWriter crc;
  crc.Put(Crc32c(bytes.data(), bytes.size()));
  return bytes + crc.Take();
}

absl::StatusOr<SnapshotManifest> DecodeManifest(absl::string_view bytes) {
  BALLAST_ASSIGN_OR_RETURN(const absl::string_view body, Body(bytes));
  ByteReader from(body);
  SnapshotManifest manifest;
  manifest.id = from.Get<uint64_t>();
  manifest.name = GetText(&from);
  manifest.job = GetText(&from);
  manifest.created_s = from.Get<uint64_t>();
  manifest.round = from.Get<uint64_t>();
  manifest.bytes = from.Get<uint64_t>();
  manifest.plan = GetText(&from);
  const std::string prepared = GetText(&from);
  const std::string decision = GetText(&from);
  if (!from.AtEnd() || !CheckSnapshotName(manifest.name).ok() || manifest.id == 0) {
    return absl::DataLossError("its fields are not those of this format");
  }
  BALLAST_ASSIGN_OR_RETURN(manifest.prepared, DecodePrepared(prepared));
  BALLAST_ASSIGN_OR_RETURN(manifest.decision, DecodeDecision(decision));
  const bool fits = manifest.prepared.round + 1 == manifest.round &&
                    manifest.decision.round + 1 == manifest.round;
  if (fits) return manifest;
  return absl::DataLossError(absl::StrCat("its records are of round ", manifest.decision.round,
                                          ", not of that before round ", manifest.round));
}

}  // namespace ballast::server
