// Registration: the record about itself that a state server writes to its metadata store at every
// start: its address, and the disk of its data directory. It also identifies the owner of the data
// directory.
// Comes from: Server. Goes to: MetaStore (docs/formats/meta.md).
// Thread safety: any thread; the calls block on the disk.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/meta/meta_store.h"

namespace ballast::server {

// The record: a line "name value" for each known fact.
std::string DescribeServer(const std::string& address, const std::string& data_dir);

// Writes the record of server `id`. DATA_LOSS STATE_LOST if the store belongs to another server.
absl::Status RegisterServer(MetaStore* meta, uint32_t id, const std::string& data_dir,
                            const std::string& record);

}  // namespace ballast::server
