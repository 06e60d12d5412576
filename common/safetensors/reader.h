// SafetensorsReader: the tensors of one safetensors file, a range of bytes at a time.
// Comes from: importers. Goes to: a FileSystem.
// Thread safety: immutable after Open; ReadAt may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/safetensors/header.h"

namespace ballast {

class SafetensorsReader {
 public:
  // Opens the file, reads its header and checks all that docs/formats/safetensors.md says; memory
  // is taken for the header only, after its length was compared with the file and the limit. That
  // `path` leads to a regular file of the right directory is the caller's to know. `fs` outlives
  // the result. Errors name `path`: those of ParseSafetensorsHeader; INVALID_ARGUMENT with both
  // sizes when the file is shorter or longer than its header says; FileSystem's.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(
      FileSystem* fs, const std::string& path, const SafetensorsLimits& limits = {});

  const SafetensorsHeader& header() const { return header_; }

  // Reads `bytes` bytes of tensor number `tensor` of the header, from byte `offset` of it on, into
  // the caller's memory `to`. INVALID_ARGUMENT: no such tensor, or the range leaves it;
  // FAILED_PRECONDITION: the file became shorter since Open; File's errors.
  absl::Status ReadAt(size_t tensor, uint64_t offset, size_t bytes, void* to) const;
  // As ReadAt, for much at a time: reads the pages that hold the range, past the page cache, and
  // returns where in `pages` it begins. `pages` is aligned to kPageBytes and has room for `bytes`
  // and two pages more.
  absl::StatusOr<const char*> ReadPages(size_t tensor, uint64_t offset, size_t bytes,
                                        char* pages) const;

 private:
  SafetensorsReader(std::string path, std::unique_ptr<File> file, SafetensorsHeader header);

  const std::string path_;
  const std::unique_ptr<File> file_;
  const SafetensorsHeader header_;
};

namespace internal {

// OK when bytes [offset, offset + bytes) lie in tensor number `tensor` of `header`.
absl::Status CheckSafetensorsRange(const std::string& path, const SafetensorsHeader& header,
                                   size_t tensor, uint64_t offset, uint64_t bytes);

}  // namespace internal
}  // namespace ballast
