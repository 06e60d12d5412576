#include "server/snapshot/marked_directory.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast::server {

std::string UnmarkedPath(const std::string& root, const std::string& name,
                         const std::string& owner) {
  return absl::StrCat(root, "/.", name, ".", owner);
}

absl::Status MakeMarkedDirectory(FileSystem* fs, const std::string& root, const std::string& name,
                                 const std::string& owner,
                                 const std::function<absl::Status(const std::string& path)>& make) {
  const std::string unmarked = UnmarkedPath(root, name, owner);
  absl::Status made = make(unmarked);
  if (made.ok()) made = fs->Rename(unmarked, absl::StrCat(root, "/", name));
  if (!made.ok()) fs->RemoveAll(unmarked).IgnoreError();  // The first error is the one to tell.
  return made;
}

absl::Status ClearUnmarked(FileSystem* fs, const std::string& root, const std::string& name,
                           const std::string& owner) {
  const bool left = absl::StartsWith(name, ".") && absl::EndsWith(name, absl::StrCat(".", owner));
  return left ? fs->RemoveAll(absl::StrCat(root, "/", name)) : absl::OkStatus();
}

}  // namespace ballast::server
