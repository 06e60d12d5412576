#include "common/io/memory_disk.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/file_error.h"
#include "common/io/volatile_names.h"

namespace ballast {
namespace {

constexpr uint64_t kOffsetMax = std::numeric_limits<int64_t>::max();

}  // namespace

class MemoryDisk::OpenFile : public File {
 public:
  OpenFile(MemoryDisk* disk, VolatileNames::NodePtr opened, std::string path, uint64_t crashes,
           bool may_write)
      : node(std::move(opened)),
        name(std::move(path)),
        crashes_before(crashes),
        writable(may_write),
        disk_(disk) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
    return disk_->Read(*this, offset, bytes, to);
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
    std::string data;
    for (const ConstBytes& part : parts) {
      data.append(static_cast<const char*>(part.data), part.bytes);
    }
    return disk_->Write(*this, offset, std::move(data));
  }
  absl::Status Sync() override { return disk_->Sync(*this); }
  absl::Status Allocate(uint64_t bytes) override { return disk_->Grow(*this, bytes); }
  absl::StatusOr<uint64_t> Size() override { return disk_->SizeOf(*this); }

  const VolatileNames::NodePtr node;
  const std::string name;
  const uint64_t crashes_before;
  const bool writable;

 private:
  MemoryDisk* const disk_;
};

MemoryDisk::MemoryDisk(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
MemoryDisk::~MemoryDisk() = default;

// Names.

absl::StatusOr<std::unique_ptr<File>> MemoryDisk::Open(const std::string& path,
                                                       const OpenOptions& options) {
  MutexLock lock(&mu_);
  const bool create = Creates(options.mode);
  BALLAST_RETURN_IF_ERROR(
      TakeFault(Operation::kOpen, "open", path, create ? &FileError : &FileReadError));
  BALLAST_ASSIGN_OR_RETURN(VolatileNames::Entry entry, names_.Locate(path));
  if (entry.node == nullptr) {
    if (!create) return FileError(ENOENT, "open", path);
    names_.MakeFile(&entry);
  } else if (options.mode == OpenMode::kCreateNew) {
    return FileError(EEXIST, "open", path);
  } else if (entry.node->is_directory) {
    return FileError(EISDIR, "open", path);
  } else if (create) {
    entry.node->content.Truncate();
  }
  return std::make_unique<OpenFile>(this, entry.node, path, crashes_,
                                    options.mode != OpenMode::kRead);
}

absl::StatusOr<std::vector<std::string>> MemoryDisk::List(const std::string& directory) {
  MutexLock lock(&mu_);
  return names_.List(directory);
}

absl::Status MemoryDisk::MakeDirectory(const std::string& directory) {
  MutexLock lock(&mu_);
  return names_.MakeDirectory(directory);
}

absl::Status MemoryDisk::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRename, absl::StrCat("rename ", from, " to"), to));
  return names_.Rename(from, to);
}

absl::Status MemoryDisk::Link(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  const std::string words = absl::StrCat("link ", from, " to");
  if (const absl::Status fault = TakeFault(Operation::kLink, words, to); !fault.ok()) {
    return absl::UnimplementedError(fault.message());  // The only reason there is here.
  }
  return names_.Link(from, to);
}

absl::Status MemoryDisk::Remove(const std::string& path) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRemove, "remove", path));
  return names_.Remove(path);
}

absl::Status MemoryDisk::RemoveAll(const std::string& directory) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRemove, "remove", directory));
  return names_.RemoveAll(directory);
}

absl::Status MemoryDisk::SyncDirectory(const std::string& directory) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kSync, "sync directory", directory));
  return names_.Sync(directory);
}

uint64_t MemoryDisk::BytesLeft() const {
  uint64_t used = 0;
  std::set<const VolatileNames::Node*> counted;
  names_.ForEachFile([&](const std::string&, const VolatileNames::Node& file) {
    if (counted.insert(&file).second) used += file.content.seen().size();
  });
  return capacity_bytes_ - std::min(capacity_bytes_, used);
}

absl::StatusOr<uint64_t> MemoryDisk::FreeBytes(const std::string& path) {
  MutexLock lock(&mu_);
  if (names_.Find(path) == nullptr) return FileError(ENOENT, "ask the free space of", path);
  return BytesLeft();
}

absl::StatusOr<bool> MemoryDisk::ShareSpace(const std::string& /*a*/, const std::string& /*b*/) {
  return true;
}

bool MemoryDisk::DirectIo(const std::string& /*directory*/) { return true; }

// Open files.

absl::Status MemoryDisk::CheckOpen(const OpenFile& file) const {
  if (file.crashes_before == crashes_) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(file.name, " was opened before the disk crashed; open it again"));
}

absl::StatusOr<size_t> MemoryDisk::Read(const OpenFile& file, uint64_t offset, size_t bytes,
                                        void* to) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckOpen(file));
  const std::string words = absl::StrCat("read ", bytes, " bytes at offset ", offset, " of");
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRead, words, file.name, &FileReadError));
  const std::string& content = file.node->content.seen();
  if (offset >= content.size()) return 0;
  return content.copy(static_cast<char*>(to), bytes, offset);
}

absl::Status MemoryDisk::Write(const OpenFile& file, uint64_t offset, std::string data) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckOpen(file));
  const std::string words = absl::StrCat("write ", data.size(), " bytes at offset ", offset, " of");
  if (!file.writable) return FileError(EBADF, words, file.name);
  if (data.empty()) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kWrite, words, file.name));
  if (std::exchange(lose_next_write_, false)) return absl::OkStatus();
  offset = std::exchange(misdirect_to_, std::nullopt).value_or(offset);
  if (offset > kOffsetMax - data.size()) return FileError(EINVAL, words, file.name);

  VolatileBytes& content = file.node->content;
  const uint64_t size = content.seen().size();
  const uint64_t end = offset + data.size();
  bool fits = true;
  if (end > size) {
    const uint64_t end_max = size + BytesLeft();
    fits = end <= end_max;
    if (!fits) data.resize(end_max > offset ? end_max - offset : 0);
  }
  if (!data.empty()) content.Write(offset, std::move(data));
  return fits ? absl::OkStatus() : FileError(ENOSPC, words, file.name);
}

absl::Status MemoryDisk::Sync(const OpenFile& file) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckOpen(file));
  const absl::Status fault = TakeFault(Operation::kSync, "sync", file.name);
  if (fault.ok()) {
    file.node->content.Save();
  } else {
    file.node->content.Abandon();
  }
  return fault;
}

absl::Status MemoryDisk::Grow(const OpenFile& file, uint64_t bytes) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckOpen(file));
  const std::string words = absl::StrCat("allocate ", bytes, " bytes for");
  if (!file.writable) return FileError(EBADF, words, file.name);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kAllocate, words, file.name));
  const uint64_t size = file.node->content.seen().size();
  if (bytes <= size) return absl::OkStatus();
  if (bytes - size > BytesLeft()) {
    return FileError(ENOSPC, words, file.name);
  }
  file.node->content.Grow(bytes);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> MemoryDisk::SizeOf(const OpenFile& file) const {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(CheckOpen(file));
  return file.node->content.seen().size();
}

// Misfortune.

void MemoryDisk::Crash(const Random& random) {
  MutexLock lock(&mu_);
  names_.Crash(random);
  ++crashes_;
}

absl::Status MemoryDisk::TakeFault(Operation operation, absl::string_view words,
                                   const std::string& path, ErrorOf* error) {
  const auto fault = faults_[operation].extract(++operations_[operation]);
  if (!fault.empty()) return error(fault.mapped(), words, path);
  const auto of_path = path_faults_.extract({operation, path});
  return of_path.empty() ? absl::OkStatus() : error(of_path.mapped(), words, path);
}

void MemoryDisk::Fail(Operation operation, uint64_t nth, int error) {
  BALLAST_CHECK(nth >= 1);
  MutexLock lock(&mu_);
  faults_[operation][operations_[operation] + nth] = error;
}

void MemoryDisk::FailNext(Operation operation, const std::string& path, int error) {
  MutexLock lock(&mu_);
  path_faults_[{operation, path}] = error;
}

void MemoryDisk::LoseNextWrite() {
  MutexLock lock(&mu_);
  lose_next_write_ = true;
}

void MemoryDisk::MisdirectNextWrite(uint64_t offset) {
  MutexLock lock(&mu_);
  misdirect_to_ = offset;
}

absl::Status MemoryDisk::FlipBit(const std::string& path, uint64_t offset, int bit) {
  BALLAST_CHECK(bit >= 0 && bit < 8);
  MutexLock lock(&mu_);
  const VolatileNames::NodePtr node = names_.Find(path);
  if (node == nullptr || node->is_directory) return FileError(ENOENT, "flip a bit of", path);
  if (offset >= node->content.seen().size()) {
    return absl::OutOfRangeError(absl::StrCat("cannot flip a bit at offset ", offset, " of ", path,
                                              ": it has ", node->content.seen().size(), " bytes"));
  }
  node->content.FlipBit(offset, bit);
  return absl::OkStatus();
}

void MemoryDisk::SetCapacity(uint64_t bytes) {
  MutexLock lock(&mu_);
  capacity_bytes_ = bytes;
}

std::vector<std::string> MemoryDisk::Paths() const {
  MutexLock lock(&mu_);
  std::vector<std::string> paths;
  names_.ForEachFile(
      [&](const std::string& path, const VolatileNames::Node&) { paths.push_back(path); });
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace ballast
