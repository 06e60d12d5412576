// The commands of ballastctl as a table: the name, arguments and action of each. The parser,
// --help, the page docs/ballastctl.md and the completion scripts read it, so that a command is
// written once. Comes from: the *_commands files. Goes to: command_line, ballastctl. Thread safety:
// constant after the first call.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tools/ctl/options.h"

namespace ballast::tools {

// A flag of one or more commands.
struct Flag {
  // Where a value goes: a switch, a non-empty text, or a number from 1 on.
  using Member = std::variant<bool Options::*, std::string Options::*, uint32_t Options::*>;
  const char* name;   // "--keep"
  const char* value;  // its value's name for --help: "N"; "" for a switch
  Member member;
  const char* help;
};

// Results of a command go to stdout, everything else to stderr.
struct Command {
  const char* name;                      // one or two words: "status", "jobs show"
  const char* words = "";                // that follow, "JOB NAME"; "[JOB]" may be left out
  const char* help;                      // one line
  int (*run)(const Options&) = nullptr;  // returns the exit code
  std::vector<const char*> flags = {};   // in addition to those of all commands
  const char* needs = "";                // one of `flags` that must be there
  bool asks_servers = true;              // --endpoint belongs to it
  bool live = false;                     // on a terminal it is shown as with --watch
  // Takes the raw arguments after the name, and parses them itself; then `run` is null.
  int (*run_unparsed)(const std::vector<std::string>&) = nullptr;
  const char* own_flags = "";  // with run_unparsed: the flags that it knows, for completion
};

// One list for each file of commands, in the order in which --help shows them.
std::vector<Command> StatusCommands();
std::vector<Command> ClusterCommands();
std::vector<Command> JobCommands();
std::vector<Command> TenantCommands();
std::vector<Command> ReloadCommands();
std::vector<Command> SnapshotCommands();
std::vector<Command> ExchangeCommands();
std::vector<Command> HostCommands();
std::vector<Command> ConfigCommands();
std::vector<Command> TuneCommands();
std::vector<Command> DsCommands();
std::vector<Command> CompletionCommands();

// All of them.
const std::vector<Command>& AllCommands();

// The flags that a command names, and those of every command that asks servers.
const std::vector<Flag>& AllFlags();

// Files with which every command that asks servers proves its identity, in addition to --endpoint;
// each has a variable of the environment for its default.
const std::vector<Flag>& SecurityFlags();

// The flag of that name; null if there is none.
const Flag* FindFlag(const std::string& name);

}  // namespace ballast::tools
