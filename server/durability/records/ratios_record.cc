#include "server/durability/records/ratios_record.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {
namespace {

constexpr uint32_t kRatiosVersion = 1;
constexpr size_t kRunBytes = 24;

}  // namespace

std::string EncodeRatios(const RatiosRecord& record) {
  ByteWriter out;
  out.Put(kRatiosVersion);
  out.Put(record.epoch);
  out.Put(record.round);
  out.Put<uint32_t>(record.ratios.size());
  for (const float ratio : record.ratios) out.Put(ratio);
  out.Put<uint32_t>(record.squares.size());
  for (const RunSquares& run : record.squares) {
    out.Put(run.extent);
    out.Put(run.tensor);
    out.Put(run.p);
    out.Put(run.u);
  }
  return out.Take();
}

absl::StatusOr<RatiosRecord> DecodeRatios(absl::string_view bytes) {
  ByteReader in(bytes);
  const uint32_t version = in.Get<uint32_t>();
  if (version > kRatiosVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("RATIOS record of version ", version, "; this program reads versions up to ",
                     kRatiosVersion, "; use the program that wrote it, or a newer one"));
  }
  RatiosRecord record;
  record.epoch = in.Get<uint32_t>();
  record.round = in.Get<uint64_t>();
  record.ratios.resize(in.GetCount(sizeof(float)));
  for (float& ratio : record.ratios) ratio = in.Get<float>();
  record.squares.resize(in.GetCount(kRunBytes));
  for (RunSquares& run : record.squares) {
    run.extent = in.Get<uint32_t>();
    run.tensor = in.Get<uint32_t>();
    run.p = in.Get<double>();
    run.u = in.Get<double>();
  }
  if (version == kRatiosVersion && in.AtEnd()) return record;
  return absl::DataLossError(
      absl::StrCat("RATIOS record of ", bytes.size(), " bytes is not one that this program ",
                   "writes; the log was damaged or written by something else"));
}

}  // namespace ballast::server
