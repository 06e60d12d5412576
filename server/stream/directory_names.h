// DirectoryNames: a directory of this server, as callers read of it: by the setting that names it.
// A trainer has no use for the server's paths, and an operator finds them in its configuration.
// Comes from: GenericServer. Goes to: GenericCall. Thread safety: immutable.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast::server {

class DirectoryNames {
 public:
  // A directory and its setting, such as "storage.data_dir".
  struct Entry {
    std::string path;  // empty: the setting names none
    std::string setting;
  };

  // No directory has a setting.
  DirectoryNames() = default;
  // Of one path with two settings, the first counts. Relative paths are looked up below the working
  // directory, once; as they are configured they are found where a file's name follows.
  explicit DirectoryNames(const std::vector<Entry>& entries);

  // `text` with the settings in place of their paths: "/data/jobs/7" is "storage.data_dir/jobs/7".
  std::string Outward(absl::string_view text) const;
  // The same status with another text, in its detail, too.
  absl::Status Outward(const absl::Status& status) const;

 private:
  std::vector<Entry> entries_;  // as configured and absolute, longest first
};

}  // namespace ballast::server
