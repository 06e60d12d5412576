// The names of a disk that may lose power: files and directories as they are seen, as the medium
// has them for sure, and the changes in between. Comes from: memory_disk.cc. Goes to: nothing.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/volatile_bytes.h"

namespace ballast {

// Paths are relative to one root, with or without a leading "/"; "." is dropped from them, and ".."
// is a name like any other. Errors are those that FileError forms for the system's errno value.
class VolatileNames {
 public:
  // A file or a directory. A file has its bytes; it may have several names.
  struct Node;
  using NodePtr = std::shared_ptr<Node>;  // Open files and changes of names share it.
  using Entries = std::map<std::string, NodePtr>;

  struct Node {
    const bool is_directory = false;
    VolatileBytes content = {};
    Entries entries = {};         // As they are seen.
    Entries synced_entries = {};  // As the medium has them.
  };

  // A name and its node.
  struct Entry {
    NodePtr directory;
    std::string name;
    NodePtr node;  // Null for nothing.
  };

  VolatileNames();

  // What `path` stands for; null for nothing.
  NodePtr Find(const std::string& path) const;
  // The entry of `path`; its node is null when there is none. Errors: ENOENT and ENOTDIR of the
  // parent; EBUSY of the root.
  absl::StatusOr<Entry> Locate(const std::string& path) const;
  // Names in a directory, ascending. Errors: ENOENT, ENOTDIR.
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) const;
  // Calls `visit` for each file and each of its names.
  void ForEachFile(
      const std::function<void(const std::string& path, const Node& file)>& visit) const;

  // Makes an empty file where `entry` has none, and sets its node.
  void MakeFile(Entry* entry);
  // Makes a directory and those above it. ENOTDIR.
  absl::Status MakeDirectory(const std::string& directory);
  // Both names change together or not at all. Errors: ENOENT, EISDIR, ENOTDIR, ENOTEMPTY, and
  // EINVAL for a directory that would go into itself.
  absl::Status Rename(const std::string& from, const std::string& to);
  // Gives a file a second name. Errors: ENOENT, EEXIST, EISDIR.
  absl::Status Link(const std::string& from, const std::string& to);
  // Removes a file's name. Errors: ENOENT, EISDIR.
  absl::Status Remove(const std::string& path);
  // Removes a name and all below it; no error when there is none.
  absl::Status RemoveAll(const std::string& path);

  // The medium has the changes of this directory's names, and earlier ones of the same names.
  // Errors: ENOENT, ENOTDIR.
  absl::Status Sync(const std::string& directory);
  // Power loss: each unsynced change is kept or lost, together with the later changes of the same
  // names; files lose bytes as VolatileBytes::Crash does. Always 0 from `random` keeps all, always
  // 1 loses all.
  void Crash(const std::function<uint64_t()>& random);

 private:
  // Names that change together or not at all: one, or both of a rename.
  using Change = std::vector<Entry>;

  static void Set(const Change& change, Entries Node::*entries);
  void Apply(Change change);
  void RemoveTree(const Entry& entry);

  const NodePtr root_;
  std::vector<Change> unsynced_;  // Oldest first.
};

}  // namespace ballast
