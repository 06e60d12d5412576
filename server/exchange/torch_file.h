// Files that torch.load(weights_only=True) reads, written without torch: a zip archive of stored
// entries: a pickle, and the bytes of each tensor.
//
//   archive/data.pkl     the values; a tensor names its record
//   archive/byteorder    "little"
//   archive/data/0 ...   fp32, little-endian, row-major
//   archive/version      "3\n"
//
// Comes from: UniversalFiles. Goes to: TorchPickle, StoredZip, a FileSystem. Source:
// torch/serialization.py and caffe2/serialize of 2.13.
// Thread safety: TorchTensorFile::Write may be called from any thread, for ranges that do not
// overlap; all else is for one thread, before or after these calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/io/file.h"
#include "server/exchange/stored_zip.h"

namespace ballast::server {

// A whole file of a pickle, and records of one number each.
std::string EncodeTorchFile(const std::string& pickle, const std::vector<float>& records);

// A file of {"param": a tensor, "cat_dim": 0}, whose values come in any order. It is open only
// within a call: an export has thousands of these.
class TorchTensorFile {
 public:
  // Bytes of the file for a tensor of `shape`.
  static uint64_t FileBytes(const std::vector<int64_t>& shape);

  // Makes the file, and takes its space from the file system. `fs` outlives the result. Errors as
  // FileSystem's; ALREADY_EXISTS.
  static absl::StatusOr<std::unique_ptr<TorchTensorFile>> Create(FileSystem* fs,
                                                                 const std::string& path,
                                                                 const std::vector<int64_t>& shape);

  // Writes elements [begin, begin + count) of the flat tensor. Each element is written once. True
  // for one call, after which no element is missing. A tensor without elements needs no call.
  absl::StatusOr<bool> Write(uint64_t begin, const char* values, uint64_t count);
  // All elements were written: completes the file, which survives power loss once its directory is
  // flushed. INTERNAL when elements are missing.
  absl::Status Finish();

 private:
  struct Piece {
    uint64_t begin = 0;  // bytes
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };

  TorchTensorFile(FileSystem* fs, std::string path, StoredZip zip, uint64_t elements)
      : fs_(fs),
        path_(std::move(path)),
        zip_(std::move(zip)),
        elements_(elements),
        left_(elements) {}
  uint32_t Crc();

  FileSystem* const fs_;
  const std::string path_;
  StoredZip zip_;
  const uint64_t elements_;
  std::atomic<uint64_t> left_;  // elements not written
  Mutex mu_;
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
