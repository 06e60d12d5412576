// Files as durable formats see them: positional reads and writes, flushes with a result, and
// directories whose entries survive only when asked for. One interface for the real file system,
// for decorators that inject faults and for the simulator's disk.
// Comes from: server/durability, server/meta, tests. Goes to: POSIX (posix_file.cc), memory_disk.h.
// Thread safety: FileSystem is thread-safe; a File's methods may be called from any thread, but
// writes to overlapping ranges must not run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Unit of memory addresses, offsets and lengths in direct I/O.
constexpr size_t kPageBytes = 4096;

struct ConstBytes {
  const void* data = nullptr;
  size_t bytes = 0;
};

// An open file. Closed by the destructor, which reports nothing: a caller that needs the bytes
// calls Sync first. Errors of all methods name the path and the operation:
//   RESOURCE_EXHAUSTED  no space left (or quota), with the bytes asked for
//   DATA_LOSS           the device cannot give back stored data (EIO of a read or list, or when an
//                       existing file is opened)
//   INTERNAL            anything else the system refused, also EIO of a write or flush, after which
//                       the file must not be trusted
class File {
 public:
  virtual ~File() = default;

  // Reads up to `bytes` bytes at `offset` into `to`; fewer only at the end of the file. A file
  // opened for direct I/O wants `to`, `offset` and `bytes` to be multiples of kPageBytes, and reads
  // through the page cache when they are not.
  virtual absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) = 0;

  // Writes all of `parts`, one after the other, at `offset`; short writes are continued. Direct I/O
  // as for ReadAt.
  virtual absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) = 0;

  // ReadAt and WriteAt that may continue after the call: `done` runs once, on any thread, which it
  // must not hold up. Memory stays valid, and for a write unchanged, until then; the file, too. A
  // caller that needs an order among requests waits for one before it begins the next; Sync covers
  // the finished ones. Files without an engine (engine_files.h) finish before they return.
  virtual void StartRead(uint64_t offset, size_t bytes, void* to,
                         std::function<void(absl::StatusOr<size_t>)> done) {
    done(ReadAt(offset, bytes, to));
  }
  virtual void StartWrite(uint64_t offset, absl::Span<const ConstBytes> parts,
                          std::function<void(absl::Status)> done) {
    done(WriteAt(offset, parts));
  }

  // The descriptor that an engine may hand whole pages to, past the page cache; -1: none.
  virtual int direct_descriptor() const { return -1; }

  // Returns when everything written so far, and the file's size, survives power loss. After an
  // error nothing may be assumed about any earlier write, and calling it again proves nothing.
  virtual absl::Status Sync() = 0;

  // Reserves space so that writes within `bytes` cannot run out of it. The file is at least `bytes`
  // long afterwards.
  virtual absl::Status Allocate(uint64_t bytes) = 0;

  virtual absl::StatusOr<uint64_t> Size() = 0;
};

enum class OpenMode : uint8_t {
  kRead,       // must exist
  kWrite,      // read and write, must exist
  kCreate,     // read and write, created or emptied
  kCreateNew,  // read and write, ALREADY_EXISTS when it exists
};

constexpr bool Creates(OpenMode mode) {
  return mode == OpenMode::kCreate || mode == OpenMode::kCreateNew;
}

struct OpenOptions {
  OpenMode mode = OpenMode::kRead;
  // Past the page cache where the file system can (O_DIRECT); silently through it where not, see
  // FileSystem::DirectIo.
  bool direct = false;
  // An engine serves this file before others: a vote waits for it.
  bool urgent = false;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Errors as File's, and NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED; INVALID_ARGUMENT for an
  // existing path of anything but a regular file: a FIFO would hold its reader up.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                                     const OpenOptions& options) = 0;
  // Names in `directory`, ascending, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // Makes the directory and its missing parents; it may exist.
  virtual absl::Status MakeDirectory(const std::string& directory) = 0;
  // Replaces `to` if it exists. Survives power loss only after SyncDirectory.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Gives the file `from` the second name `to`: one file, whose bytes stay until both are removed.
  // Survives power loss only after SyncDirectory. ALREADY_EXISTS; UNIMPLEMENTED where links are
  // impossible: `to` is on another device, or the file system has none, no more, or none for this
  // user.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // NOT_FOUND when it is not there.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Removes a directory with everything in it; it may be missing.
  virtual absl::Status RemoveAll(const std::string& directory) = 0;
  // Returns when creations, links, renames and removals in `directory` so far survive power loss.
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
  // Bytes that may still be written by this user in the file system of `path`.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;
  // Whether writes below one of the two directories, which exist, take bytes free for the other.
  virtual absl::StatusOr<bool> ShareSpace(const std::string& a, const std::string& b) = 0;
  // Whether files in `directory` can be opened past the page cache.
  virtual bool DirectIo(const std::string& directory) = 0;
};

// The machine's own file system; lives as long as the process.
FileSystem* PosixFileSystem();

// Writes `content` to `path` so that after a crash or power loss there is either the old content or
// the new one: a temporary name next to it, Sync, Rename, SyncDirectory.
absl::Status ReplaceFile(FileSystem* fs, const std::string& path, absl::string_view content);
// The whole file. RESOURCE_EXHAUSTED when it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadWholeFile(FileSystem* fs, const std::string& path,
                                          size_t bytes_max);

}  // namespace ballast
