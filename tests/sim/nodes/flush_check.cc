#include "tests/sim/nodes/flush_check.h"

#include "absl/strings/str_cat.h"
#include "server/durability/images/image_format.h"

namespace ballast::sim {

void FlushCheck::Check() {
  if (images_ == nullptr || !options_->images.flush) return;
  uint64_t offset = kPageBytes;
  for (const server::ImageShape& shape : options_->shapes) {
    const uint64_t header_bytes = server::ImageHeaderBytes(shape);
    const uint64_t image_bytes = header_bytes + server::ImageFile::BufferBytes(shape);
    const uint64_t version = images_->Flushed(shape.extent);
    if (std::exchange(checked_[shape.extent], version) != version) {
      CheckExtent(shape, version, {offset, offset + image_bytes});
    }
    offset += 2 * image_bytes;
  }
}

void FlushCheck::CheckExtent(const server::ImageShape& shape, uint64_t version,
                             const std::array<uint64_t, 2>& places) {
  const auto file = disk_->raw()->Open(path_, {.mode = OpenMode::kRead});
  std::string page(server::ImageHeaderBytes(shape), '\0');
  for (const uint64_t place : places) {
    if (!file.ok() || !(*file)->ReadAt(place, page.size(), page.data()).ok()) return;
    const auto header = server::DecodeImageHeader(shape, page.data());
    if (!header.ok() || header->version != version) continue;
    if (disk_->ImageWrittenAt(place) <= disk_->images_synced()) continue;
    world_->Red(absl::StrCat("version ", version, " of extent ", shape.extent,
                             " counts as flushed, and no flush has covered it"));
  }
}

}  // namespace ballast::sim
