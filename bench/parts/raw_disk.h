// The disk's own limits, measured along with the subject of the comparison: a file written once,
// raw O_DIRECT reads and writes of it, and fio where it is installed.
// Comes from: the benchmarks of disks. Goes to: the kernel, fio.
// Thread safety: one thread; Read uses threads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"

namespace ballast::bench {

inline constexpr size_t kBlockBytes = size_t{4} << 20;

// Bytes that may still be written below `path`; 0 when the system does not say.
uint64_t FreeDiskBytes(const std::string& path);
// Memory that processes may still take, bytes.
uint64_t AvailableMemoryBytes();

class RawFile {
 public:
  // Makes the file and writes all of it once, with random bytes: later writes allocate nothing, and
  // reads come from the disk. `bytes` is a multiple of kBlockBytes. Errors: INTERNAL, with the
  // system's reason; also when the file system has no O_DIRECT.
  static absl::StatusOr<std::unique_ptr<RawFile>> Create(const std::string& path, uint64_t bytes);
  ~RawFile();
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }

  // pwrite until all is written; fdatasync.
  absl::Status Write(uint64_t offset, const void* data, size_t bytes);
  absl::Status Sync();

  // Bytes per second of writing groups of `group_bytes` (a multiple of kBlockBytes) in blocks, one
  // after the other, with one fdatasync per group, for `seconds`.
  absl::StatusOr<double> WriteGroups(size_t group_bytes, double seconds);
  // The same with `depth` threads that each write the next block, and one fdatasync at the end.
  absl::StatusOr<double> WriteDeep(int depth, double seconds);
  // Bytes per second of reading the whole file once, with `depth` threads that each read the next
  // block.
  absl::StatusOr<double> ReadDeep(int depth);

 private:
  RawFile(std::string path, uint64_t bytes, int fd, Arena blocks)
      : path_(std::move(path)), bytes_(bytes), fd_(fd), blocks_(std::move(blocks)) {}
  // One of several in turn: more than a cache keeps, like the data of a log.
  const char* BlockOf(uint64_t number) const {
    return blocks_.data() + number * kBlockBytes % blocks_.bytes();
  }
  // Seconds of `depth` threads transferring `blocks` blocks from block `first` on, round and round.
  absl::StatusOr<double> Transfer(int depth, uint64_t first, uint64_t blocks, bool write);

  const std::string path_;
  const uint64_t bytes_;
  const int fd_;
  const Arena blocks_;
  uint64_t next_ = 0;  // block
};

enum class FioMode : uint8_t { kRead, kWrite, kMixed };

// fio with O_DIRECT on an existing file.
class Fio {
 public:
  // None when there is no fio on the PATH.
  static std::optional<Fio> Find();
  const std::string& version() const { return version_; }
  // How Write runs it, for people.
  std::string Describe() const;
  // Bytes per second of `seconds` of writing to `path`, whose size is `bytes`.
  absl::StatusOr<double> Write(const std::string& path, uint64_t bytes, double seconds) const;
  // The same of blocks of `block` bytes with `depth` of them under way, reads and writes together;
  // needs fio's libaio engine.
  absl::StatusOr<double> Run(FioMode mode, const std::string& path, uint64_t bytes, uint64_t block,
                             int depth, double seconds) const;

 private:
  Fio(std::string version, std::string engine)
      : version_(std::move(version)), engine_(std::move(engine)) {}
  std::string version_;
  std::string engine_;
};

}  // namespace ballast::bench
