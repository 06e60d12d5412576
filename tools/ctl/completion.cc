// `ballastctl completion`: scripts that complete commands and flags, made from the table of
// commands. They complete words of ballastctl's own only, and ask no server.
// Comes from: ballastctl. Goes to: shells that source the output. Thread safety: the main thread.
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/ctl/command.h"

namespace ballast::tools {
namespace {

std::vector<std::string> Firsts() {
  std::set<std::string> firsts;
  for (const Command& command : AllCommands()) {
    firsts.insert(std::vector<std::string>(absl::StrSplit(command.name, ' '))[0]);
  }
  return {firsts.begin(), firsts.end()};
}

// The second words after `first`; none for a command of one word.
std::vector<std::string> Seconds(const std::string& first) {
  std::vector<std::string> seconds;
  for (const Command& command : AllCommands()) {
    const std::vector<std::string> name = absl::StrSplit(command.name, ' ');
    if (name[0] == first && name.size() == 2) seconds.push_back(name[1]);
  }
  return seconds;
}

std::vector<std::string> OwnFlags(const Command& command) {
  return absl::StrSplit(command.own_flags, ' ', absl::SkipEmpty());
}

std::string FlagWordsOf(const Command& command) {
  std::vector<std::string> flags = OwnFlags(command);
  flags.insert(flags.end(), command.flags.begin(), command.flags.end());
  if (command.asks_servers) {
    flags.emplace_back("--endpoint");
    for (const Flag& flag : SecurityFlags()) flags.emplace_back(flag.name);
  }
  flags.insert(flags.end(), {"-o", "--help"});
  return absl::StrJoin(flags, " ");
}

int Bash(const Options&) {
  std::cout
      << "# bash completion of ballastctl: source <(ballastctl completion bash)\n"
         "_ballastctl() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
         "  case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n"
         "    -o|--output) COMPREPLY=($(compgen -W 'table json yaml' -- \"$cur\")); return ;;\n"
         "  esac\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words='"
      << absl::StrJoin(Firsts(), " ") << " --help --version'\n  else\n"
      << "    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n";
  for (const Command& command : AllCommands()) {
    const bool one_word = std::string(command.name).find(' ') == std::string::npos;
    std::cout << "      '" << command.name << (one_word ? " '*" : "'") << ") words='"
              << FlagWordsOf(command) << "' ;;\n";
  }
  std::cout
      << "    esac\n    if [ \"$COMP_CWORD\" -eq 2 ]; then\n      case \"${COMP_WORDS[1]}\" in\n";
  for (const std::string& first : Firsts()) {
    const std::vector<std::string> seconds = Seconds(first);
    if (seconds.empty()) continue;
    std::cout << "        " << first << ") words='" << absl::StrJoin(seconds, " ") << "' ;;\n";
  }
  std::cout << "      esac\n    fi\n  fi\n"
               "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
               "complete -o default -F _ballastctl ballastctl\n";
  return std::cout.flush() ? 0 : kFailure;
}

int Zsh(const Options& options) {
  std::cout << "#compdef ballastctl\n"
               "# zsh completion of ballastctl: source <(ballastctl completion zsh)\n"
               "autoload -U +X bashcompinit && bashcompinit\n";
  return Bash(options);
}

int Fish(const Options&) {
  std::cout << "# fish completion of ballastctl: ballastctl completion fish | source\n"
               "complete -c ballastctl -e\n";
  for (const Command& command : AllCommands()) {
    const std::vector<std::string> name = absl::StrSplit(command.name, ' ');
    const std::string help = command.help;
    std::cout << "complete -c ballastctl -f -n __fish_use_subcommand -a " << name[0]
              << (name.size() == 1 ? absl::StrCat(" -d \"", help, "\"") : "") << "\n";
    std::string seen = absl::StrCat("__fish_seen_subcommand_from ", name[0]);
    if (name.size() == 2) {
      const std::string all = absl::StrJoin(Seconds(name[0]), " ");
      std::cout << "complete -c ballastctl -f -n '" << seen
                << "; and not __fish_seen_subcommand_from " << all << "' -a " << name[1] << " -d \""
                << help << "\"\n";
      absl::StrAppend(&seen, "; and __fish_seen_subcommand_from ", name[1]);
    }
    for (const char* flag : command.flags) {
      std::cout << "complete -c ballastctl -n '" << seen << "' -l " << flag + 2
                << (FindFlag(flag)->value[0] == '\0' ? "" : " -r") << "\n";
    }
    for (const std::string& flag : OwnFlags(command)) {
      std::cout << "complete -c ballastctl -n '" << seen << "' -l " << flag.substr(2) << "\n";
    }
  }
  for (const Flag& flag : SecurityFlags()) {
    std::cout << "complete -c ballastctl -l " << flag.name + 2 << " -r\n";
  }
  std::cout << "complete -c ballastctl -l endpoint -r\n"
               "complete -c ballastctl -s o -l output -x -a 'table json yaml'\n";
  return std::cout.flush() ? 0 : kFailure;
}

}  // namespace

std::vector<Command> CompletionCommands() {
  return {
      {.name = "completion bash",
       .help = "a script that bash sources",
       .run = Bash,
       .asks_servers = false},
      {.name = "completion zsh",
       .help = "a script that zsh sources",
       .run = Zsh,
       .asks_servers = false},
      {.name = "completion fish",
       .help = "a script that fish sources",
       .run = Fish,
       .asks_servers = false},
  };
}

}  // namespace ballast::tools
