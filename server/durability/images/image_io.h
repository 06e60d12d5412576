// ImageIo: reads and writes images concurrently, without blocking the caller, for a tier that keeps
// extents there and nowhere else. Comes from: server/tier. Goes to: a job's image file, on threads
// of its own; memory in tests. Thread safety: thread-safe, but one call of an extent at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace ballast::server {

// The state of one extent at the start of round `version`, laid out as ImageFile wants it.
struct ExtentImage {
  uint32_t extent = 0;
  uint64_t version = 0;
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
  std::vector<uint32_t> chunk_crcs;  // as ImageFile::Write wants them; may be empty
  bool initial = false;  // initial weights: earlier images of the extent no longer count
};

class ImageIo {
 public:
  // Runs once, on any thread, perhaps before the call returns.
  using Done = std::function<void(absl::Status)>;

  virtual ~ImageIo() = default;
  // Reads the newest version of the extent into `to`, which has ImageFile::BufferBytes, aligned to
  // kPageBytes. Errors: NOT_FOUND when it has none; DATA_LOSS, naming extent, version and offset.
  virtual void Read(uint32_t extent, void* to, Done done) = 0;
  // Writes the image over the extent's older version. After `done` the memory is the caller's
  // again; the image survives once a Flush has covered it. An extent whose last write no flush has
  // covered is flushed first. An error is final for the file.
  virtual void Write(ExtentImage image, Done done) = 0;
  // `done` runs when every Write that ended before this call survives.
  virtual void Flush(Done done) = 0;
};

}  // namespace ballast::server
