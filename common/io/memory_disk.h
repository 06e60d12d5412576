// A disk in memory that loses unsynced data: for the simulator and for tests of everything that
// claims to survive power loss. It is as mean as POSIX allows:
//   - Written bytes are safe after the file's Sync. Until then each write may, on its own, be
//   there,
//     be missing, or be there in some of its 512-byte sectors.
//   - Created, renamed and removed names are safe after SyncDirectory of their directory, also
//   those
//     of directories and of files synced themselves. Until then each may be missing, together with
//     the later changes of the same names.
//   - After a failed Sync the bytes that it was to save are readable, and no later Sync saves them.
// Comes from: tests, the simulator. Goes to: whatever takes a FileSystem.
// Thread safety: thread-safe; one mutex. No clock and no chance of its own: the same calls give the
// same disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/io/file.h"
#include "common/io/file_error.h"
#include "common/io/volatile_names.h"

namespace ballast {

// Must outlive the files it opened. Paths are absolute or relative to the same root; "." is dropped
// from them and ".." is a name like any other.
class MemoryDisk : public FileSystem {
 public:
  // Source of a crash's choices. Answering always 0 keeps everything, always 1 loses everything
  // unsynced.
  using Random = std::function<uint64_t()>;

  // Operations that tests can make fail. kSync is File::Sync and SyncDirectory.
  enum class Operation : uint8_t {
    kOpen,
    kRead,
    kWrite,
    kAllocate,
    kSync,
    kRename,
    kRemove,
    kLink
  };

  explicit MemoryDisk(uint64_t capacity_bytes = uint64_t{1} << 30);
  ~MemoryDisk() override;

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status MakeDirectory(const std::string& directory) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveAll(const std::string& directory) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;
  // Always.
  absl::StatusOr<bool> ShareSpace(const std::string& a, const std::string& b) override;
  // Always: the disk has no cache to go past, and nothing differs.
  bool DirectIo(const std::string& directory) override;

  // Power loss and restart. Files left open answer INTERNAL from now on. `random` must not call the
  // disk.
  void Crash(const Random& random);

  // Makes the `nth` operation of this kind from now on (1: the next) fail with an errno value, EIO
  // or ENOSPC for example. A failed write has written nothing. Several may be pending.
  void Fail(Operation operation, uint64_t nth, int error);
  // The same for the next one on the file `path`, regardless of calls on others.
  void FailNext(Operation operation, const std::string& path, int error);
  // The next write is acknowledged and does not happen.
  void LoseNextWrite();
  // The next write goes to `offset` of its file instead.
  void MisdirectNextWrite(uint64_t offset);
  // Flips bit `bit` (0 to 7) of the byte at `offset`, wherever the disk holds that byte. NOT_FOUND
  // when there is no such file, OUT_OF_RANGE when it is shorter.
  absl::Status FlipBit(const std::string& path, uint64_t offset, int bit);
  // A write larger than the room left writes a part and fails.
  void SetCapacity(uint64_t bytes);
  // All files, ascending, without a leading "/".
  std::vector<std::string> Paths() const;

 private:
  class OpenFile;

  using ErrorOf = absl::Status(int error, absl::string_view words, absl::string_view path);
  absl::Status TakeFault(Operation operation, absl::string_view words, const std::string& path,
                         ErrorOf* error = &FileError) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t BytesLeft() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Status CheckOpen(const OpenFile& file) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<size_t> Read(const OpenFile& file, uint64_t offset, size_t bytes, void* to);
  absl::Status Write(const OpenFile& file, uint64_t offset, std::string data);
  absl::Status Sync(const OpenFile& file);
  absl::Status Grow(const OpenFile& file, uint64_t bytes);
  absl::StatusOr<uint64_t> SizeOf(const OpenFile& file) const;

  mutable Mutex mu_;
  VolatileNames names_ ABSL_GUARDED_BY(mu_);
  uint64_t capacity_bytes_ ABSL_GUARDED_BY(mu_);
  uint64_t crashes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Operation, std::map<uint64_t, int>> faults_ ABSL_GUARDED_BY(mu_);  // Count -> errno.
  std::map<std::pair<Operation, std::string>, int> path_faults_ ABSL_GUARDED_BY(mu_);
  std::map<Operation, uint64_t> operations_ ABSL_GUARDED_BY(mu_);
  bool lose_next_write_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<uint64_t> misdirect_to_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast
