// SafetensorsWriter: one safetensors file, written in any order and visible only when it is
// whole: it grows under the name `path` + ".part", and takes its own at Finish.
// Comes from: exporters. Goes to: a FileSystem.
// Thread safety: WriteAt may be called from any thread at any time, for ranges that do not overlap.
// Create, Finish and the destructor are one thread's, after all WriteAt have returned.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/sync.h"
#include "common/io/file.h"
#include "common/safetensors/header.h"

namespace ballast {

class SafetensorsWriter {
 public:
  // Data begins on a page, so that whole pages of it can go past the page cache.
  static SafetensorsEncodeOptions PageAligned() { return {.data_alignment = kPageBytes}; }

  // Bytes of the file that Create would write, header included. Errors: EncodeSafetensorsHeader's.
  static absl::StatusOr<uint64_t> FileBytes(
      std::vector<TensorEntry> tensors, std::map<std::string, std::string> metadata,
      const SafetensorsEncodeOptions& options = PageAligned());

  // Begins a file of `tensors`, in this order and without gaps (their begin and end are set here),
  // in a directory that exists: removes an earlier attempt's file of the temporary name, takes the
  // space of the whole file from the file system, and writes the header. Only one
  // export at a time writes to a `path`. `fs` outlives the result. After an error nothing is left.
  //   INVALID_ARGUMENT    EncodeSafetensorsHeader's
  //   RESOURCE_EXHAUSTED  not enough space, with the bytes needed and free
  //   others              FileSystem's
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      FileSystem* fs, const std::string& path, std::vector<TensorEntry> tensors,
      std::map<std::string, std::string> metadata,
      const SafetensorsEncodeOptions& options = PageAligned());

  // Without a Finish that returned OK, removes the temporary file.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Where everything goes: tensor number i begins at byte header().data_offset +
  // header().tensors[i].begin of the file.
  const SafetensorsHeader& header() const { return header_; }

  // Writes `parts`, the caller's until the return, one after the other from byte `offset` of tensor
  // number `tensor` on. Each byte of a tensor is written once. A part goes past the page cache, all
  // but less than a page at each of its ends, when it has at least 64 KiB and its address and its
  // place in the file are equal modulo kPageBytes; else through the cache. INVALID_ARGUMENT: no
  // such tensor, or the range leaves it; FAILED_PRECONDITION: finished; File's errors, after which
  // Finish refuses and only the destructor remains.
  absl::Status WriteAt(size_t tensor, uint64_t offset, absl::Span<const ConstBytes> parts);

  // Makes the file appear under `path`, in place of an older file. A power loss in the middle
  // leaves the old file or the new one. FAILED_PRECONDITION: bytes of a tensor, which is named,
  // were not written (the rest may be, and Finish called again), or written twice, or a write
  // failed, or it is finished. Else FileSystem's errors; if the last step fails, flushing the
  // directory, the file exists but may be gone after a power loss.
  absl::Status Finish();

 private:
  SafetensorsWriter(FileSystem* fs, std::string path, SafetensorsHeader header);

  absl::Status Begin(const std::string& head);
  absl::Status CheckSpace();
  absl::Status Put(uint64_t offset, absl::Span<const ConstBytes> parts);
  absl::Status PutLarge(uint64_t offset, const ConstBytes& part);
  absl::Status CheckWritten() const;

  FileSystem* const fs_;
  const std::string path_;
  const std::string part_path_;
  const std::string directory_;
  const SafetensorsHeader header_;
  std::vector<std::atomic<uint64_t>> written_bytes_;  // By tensor.
  std::unique_ptr<File> file_;                        // Null before Begin and after Finish.
  bool listed_ = false;                               // part_path_ is ours and there.

  mutable Mutex mu_;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);  // The first write that failed.
};

}  // namespace ballast
