// The images of one server's extents, and the work that reads or writes all of them.
// Comes from: SnapshotShare, ShareMaker. Goes to: Works. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/tensor/layout.h"
#include "server/durability/images/image_file.h"
#include "server/jobs/works.h"
#include "server/round/round_types.h"

namespace ballast::server {

// The extents that server `self` owns, as its images hold them.
std::vector<ImageShape> OwnedShapes(const JobPlan& plan, const Layout& layout, uint32_t self);

// Work of `kind` on job `name`, of the size of these images in bytes.
std::shared_ptr<Work> BeginImageWork(Works* works, const std::string& kind, const std::string& name,
                                     const std::vector<ImageShape>& shapes);

}  // namespace ballast::server
