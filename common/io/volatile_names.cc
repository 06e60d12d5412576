#include "common/io/volatile_names.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/io/file_error.h"

namespace ballast {
namespace {

using Node = VolatileNames::Node;

std::vector<std::string> Components(const std::string& path) {
  std::vector<std::string> names = absl::StrSplit(path, '/', absl::SkipEmpty());
  names.erase(std::remove(names.begin(), names.end(), "."), names.end());
  return names;
}

void VisitFiles(const std::string& path, const Node& directory,
                const std::function<void(const std::string&, const Node&)>& visit) {
  for (const auto& [name, node] : directory.entries) {
    const std::string below = path.empty() ? name : path + "/" + name;
    if (node->is_directory) {
      VisitFiles(below, *node, visit);
    } else {
      visit(below, *node);
    }
  }
}

// Applies a power loss to a node and all below it. `crashed`: nodes done already; a file may have
// several names.
void CrashNode(Node* node, const std::function<uint64_t()>& random, std::set<Node*>* crashed) {
  if (!crashed->insert(node).second) return;
  node->content.Crash(random);
  node->entries = node->synced_entries;
  for (const auto& [name, child] : node->entries) CrashNode(child.get(), random, crashed);
}

// Whether `path` lies below `above`.
bool IsBelow(const std::string& path, const std::string& above) {
  const std::vector<std::string> inner = Components(path), outer = Components(above);
  return inner.size() > outer.size() && std::equal(outer.begin(), outer.end(), inner.begin());
}

}  // namespace

VolatileNames::VolatileNames() : root_(new Node{.is_directory = true}) {}

VolatileNames::NodePtr VolatileNames::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const std::string& name : Components(path)) {
    const auto entry = node->entries.find(name);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

absl::StatusOr<VolatileNames::Entry> VolatileNames::Locate(const std::string& path) const {
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

absl::StatusOr<std::vector<std::string>> VolatileNames::List(const std::string& directory) const {
  const NodePtr node = Find(directory);
  if (node == nullptr) return FileError(ENOENT, "list", directory);
  if (!node->is_directory) return FileError(ENOTDIR, "list", directory);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  return names;
}

void VolatileNames::ForEachFile(
    const std::function<void(const std::string& path, const Node& file)>& visit) const {
  VisitFiles("", *root_, visit);
}

void VolatileNames::Set(const Change& change, Entries Node::*entries) {
  for (const Entry& entry : change) {
    if (entry.node != nullptr) {
      ((*entry.directory).*entries)[entry.name] = entry.node;
    } else {
      ((*entry.directory).*entries).erase(entry.name);
    }
  }
}

void VolatileNames::Apply(Change change) {
  Set(change, &Node::entries);
  unsynced_.push_back(std::move(change));
}

void VolatileNames::MakeFile(Entry* entry) {
  entry->node.reset(new Node{.is_directory = false});
  Apply({*entry});
}

absl::Status VolatileNames::MakeDirectory(const std::string& directory) {
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

absl::Status VolatileNames::Rename(const std::string& from, const std::string& to) {
  const std::string words = absl::StrCat("rename ", from, " to");
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
  if (IsBelow(to, from)) return FileError(EINVAL, words, to);
  new_entry.node = std::exchange(old_entry.node, nullptr);
  Apply({old_entry, new_entry});
  return absl::OkStatus();
}

absl::Status VolatileNames::Link(const std::string& from, const std::string& to) {
  const std::string words = absl::StrCat("link ", from, " to");
  BALLAST_ASSIGN_OR_RETURN(const Entry old_entry, Locate(from));
  BALLAST_ASSIGN_OR_RETURN(Entry new_entry, Locate(to));
  if (old_entry.node == nullptr) return FileError(ENOENT, words, to);
  if (new_entry.node != nullptr) return FileError(EEXIST, words, to);
  if (old_entry.node->is_directory) return FileError(EISDIR, words, to);
  new_entry.node = old_entry.node;
  Apply({new_entry});
  return absl::OkStatus();
}

absl::Status VolatileNames::Remove(const std::string& path) {
  BALLAST_ASSIGN_OR_RETURN(Entry entry, Locate(path));
  if (entry.node == nullptr) return FileError(ENOENT, "remove", path);
  if (entry.node->is_directory) return FileError(EISDIR, "remove", path);
  entry.node = nullptr;
  Apply({entry});
  return absl::OkStatus();
}

void VolatileNames::RemoveTree(const Entry& entry) {
  const Entries children = entry.node->entries;
  for (const auto& [name, node] : children) RemoveTree({entry.node, name, node});
  Apply({{entry.directory, entry.name, nullptr}});
}

absl::Status VolatileNames::RemoveAll(const std::string& path) {
  const absl::StatusOr<Entry> entry = Locate(path);
  if (absl::IsNotFound(entry.status())) return absl::OkStatus();
  if (!entry.ok()) return entry.status();
  if (entry->node != nullptr) RemoveTree(*entry);
  return absl::OkStatus();
}

absl::Status VolatileNames::Sync(const std::string& directory) {
  const NodePtr synced = Find(directory);
  if (synced == nullptr) return FileError(ENOENT, "sync directory", directory);
  if (!synced->is_directory) return FileError(ENOTDIR, "sync directory", directory);
  // From the newest back: changes of this directory, and earlier ones of the same names.
  std::set<std::pair<Node*, std::string>> names;
  std::vector<Change> saved, left;
  for (; !unsynced_.empty(); unsynced_.pop_back()) {
    Change& change = unsynced_.back();
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
    Set(*change, &Node::synced_entries);
  }
  return absl::OkStatus();
}

void VolatileNames::Crash(const std::function<uint64_t()>& random) {
  std::set<std::pair<Node*, std::string>> lost;
  for (const Change& change : unsynced_) {
    const bool cut_off = std::any_of(change.begin(), change.end(), [&](const Entry& entry) {
      return lost.contains({entry.directory.get(), entry.name});
    });
    if (!cut_off && random() % 2 == 0) {
      Set(change, &Node::synced_entries);
    } else {
      for (const Entry& entry : change) lost.insert({entry.directory.get(), entry.name});
    }
  }
  unsynced_.clear();
  std::set<Node*> crashed;
  CrashNode(root_.get(), random, &crashed);
}

}  // namespace ballast
