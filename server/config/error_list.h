// Collects the errors of one configuration, so that a user sees all of them at once.
// Comes from: yaml_tree, fields, load. Goes to: nothing outside this room.
// Thread safety: none; one list belongs to one call.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast::config {

class ErrorList {
 public:
  // Adds "where: message"; `where` is "file:line:col", a variable's name or a flag. After 20
  // errors further ones are only counted.
  void Add(absl::string_view where, absl::string_view message);
  // True when a further error would not be shown: no need to compute suggestions for it.
  bool full() const { return lines_.size() >= kShown; }
  bool empty() const { return lines_.empty(); }
  // OK, or INVALID_ARGUMENT with one error per line.
  absl::Status ToStatus() const;

 private:
  static constexpr size_t kShown = 20;
  std::vector<std::string> lines_;
  size_t hidden_ = 0;
};

}  // namespace ballast::config
