// Loads the configuration of ballastd: defaults < file < BALLAST_<SECTION>_<FIELD> variables <
// flags, strictly checked, remembering where each value came from.
// Comes from: server main, ballastctl, tests. Goes to: yaml_tree, fields, validate.
// Thread safety: pure functions of their arguments (Load reads the named file).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/config/v1/server.pb.h"
#include "server/config/validate.h"

namespace ballast::config {

struct LoadOptions {
  std::string file;                          // path of a YAML or JSON file; empty: no file
  std::optional<std::string> text;           // read instead of the file, which then only names it
  std::map<std::string, std::string> env;    // the environment; see JudgeVariable for foreign ones
  std::map<std::string, std::string> flags;  // "storage.dram_budget" -> "64GiB"
  // How the user wrote the flag of a path, for errors and origins: "listen.address" -> "--listen".
  // "--<path>" for paths missing here.
  std::map<std::string, std::string> flags_typed;
};

struct LoadedConfig {
  ServerConfig config;  // every field is set
  // Path -> "default", "server.yaml:12:5", "BALLAST_LISTEN_ADDRESS" or "--listen". Holds every path
  // of Leaves() and, for lists, also "cluster.peers[0].id".
  std::map<std::string, std::string> origins;
  // "NAME: the oddity" of variables that set nothing, for the log.
  std::vector<std::string> warnings;
};

// The configuration without file, variables and flags.
ServerConfig DefaultConfig();

// Reads all sources and checks the result. Sizes and durations carry units, enum values are in
// lower case, bools are true or false. A list (cluster.peers) in a variable or flag is YAML text:
// "[{id: 0, address: 'a:1'}]". Errors: NOT_FOUND or PERMISSION_DENIED when the file cannot be
// opened; INVALID_ARGUMENT, one "file:line:col: message" per line, for everything else: not YAML,
// above 1 MiB, anchors, aliases, tags, unknown or duplicate fields, wrong types, values out of
// bounds, misspelt variables (JudgeVariable), rules of Validate().
absl::StatusOr<LoadedConfig> Load(const LoadOptions& options);

// Reads the text of a peers file, {"peers": [{"id": 0, "address": "127.0.0.1:7000"}]}, as
// strictly; `name` appears in messages. INVALID_ARGUMENT as above. Run ValidatePeers afterwards.
absl::StatusOr<std::vector<Peer>> ParsePeersFile(absl::string_view text,
                                                 absl::string_view name = "peers file");
// The same of a file. PERMISSION_DENIED when it may not be opened, NOT_FOUND when it cannot be for
// another reason, INVALID_ARGUMENT when it is a directory.
absl::StatusOr<std::vector<Peer>> ReadPeersFile(const std::string& path);

}  // namespace ballast::config
