#include "tools/ctl/command_line.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/text/address.h"
#include "common/text/names.h"

namespace ballast::tools {
namespace {

std::vector<std::string> Split(const std::string& text) {
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

// The nearest of `known`, for the end of a message; empty when none is near.
std::string Hint(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = DidYouMean(word, known);
  return near.empty() ? "" : absl::StrCat(" (did you mean ", near, "?)");
}

// Commas and blanks separate endpoints, as they do for trainers.
absl::Status AddEndpoints(const std::string& text, Options* options) {
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    if (const absl::Status status = ParseEndpoint(part).status(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(options->source, ": ", status.message()));
    }
    options->endpoints.emplace_back(part.data(), part.size());
  }
  return absl::OkStatus();
}

absl::Status SetOutput(const std::string& value, Options* options) {
  const std::map<std::string, Form> forms = {
      {"table", Form::kTable}, {"json", Form::kJson}, {"yaml", Form::kYaml}};
  const auto form = forms.find(value);
  if (form == forms.end()) {
    return absl::InvalidArgumentError(absl::StrCat("-o takes table, json or yaml, not ",
                                                   Quoted(value),
                                                   Hint(value, {"table", "json", "yaml"})));
  }
  options->form = form->second;
  return absl::OkStatus();
}

absl::Status SetFlag(const Flag& flag, const std::string& value, Options* options) {
  if (const auto* text = std::get_if<std::string Options::*>(&flag.member)) {
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat(flag.name, " needs a value"));
    options->** text = value;
    return absl::OkStatus();
  }
  uint32_t* const number = &(options->*std::get<uint32_t Options::*>(flag.member));
  if (absl::SimpleAtoi(value, number) && *number > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag.name, " takes a number from 1 on, not ", Quoted(value)));
}

std::vector<std::string> FlagsOf(const Command& command) {
  std::vector<std::string> flags(command.flags.begin(), command.flags.end());
  if (command.asks_servers) {
    flags.emplace_back("--endpoint");
    for (const Flag& flag : SecurityFlags()) flags.emplace_back(flag.name);
  }
  flags.insert(flags.end(), {"--output", "-o", "--help", "-h"});
  return flags;
}

absl::Status UnknownFlag(const Command& command, const std::string& argument,
                         const std::string& flag) {
  if (FindFlag(flag) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(command.name, " takes no ", flag));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown argument ", argument, Hint(flag, FlagsOf(command))));
}

// Takes the argument at `*at`, and the next one if that one holds its value.
absl::Status TakeFlag(const Command& command, const std::vector<std::string>& arguments, size_t* at,
                      Options* options) {
  const std::string& argument = arguments[*at];
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const std::vector<std::string> flags = FlagsOf(command);
  if (std::find(flags.begin(), flags.end(), name) == flags.end()) {
    return UnknownFlag(command, argument, name);
  }
  const Flag* const flag = FindFlag(name);
  const bool help = name == "--help" || name == "-h";
  const bool is_switch =
      help || (flag != nullptr && std::holds_alternative<bool Options::*>(flag->member));
  if (is_switch) {
    if (equals != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
    }
    (help ? options->help : options->*std::get<bool Options::*>(flag->member)) = true;
    return absl::OkStatus();
  }
  if (equals == std::string::npos && *at + 1 == arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
  }
  const std::string value =
      equals == std::string::npos ? arguments[++*at] : argument.substr(equals + 1);
  if (flag != nullptr) return SetFlag(*flag, value, options);
  return name == "--endpoint" ? AddEndpoints(value, options) : SetOutput(value, options);
}

// Whether words and flags are there that the command cannot do without, and no word too many.
absl::Status CheckComplete(const Command& command, const Options& options) {
  const std::vector<std::string> words = Split(command.words);
  const auto least = static_cast<size_t>(std::count_if(
      words.begin(), words.end(), [](const std::string& word) { return word[0] != '['; }));
  if (options.words.size() > words.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(command.name, " takes no ", Quoted(options.words[words.size()])));
  }
  if (options.words.size() < least) {
    return absl::InvalidArgumentError(absl::StrCat(command.name, " takes ", command.words));
  }
  const Flag* const needed = FindFlag(command.needs);
  if (needed != nullptr && (options.*std::get<std::string Options::*>(needed->member)).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(command.name, " needs ", needed->name, " ", needed->value));
  }
  if (command.asks_servers && options.endpoints.empty()) {
    return absl::InvalidArgumentError("no server to ask; give --endpoint or set BALLAST_ENDPOINTS");
  }
  return absl::OkStatus();
}

std::string FlagHelp(const std::string& name, const std::string& value, const char* help) {
  return absl::StrFormat("  %-30s %s\n", value.empty() ? name : absl::StrCat(name, " ", value),
                         help);
}

std::string CommonFlagsHelp(bool asks_servers) {
  std::string asking =
      FlagHelp("--endpoint", "HOST:PORT", "a server to ask; may be repeated or hold a list") +
      FlagHelp("", "", "with commas (default: BALLAST_ENDPOINTS)");
  for (const Flag& flag : SecurityFlags()) asking += FlagHelp(flag.name, flag.value, flag.help);
  return (asks_servers ? asking : "") +
         FlagHelp("-o", "table|json|yaml", "form of the output (default: table)");
}

constexpr char kCodes[] =
    "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 a server cannot be reached, 4 not found,\n"
    "5 conflict, 6 unhealthy, 7 not permitted.\n";

}  // namespace

size_t NameWords(const Command& command) { return Split(command.name).size(); }

std::string Synopsis(const Command& command) {
  std::string text = absl::StrCat(command.name, command.words[0] == '\0' ? "" : " ", command.words);
  if (const Flag* flag = FindFlag(command.needs); flag != nullptr) {
    absl::StrAppend(&text, " ", flag->name, " ", flag->value);
  }
  return text;
}

absl::StatusOr<const Command*> FindCommand(const std::vector<std::string>& arguments) {
  std::vector<std::string> firsts;
  std::vector<std::string> follow;  // possible second words
  for (const Command& command : AllCommands()) {
    const std::vector<std::string> name = Split(command.name);
    firsts.push_back(name[0]);
    if (arguments.empty() || arguments[0] != name[0]) continue;
    if (name.size() == 1 || (arguments.size() > 1 && arguments[1] == name[1])) return &command;
    follow.push_back(Synopsis(command).substr(name[0].size() + 1));
  }
  if (arguments.empty()) return absl::InvalidArgumentError("no command");
  if (!follow.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(arguments[0], " takes ", absl::StrJoin(follow, ", "),
                     arguments.size() > 1 ? absl::StrCat(", not ", Quoted(arguments[1])) : ""));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command ", arguments[0], Hint(arguments[0], firsts)));
}

absl::StatusOr<Options> ParseOptions(const Command& command,
                                     const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (absl::StartsWith(arguments[i], "-")) {
      BALLAST_RETURN_IF_ERROR(TakeFlag(command, arguments, &i, &options));
    } else {
      options.words.push_back(arguments[i]);
    }
  }
  if (options.help) return options;
  if (options.watch && options.form != Form::kTable) {
    return absl::InvalidArgumentError("--watch shows tables; leave -o out");
  }
  const char* endpoints = std::getenv("BALLAST_ENDPOINTS");
  if (command.asks_servers && options.endpoints.empty() && endpoints != nullptr) {
    options.source = "BALLAST_ENDPOINTS";
    BALLAST_RETURN_IF_ERROR(AddEndpoints(endpoints, &options));
  }
  BALLAST_RETURN_IF_ERROR(CheckComplete(command, options));
  return options;
}

namespace {

std::string CommandHelp(const Command& command) {
  return absl::StrFormat("  %-37s %s\n", Synopsis(command), command.help);
}

}  // namespace

std::string GroupHelpText(const std::string& first) {
  std::string text;
  for (const Command& command : AllCommands()) {
    const std::vector<std::string> name = Split(command.name);
    if (name.size() == 2 && name[0] == first) text += CommandHelp(command);
  }
  if (text.empty()) return "";
  return absl::StrCat("usage: ballastctl ", first, " COMMAND [WORDS] [FLAGS]\n\nCommands:\n", text,
                      "\nballastctl ", first, " COMMAND --help shows one command and its flags.\n");
}

std::string HelpText() {
  std::string text = "usage: ballastctl COMMAND [WORDS] [FLAGS]\n\nCommands:\n";
  for (const Command& command : AllCommands()) text += CommandHelp(command);
  absl::StrAppend(&text, "\nFlags of all commands; all but -o of those that ask servers:\n",
                  CommonFlagsHelp(true),
                  "\nballastctl COMMAND --help shows one command and its flags. Results go to "
                  "stdout,\neverything else to stderr. --version shows the version.\n",
                  kCodes);
  return text;
}

std::string HelpText(const Command& command) {
  std::string text =
      absl::StrCat("usage: ballastctl ", Synopsis(command), " [FLAGS]\n\n", command.help, "\n\n");
  for (const char* name : command.flags) {
    const Flag& flag = *FindFlag(name);
    text += FlagHelp(flag.name, flag.value, flag.help);
  }
  text += CommonFlagsHelp(command.asks_servers);
  return text + FlagHelp("--help", "", "this text") + kCodes;
}

}  // namespace ballast::tools
