#include "server/setting_place.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast::server {

absl::Status WithPlace(const absl::Status& status, const config::LoadedConfig& loaded,
                       std::initializer_list<FileSetting> files) {
  if (status.ok()) return status;
  for (const auto& [setting, path] : files) {
    if (path.empty() || !absl::StartsWith(status.message(), absl::StrCat(path, ":"))) continue;
    const auto origin = loaded.origins.find(setting);
    const std::string place =
        origin == loaded.origins.end() ? "" : absl::StrCat(origin->second, ": ");
    return absl::Status(status.code(), absl::StrCat(place, setting, ": ", status.message()));
  }
  return status;
}

}  // namespace ballast::server
