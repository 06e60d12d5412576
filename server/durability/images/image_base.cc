#include "server/durability/images/image_base.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/durability/records/bytes.h"
#include "server/durability/records/sealed_bytes.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kMagic = "BALLBAS\n";
constexpr uint32_t kBaseVersion = 1;
constexpr size_t kPartBytes = 8;  // at least
constexpr size_t kShapeBytes = 12;

absl::StatusOr<absl::string_view> Body(absl::string_view bytes) {
  return OpenSealed(kMagic, kBaseVersion, bytes,
                    "it says of no images what they have borrowed, or was cut off");
}

ImageBasePart GetPart(ByteReader* from) {
  ImageBasePart part;
  part.server = from->Get<uint32_t>();
  part.shapes.resize(from->GetCount(kShapeBytes));
  for (ImageShape& shape : part.shapes) {
    shape.extent = from->Get<uint32_t>();
    shape.elements = from->Get<uint32_t>();
    shape.array_count = from->Get<uint32_t>();
  }
  return part;
}

}  // namespace

std::string EncodeImageBase(const ImageBase& base) {
  ByteWriter body;
  body.Put(base.job);
  body.Put(base.server);
  body.Put(base.lender);
  body.Put(base.round);
  body.Put(base.optimizer);
  body.Put(base.formula_id);
  body.Put(base.tile_elements);
  body.Put(static_cast<uint32_t>(base.parts.size()));
  for (const ImageBasePart& part : base.parts) {
    body.Put(part.server);
    body.Put(static_cast<uint32_t>(part.shapes.size()));
    for (const ImageShape& shape : part.shapes) {
      body.Put(shape.extent);
      body.Put(shape.elements);
      body.Put(shape.array_count);
    }
  }
  return SealBytes(kMagic, kBaseVersion, body.Take());
}

absl::StatusOr<ImageBase> DecodeImageBase(absl::string_view bytes) {
  BALLAST_ASSIGN_OR_RETURN(const absl::string_view body, Body(bytes));
  ByteReader from(body);
  ImageBase base;
  base.job = from.Get<uint64_t>();
  base.server = from.Get<uint32_t>();
  base.lender = from.Get<uint64_t>();
  base.round = from.Get<uint64_t>();
  base.optimizer = from.Get<uint32_t>();
  base.formula_id = from.Get<uint32_t>();
  base.tile_elements = from.Get<uint32_t>();
  const uint32_t parts = from.GetCount(kPartBytes);
  for (uint32_t i = 0; i < parts; ++i) base.parts.push_back(GetPart(&from));
  if (from.AtEnd() && base.round != 0 && !base.parts.empty()) return base;
  return absl::DataLossError("its fields are not those of this format");
}

std::string ImageBasePath(const std::string& directory) { return absl::StrCat(directory, "/base"); }

std::string ImageBasePartPath(const std::string& directory, uint32_t server) {
  return absl::StrCat(directory, "/base-", server);
}

ImageOptions ImageBasePartOptions(const ImageBase& base, uint32_t server, bool direct) {
  ImageOptions options;
  options.job = base.lender;
  options.server = server;
  options.optimizer = base.optimizer;
  options.formula_id = base.formula_id;
  options.tile_elements = base.tile_elements;
  options.direct = direct;
  options.places = 1;
  options.read_only = true;
  return options;
}

}  // namespace ballast::server
