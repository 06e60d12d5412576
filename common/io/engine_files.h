// EngineFileSystem: a file system whose files begin reads and writes (File::StartRead, StartWrite)
// on an IoEngine, one for each device, so that reads, writes and the log share its queue. All else
// is done by the file system below.
// Comes from: server (start), bench. Goes to: server/durability and server/tier, as file.h's
// FileSystem. Thread safety: as file.h says.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/io/io_engine.h"

namespace ballast {

// Makes the backend that carries the blocks of one device: MakeLibaioBackend, or one of a test.
using IoBackendMaker = std::function<absl::StatusOr<std::unique_ptr<IoBackend>>(int queue_depth)>;

// `below` outlives the result and all its files. A device gets its engine, with `options`, when the
// first file on it is opened for direct I/O. Where that is impossible (no direct I/O, no room for
// another queue), which is logged once, all calls finish before they return.
std::unique_ptr<FileSystem> EngineFileSystem(FileSystem* below, const IoOptions& options,
                                             IoBackendMaker make_backend = MakeLibaioBackend);

}  // namespace ballast
