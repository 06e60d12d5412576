// The machine's own file system as a FileSystem, and the two helpers for small whole files.
//
// Direct I/O: a file opened with `direct` has two descriptors, one with O_DIRECT for requests whose
// memory, offset and length are whole pages, and one through the page cache for all others. Mixing
// them is coherent on Linux: a direct read first writes back the cached pages of its range, a
// direct write also drops them afterwards. Only a direct write that overlaps a cached write still
// under way is unsafe, and file.h forbids it. A direct request that the file system refuses after
// all (EINVAL) goes through the cache.
//
// Comes from: server/durability, server/meta. Goes to: the kernel.
// Thread safety: as file.h says; a file's descriptors never change, its one flag is an atomic.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/file.h"
#include "common/io/file_error.h"

namespace ballast {
namespace {

constexpr int kParts = 64;  // Parts handed to the kernel in one call.
alignas(kPageBytes) constexpr std::array<char, size_t{64} << 10> kZeros{};

// Repeats `call` while a signal interrupts it.
template <typename Call>
auto Uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// Owns one descriptor; -1 is none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  bool ok() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

Descriptor OpenDescriptor(const std::string& path, int flags) {
  constexpr mode_t kMode = 0644;
  return Descriptor(Uninterrupted([&] { return open(path.c_str(), flags | O_CLOEXEC, kMode); }));
}

int OpenFlags(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY | O_NONBLOCK;  // A FIFO would wait for a writer.
    case OpenMode::kWrite:
      return O_RDWR;
    case OpenMode::kCreate:
      return O_RDWR | O_CREAT | O_TRUNC;
    case OpenMode::kCreateNew:
      return O_RDWR | O_CREAT | O_EXCL;
  }
  return O_RDONLY;
}

bool Aligned(uint64_t value) { return value % kPageBytes == 0; }
bool Aligned(const void* data, size_t bytes) {
  return Aligned(reinterpret_cast<uintptr_t>(data)) && Aligned(bytes);
}

class PosixFile : public File {
 public:
  PosixFile(std::string path, Descriptor cached, Descriptor direct)
      : path_(std::move(path)), cached_(std::move(cached)), direct_(std::move(direct)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
    int fd = Choose(Aligned(offset) && Aligned(to, bytes));
    size_t done = 0;
    while (done < bytes) {
      const ssize_t count = Uninterrupted(
          [&] { return pread(fd, static_cast<char*>(to) + done, bytes - done, offset + done); });
      if (count == 0) break;
      if (count > 0) {
        done += count;
      } else if (!FallBack(&fd)) {
        return FileReadError(
            errno, absl::StrCat("read ", bytes, " bytes at offset ", offset, " of"), path_);
      }
    }
    return done;
  }

  absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
    bool aligned = Aligned(offset);
    uint64_t left = 0;
    for (const ConstBytes& part : parts) {
      aligned = aligned && Aligned(part.data, part.bytes);
      left += part.bytes;
    }
    int fd = Choose(aligned);
    size_t written = 0;  // Of the first of `parts`.
    while (left > 0) {
      const ssize_t count = WriteSome(fd, offset, parts, written);
      if (count > 0) {
        offset += count;
        left -= count;
        written += count;
        for (; !parts.empty() && written >= parts[0].bytes; parts.remove_prefix(1)) {
          written -= parts[0].bytes;
        }
      } else if (count == 0 || !FallBack(&fd)) {
        // A write of no bytes sets no errno; the cause is a full device.
        return FileError(count == 0 ? ENOSPC : errno,
                         absl::StrCat("write ", left, " bytes at offset ", offset, " of"), path_);
      }
    }
    return absl::OkStatus();
  }

  int direct_descriptor() const override { return direct_.ok() ? direct_.get() : -1; }

  absl::Status Sync() override {
    // The kernel reports a failed write-back once and then forgets the pages, so that a second call
    // would succeed although the bytes are gone. One descriptor's error counts for both.
    if (sync_failed_.load()) return FileError(EIO, "sync again after a failed sync", path_);
    if (Uninterrupted([&] { return fdatasync(cached_.get()); }) == 0) return absl::OkStatus();
    const int error = errno;
    sync_failed_.store(true);
    return FileError(error, "sync", path_);
  }

  absl::Status Allocate(uint64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    if (Uninterrupted([&] { return fallocate(cached_.get(), 0, 0, bytes); }) == 0) {
      return absl::OkStatus();
    }
    if (errno != EOPNOTSUPP) {
      return FileError(errno, absl::StrCat("allocate ", bytes, " bytes for"), path_);
    }
    return WriteZeros(bytes);
  }

  absl::StatusOr<uint64_t> Size() override {
    struct stat status {};
    if (fstat(cached_.get(), &status) != 0) return FileReadError(errno, "ask the size of", path_);
    return status.st_size;
  }

 private:
  int Choose(bool aligned) const { return aligned && direct_.ok() ? direct_.get() : cached_.get(); }

  // After an error of `*fd`: true when the same request is to be made through the cache.
  bool FallBack(int* fd) const {
    if (errno != EINVAL || *fd != direct_.get()) return false;
    *fd = cached_.get();
    return true;
  }

  // One write from byte `written` of the first part on; returns as pwritev does.
  static ssize_t WriteSome(int fd, uint64_t offset, absl::Span<const ConstBytes> parts,
                           size_t written) {
    std::array<iovec, kParts> batch;
    int count = 0;
    for (const ConstBytes& part : parts) {
      if (part.bytes == 0) continue;
      char* const data = static_cast<char*>(const_cast<void*>(part.data));
      batch[count++] = {data + written, part.bytes - written};
      written = 0;
      if (count == kParts) break;
    }
    return Uninterrupted([&] { return pwritev(fd, batch.data(), count, offset); });
  }

  // For file systems without fallocate: takes the space by writing after the file's end.
  absl::Status WriteZeros(uint64_t bytes) {
    BALLAST_ASSIGN_OR_RETURN(uint64_t end, Size());
    while (end < bytes) {
      const size_t count = std::min<uint64_t>(kZeros.size() - end % kPageBytes, bytes - end);
      BALLAST_RETURN_IF_ERROR(WriteAt(end, {ConstBytes{kZeros.data(), count}}));
      end += count;
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const Descriptor cached_;
  const Descriptor direct_;
  std::atomic<bool> sync_failed_{false};
};

// Adds the descriptor that goes past the cache; none where the file system refuses it.
absl::StatusOr<Descriptor> OpenDirect(const std::string& path, bool writable) {
  Descriptor direct = OpenDescriptor(path, O_DIRECT | (writable ? O_RDWR : O_RDONLY));
  if (!direct.ok() && errno != EINVAL && errno != EOPNOTSUPP) {
    return FileReadError(errno, "open for direct I/O", path);
  }
  return direct;
}

class PosixFiles : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    Descriptor cached = OpenDescriptor(path, OpenFlags(options.mode));
    const auto error = Creates(options.mode) ? &FileError : &FileReadError;
    if (!cached.ok()) return error(errno, "open", path);
    struct stat about = {};
    if (fstat(cached.get(), &about) != 0) return FileReadError(errno, "look at", path);
    if (!S_ISREG(about.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
    }
    Descriptor direct;
    if (options.direct) {
      // Read-ahead would bring pages into the cache that the next direct write must drop.
      posix_fadvise(cached.get(), 0, 0, POSIX_FADV_RANDOM);
      BALLAST_ASSIGN_OR_RETURN(direct, OpenDirect(path, options.mode != OpenMode::kRead));
    }
    return std::make_unique<PosixFile>(path, std::move(cached), std::move(direct));
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(directory, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) return FileReadError(error.value(), "list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status MakeDirectory(const std::string& directory) override {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    return error ? FileError(error.value(), "make directory", directory) : absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return FileError(errno, absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Link(const std::string& from, const std::string& to) override {
    if (link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    const int error = errno;
    const absl::Status status = FileError(error, absl::StrCat("link ", from, " to"), to);
    return CannotLink(error) ? absl::UnimplementedError(status.message()) : status;
  }

  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0) return absl::OkStatus();
    return FileError(errno, "remove", path);
  }

  absl::Status RemoveAll(const std::string& directory) override {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    return error ? FileError(error.value(), "remove", directory) : absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    const Descriptor opened = OpenDescriptor(directory, O_RDONLY | O_DIRECTORY);
    if (!opened.ok()) return FileError(errno, "open directory", directory);
    if (Uninterrupted([&] { return fsync(opened.get()); }) == 0) return absl::OkStatus();
    return FileError(errno, "sync directory", directory);
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs status {};
    if (Uninterrupted([&] { return statvfs(path.c_str(), &status); }) != 0) {
      return FileError(errno, "ask the free space of", path);
    }
    return uint64_t{status.f_bavail} * status.f_frsize;
  }

  absl::StatusOr<bool> ShareSpace(const std::string& a, const std::string& b) override {
    struct stat of_a {
    }, of_b{};
    if (stat(a.c_str(), &of_a) != 0) return FileError(errno, "ask the device of", a);
    if (stat(b.c_str(), &of_b) != 0) return FileError(errno, "ask the device of", b);
    return of_a.st_dev == of_b.st_dev;
  }

  bool DirectIo(const std::string& directory) override {
    // Some file systems accept the flag and refuse the request, so one page is written.
    std::string path = directory + "/.direct-io-XXXXXX";
    const Descriptor made(mkostemp(path.data(), O_CLOEXEC));
    if (!made.ok()) return false;
    const absl::StatusOr<Descriptor> direct = OpenDirect(path, /*writable=*/true);
    unlink(path.c_str());
    return direct.ok() && direct->ok() &&
           Uninterrupted([&] { return pwrite(direct->get(), kZeros.data(), kPageBytes, 0); }) ==
               static_cast<ssize_t>(kPageBytes);
  }
};

absl::Status WriteNewFile(FileSystem* fs, const std::string& path, absl::string_view content) {
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           fs->Open(path, {.mode = OpenMode::kCreate}));
  BALLAST_RETURN_IF_ERROR(file->WriteAt(0, {ConstBytes{content.data(), content.size()}}));
  return file->Sync();
}

}  // namespace

FileSystem* PosixFileSystem() {
  static FileSystem* const files = new PosixFiles;
  return files;
}

absl::Status ReplaceFile(FileSystem* fs, const std::string& path, absl::string_view content) {
  const std::string temporary = path + ".tmp";
  absl::Status written = WriteNewFile(fs, temporary, content);
  if (written.ok()) written = fs->Rename(temporary, path);
  if (!written.ok()) {
    fs->Remove(temporary).IgnoreError();  // The next attempt would empty it anyway.
    return written;
  }
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return fs->SyncDirectory(directory.empty() ? "." : directory);
}

absl::StatusOr<std::string> ReadWholeFile(FileSystem* fs, const std::string& path,
                                          size_t bytes_max) {
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs->Open(path, {}));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  if (bytes > bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(path, " has ", bytes, " bytes, the limit is ",
                                                     bytes_max,
                                                     "; check that it is the right file"));
  }
  std::string content(bytes, '\0');
  BALLAST_ASSIGN_OR_RETURN(const size_t read, file->ReadAt(0, bytes, content.data()));
  content.resize(read);
  return content;
}

}  // namespace ballast
