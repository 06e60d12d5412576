#include "server/snapshot/manifest.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/planted.h"
#include "server/durability/records/bytes.h"
#include "server/durability/records/sealed_bytes.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kMagic = "BALLSNP\n";
constexpr uint32_t kVersion = 1;

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
  return OpenSealed(kMagic, kVersion, bytes, "it is no snapshot manifest, or was cut off");
}

}  // namespace

absl::Status CheckSnapshotName(absl::string_view name) {
  const bool fits = !name.empty() && name.size() <= kSnapshotNameBytesMax && name[0] != '.' &&
                    name[0] != '-' && std::all_of(name.begin(), name.end(), IsNameByte);
  if (fits) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
      absl::StrCat("\"", absl::CHexEscape(name.substr(0, 2 * kSnapshotNameBytesMax)),
                   "\" is no name of a snapshot or an export: that is 1 to ", kSnapshotNameBytesMax,
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
  return SealBytes(kMagic, kVersion, body.Take());
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
  const bool named = CheckSnapshotName(manifest.name).ok() || manifest.name == kPassingSnapshotName;
  if (!from.AtEnd() || !named || manifest.id == 0) {
    return absl::DataLossError("its fields are not those of this format");
  }
  BALLAST_ASSIGN_OR_RETURN(manifest.prepared, DecodePrepared(prepared));
  BALLAST_ASSIGN_OR_RETURN(manifest.decision, DecodeDecision(decision));
  const bool fits = manifest.prepared.round + 1 == manifest.round &&
                    (manifest.decision.round + 1 == manifest.round || BALLAST_PLANTED);
  if (fits) return manifest;
  return absl::DataLossError(absl::StrCat("its records are of round ", manifest.decision.round,
                                          ", not of that before round ", manifest.round));
}

}  // namespace ballast::server
