#include "server/security/files.h"

#include "common/base/status_macros.h"
#include "common/system/guarded_file.h"

namespace ballast::server {
namespace {

constexpr size_t kFileBytesMax = 4 << 20;

}  // namespace

absl::StatusOr<std::string> ReadOwnedFile(const std::string& path) {
  return ReadGuardedFile(path, FileGuard::kWrite, kFileBytesMax);
}

absl::Status ReadTokens(const std::string& path, const std::string& domain, TokenTable* tokens) {
  if (path.empty()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::string text,
                           ReadGuardedFile(path, FileGuard::kOthers, kFileBytesMax));
  BALLAST_ASSIGN_OR_RETURN(*tokens, TokenTable::Parse(text, path, domain));
  return absl::OkStatus();
}

absl::Status ReadDenied(const std::string& path, const std::string& domain,
                        DeniedIdentities* denied) {
  if (path.empty()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::string text,
                           ReadGuardedFile(path, FileGuard::kWrite, kFileBytesMax));
  BALLAST_ASSIGN_OR_RETURN(*denied, DeniedIdentities::Parse(text, path, domain));
  return absl::OkStatus();
}

}  // namespace ballast::server
