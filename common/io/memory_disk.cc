#include "common/io/memory_disk.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/file_error.h"
#include "common/io/volatile_bytes.h"

namespace ballast {
namespace {

constexpr uint64_t kOffsetMax = std::numeric_limits<int64_t>::max();

std::vector<std::string> Components(const std::string& path) {
  std::vector<std::string> names = absl::StrSplit(path, '/', absl::SkipEmpty());
  names.erase(std::remove(names.begin(), names.end(), "."), names.end());
  return names;
}

}  // namespace

// A file or a directory, as it is seen and as the medium has it for sure.
struct MemoryDisk::Node {
  using Entries = std::map<std::string, NodePtr>;

  const bool is_directory;

  Entries entries;
  Entries synced_entries;

  VolatileBytes content;

  // Changes names, either as they are seen or as the medium has them.
  static void Set(const EntryChange& change, Entries Node::*entries);

  // Becomes what a power loss leaves, here and below. `crashed`: what has become so already; a file
  // may have several names.
  void Crash(const Random& random, std::set<Node*>* crashed) {
    if (!crashed->insert(this).second) return;
    content.Crash(random);
    entries = synced_entries;
    for (const auto& [name, node] : entries) node->Crash(random, crashed);
  }

  // Calls `visit(path, node)` for each file here and below, names ascending.
  template <typename Visit>
  void ForEachFile(const std::string& path, const Visit& visit) const {
    for (const auto& [name, node] : entries) {
      const std::string below = path.empty() ? name : path + "/" + name;
      if (node->is_directory) {
        node->ForEachFile(below, visit);
      } else {
        visit(below, *node);
      }
    }
  }
};

class MemoryDisk::OpenFile : public File {
 public:
  OpenFile(MemoryDisk* disk, NodePtr opened, std::string path, uint64_t crashes, bool may_write)
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

  const NodePtr node;
  const std::string name;
  const uint64_t crashes_before;
  const bool writable;

 private:
  MemoryDisk* const disk_;
};

MemoryDisk::MemoryDisk(uint64_t capacity_bytes)
    : root_(new Node{.is_directory = true}), capacity_bytes_(capacity_bytes) {}
MemoryDisk::~MemoryDisk() = default;

// Names.

MemoryDisk::NodePtr MemoryDisk::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const std::string& name : Components(path)) {
    const auto entry = node->entries.find(name);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

absl::StatusOr<MemoryDisk::Entry> MemoryDisk::Locate(const std::string& path) const {
  std::vector<std::string> names = Components(path);
  if (names.empty()) return FileError(EBUSY, "change the root", path);
  Entry entry{.directory = root_, .name = names.back()};
  names.pop_back();
  for (const std::string& name : names) {
    const auto next = entry.directory->entries.find(name);
    if (next == entry.directory->entries.end()) return FileError(ENOENT, "find", path);
    entry.directory = next->second;
  }
  if (!entry.directory->is_directory) return FileError(ENOTDIR, "find", path);
  const auto found = entry.directory->entries.find(entry.name);
  if (found != entry.directory->entries.end()) entry.node = found->second;
  return entry;
}

void MemoryDisk::Node::Set(const EntryChange& change, Entries Node::*entries) {
  for (const Entry& entry : change) {
    if (entry.node != nullptr) {
      ((*entry.directory).*entries)[entry.name] = entry.node;
    } else {
      ((*entry.directory).*entries).erase(entry.name);
    }
  }
}

void MemoryDisk::Change(EntryChange change) {
  Node::Set(change, &Node::entries);
  unsynced_.push_back(std::move(change));
}

absl::StatusOr<std::unique_ptr<File>> MemoryDisk::Open(const std::string& path,
                                                       const OpenOptions& options) {
  MutexLock lock(&mu_);
  const bool create = Creates(options.mode);
  BALLAST_RETURN_IF_ERROR(
      TakeFault(Operation::kOpen, "open", path, create ? &FileError : &FileReadError));
  BALLAST_ASSIGN_OR_RETURN(Entry entry, Locate(path));
  if (entry.node == nullptr) {
    if (!create) return FileError(ENOENT, "open", path);
    entry.node.reset(new Node{.is_directory = false});
    Change({entry});
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
  const NodePtr node = Find(directory);
  if (node == nullptr) return FileError(ENOENT, "list", directory);
  if (!node->is_directory) return FileError(ENOTDIR, "list", directory);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  return names;
}

absl::Status MemoryDisk::MakeDirectory(const std::string& directory) {
  MutexLock lock(&mu_);
  NodePtr at = root_;
  for (const std::string& name : Components(directory)) {
    NodePtr& next = at->entries[name];
    if (next == nullptr) {
      next.reset(new Node{.is_directory = true});
      unsynced_.push_back({{at, name, next}});
    }
    if (!next->is_directory) return FileError(ENOTDIR, "make directory", directory);
    at = next;
  }
  return absl::OkStatus();
}

absl::Status MemoryDisk::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  const std::string words = absl::StrCat("rename ", from, " to");
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRename, words, to));
  BALLAST_ASSIGN_OR_RETURN(Entry old_entry, Locate(from));
  BALLAST_ASSIGN_OR_RETURN(Entry new_entry, Locate(to));
  if (old_entry.node == nullptr) return FileError(ENOENT, words, to);
  if (old_entry.node == new_entry.node) return absl::OkStatus();
  if (new_entry.node != nullptr) {
    if (new_entry.node->is_directory && !old_entry.node->is_directory) {
      return FileError(EISDIR, words, to);
    }
    if (!new_entry.node->is_directory && old_entry.node->is_directory) {
      return FileError(ENOTDIR, words, to);
    }
    if (!new_entry.node->entries.empty()) return FileError(ENOTEMPTY, words, to);
  }
  const std::vector<std::string> inner = Components(to), outer = Components(from);
  if (inner.size() > outer.size() && std::equal(outer.begin(), outer.end(), inner.begin())) {
    return FileError(EINVAL, words, to);
  }
  new_entry.node = std::exchange(old_entry.node, nullptr);
  Change({old_entry, new_entry});
  return absl::OkStatus();
}

absl::Status MemoryDisk::Link(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  const std::string words = absl::StrCat("link ", from, " to");
  if (const absl::Status fault = TakeFault(Operation::kLink, words, to); !fault.ok()) {
    return absl::UnimplementedError(fault.message());  // The only reason there is here.
  }
  BALLAST_ASSIGN_OR_RETURN(const Entry old_entry, Locate(from));
  BALLAST_ASSIGN_OR_RETURN(Entry new_entry, Locate(to));
  if (old_entry.node == nullptr) return FileError(ENOENT, words, to);
  if (new_entry.node != nullptr) return FileError(EEXIST, words, to);
  if (old_entry.node->is_directory) return FileError(EISDIR, words, to);
  new_entry.node = old_entry.node;
  Change({new_entry});
  return absl::OkStatus();
}

absl::Status MemoryDisk::Remove(const std::string& path) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRemove, "remove", path));
  BALLAST_ASSIGN_OR_RETURN(Entry entry, Locate(path));
  if (entry.node == nullptr) return FileError(ENOENT, "remove", path);
  if (entry.node->is_directory) return FileError(EISDIR, "remove", path);
  entry.node = nullptr;
  Change({entry});
  return absl::OkStatus();
}

void MemoryDisk::RemoveTree(const Entry& entry) {
  const Node::Entries children = entry.node->entries;
  for (const auto& [name, node] : children) RemoveTree({entry.node, name, node});
  Change({{entry.directory, entry.name, nullptr}});
}

absl::Status MemoryDisk::RemoveAll(const std::string& directory) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kRemove, "remove", directory));
  const absl::StatusOr<Entry> entry = Locate(directory);
  if (absl::IsNotFound(entry.status())) return absl::OkStatus();
  if (!entry.ok()) return entry.status();
  if (entry->node != nullptr) RemoveTree(*entry);
  return absl::OkStatus();
}

absl::Status MemoryDisk::SyncDirectory(const std::string& directory) {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(TakeFault(Operation::kSync, "sync directory", directory));
  const NodePtr synced = Find(directory);
  if (synced == nullptr) return FileError(ENOENT, "sync directory", directory);
  if (!synced->is_directory) return FileError(ENOTDIR, "sync directory", directory);
  // From the newest back: what touches this directory, and what went before it on the same names.
  std::set<std::pair<Node*, std::string>> names;
  std::vector<EntryChange> saved, left;
  for (; !unsynced_.empty(); unsynced_.pop_back()) {
    EntryChange& change = unsynced_.back();
    const bool save = std::any_of(change.begin(), change.end(), [&](const Entry& entry) {
      return entry.directory == synced || names.contains({entry.directory.get(), entry.name});
    });
    if (save) {
      for (const Entry& entry : change) names.insert({entry.directory.get(), entry.name});
    }
    (save ? saved : left).push_back(std::move(change));
  }
  unsynced_.assign(std::make_move_iterator(left.rbegin()), std::make_move_iterator(left.rend()));
  for (auto change = saved.rbegin(); change != saved.rend(); ++change) {
    Node::Set(*change, &Node::synced_entries);
  }
  return absl::OkStatus();
}

uint64_t MemoryDisk::BytesLeft() const {
  uint64_t used = 0;
  std::set<const Node*> counted;
  root_->ForEachFile("", [&](const std::string&, const Node& file) {
    if (counted.insert(&file).second) used += file.content.seen().size();
  });
  return capacity_bytes_ - std::min(capacity_bytes_, used);
}

absl::StatusOr<uint64_t> MemoryDisk::FreeBytes(const std::string& path) {
  MutexLock lock(&mu_);
  if (Find(path) == nullptr) return FileError(ENOENT, "ask the free space of", path);
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
  std::set<std::pair<Node*, std::string>> lost;
  for (const EntryChange& change : unsynced_) {
    const bool cut_off = std::any_of(change.begin(), change.end(), [&](const Entry& entry) {
      return lost.contains({entry.directory.get(), entry.name});
    });
    if (!cut_off && random() % 2 == 0) {
      Node::Set(change, &Node::synced_entries);
    } else {
      for (const Entry& entry : change) lost.insert({entry.directory.get(), entry.name});
    }
  }
  unsynced_.clear();
  std::set<Node*> crashed;
  root_->Crash(random, &crashed);
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
  const NodePtr node = Find(path);
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
  root_->ForEachFile("", [&](const std::string& path, const Node&) { paths.push_back(path); });
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace ballast
