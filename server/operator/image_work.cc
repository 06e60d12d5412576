#include "server/operator/image_work.h"

#include "server/recovery/recovery.h"

namespace ballast::server {

std::vector<ImageShape> OwnedShapes(const JobPlan& plan, const Layout& layout, uint32_t self) {
  return StorageOptionsOf(plan, layout, self, /*checkpoint_rounds=*/1).shapes;
}

std::shared_ptr<Work> BeginImageWork(Works* works, const std::string& kind, const std::string& name,
                                     const std::vector<ImageShape>& shapes) {
  uint64_t bytes = 0;
  for (const ImageShape& shape : shapes) bytes += ImageFile::PayloadBytes(shape);
  return works->Begin(kind, name, bytes);
}

}  // namespace ballast::server
