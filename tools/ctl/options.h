// The values of a command line of ballastctl, and the exit codes.
// Comes from: command_line. Goes to: the commands. Thread safety: a plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast::tools {

// Exit codes, as docs/ballastctl.md lists them.
inline constexpr int kFailure = 1;
inline constexpr int kUsageError = 2;
inline constexpr int kUnreachable = 3;
inline constexpr int kNotFound = 4;
inline constexpr int kConflict = 5;
inline constexpr int kUnhealthy = 6;
inline constexpr int kNotPermitted = 7;

// Forms of the output.
enum class Form { kTable, kJson, kYaml };

// Files that prove who calls, and the authority of the servers; the variables BALLAST_TLS_CA and
// the rest where a member is empty.
struct SecurityOptions {
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string token_file;
};

// A member keeps its default when its flag does not occur.
struct Options : SecurityOptions {
  std::vector<std::string> words;  // that belong to no flag, without those of the command's name
  bool force = false;
  uint32_t keep = 0;
  std::string tenant;
  std::string as;
  uint32_t world = 0;
  std::string snapshot;
  std::string name;
  std::string dtype;
  bool state = false;
  bool consolidated = false;
  std::string format;
  bool torch_optimizer = false;
  std::vector<std::string> endpoints;
  std::string source = "--endpoint";  // of the endpoints, for messages
  Form form = Form::kTable;
  std::string config;  // a file
  uint32_t trainers = 1;
  uint32_t servers = 1;
  std::string optimizer;
  bool collective = false;
  uint32_t last = 10;  // rounds
  bool watch = false;
  uint32_t every_s = 2;
  bool help = false;
};

}  // namespace ballast::tools
