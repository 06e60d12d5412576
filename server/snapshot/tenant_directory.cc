#include "server/snapshot/tenant_directory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "common/text/qualified_name.h"

namespace ballast::server {
namespace {

constexpr char kMark = '@';

}  // namespace

std::string TenantDirectory(const std::string& root, const std::string& tenant) {
  return tenant == kDefaultTenant ? root : absl::StrCat(root, "/", std::string(1, kMark), tenant);
}

absl::StatusOr<std::vector<std::string>> TenantsBelow(FileSystem* fs, const std::string& root) {
  std::vector<std::string> tenants;
  const absl::StatusOr<std::vector<std::string>> names = fs->List(root);
  if (!names.ok() && !absl::IsNotFound(names.status())) return names.status();
  if (names.ok()) {
    for (const std::string& name : *names) {
      if (name.empty() || name[0] != kMark) continue;
      const std::string tenant = name.substr(1);
      if (tenant == kDefaultTenant || !ValidateName("tenant", tenant).ok()) continue;
      // A file server may have directories of its own here that others cannot read.
      const absl::Status readable = fs->List(absl::StrCat(root, "/", name)).status();
      if (readable.ok()) tenants.push_back(tenant);
      if (!readable.ok()) BALLAST_LOG(WARN) << "no tenant's directory: " << readable;
    }
  }
  std::sort(tenants.begin(), tenants.end());
  tenants.insert(tenants.begin(), kDefaultTenant);
  return tenants;
}

}  // namespace ballast::server
