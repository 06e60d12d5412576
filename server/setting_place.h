// Where in the configuration a file is named that is at fault.
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

// `status`, whose message begins with a path, with the place and the name of the setting that has
// that path before it: "server.yaml:5:8: security.key: /etc/key: ...". As it is when it is OK, or
// about none of the files.
absl::Status WithPlace(const absl::Status& status, const config::LoadedConfig& loaded,
                       std::initializer_list<FileSetting> files);

}  // namespace ballast::server
