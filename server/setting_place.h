// Where the configuration names a faulty file.
// Comes from: ServerTls, ServerSecurity. Goes to: messages for operators. Thread safety: a pure
// function.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/config/load.h"

namespace ballast::server {

// A setting whose value is the path of a file.
struct FileSetting {
  const char* setting = "";  // "security.key"
  absl::string_view path;
};

// `status`, whose message begins with a path, prefixed with the place and the name of the setting
// with that path: "server.yaml:5:8: security.key: /etc/key: ...". Unchanged if it is OK or concerns
// none of the files.
absl::Status WithPlace(const absl::Status& status, const config::LoadedConfig& loaded,
                       std::initializer_list<FileSetting> files);

}  // namespace ballast::server
