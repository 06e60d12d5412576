// ballastctl's table of commands: each row is whole, and each line of it parses.
#include "tools/ctl/command_line.h"

#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ctl/command_reference.h"

namespace ballast::tools {
namespace {

using testing::HasSubstr;

TEST(CommandLine, EachRowHasANameHelpAndOneWayToRun) {
  std::set<std::string> names;
  for (const Command& command : AllCommands()) {
    SCOPED_TRACE(command.name);
    EXPECT_TRUE(names.insert(command.name).second) << "a name stands for one command";
    EXPECT_STRNE(command.help, "");
    EXPECT_NE(command.run == nullptr, command.run_unparsed == nullptr);
    for (const char* flag : command.flags) EXPECT_NE(FindFlag(flag), nullptr) << flag;
    EXPECT_TRUE(command.needs[0] == '\0' || FindFlag(command.needs) != nullptr);
    EXPECT_THAT(HelpText(), HasSubstr(Synopsis(command)));
    EXPECT_THAT(HelpText(command), HasSubstr(command.help));
  }
}

TEST(CommandLine, EachFlagBelongsToACommand) {
  for (const Flag& flag : AllFlags()) {
    bool used = false;
    for (const Command& command : AllCommands()) {
      for (const char* name : command.flags) used = used || FindFlag(name) == &flag;
    }
    EXPECT_TRUE(used) << flag.name;
  }
}

TEST(CommandLine, EachCommandIsFoundByItsName) {
  for (const Command& command : AllCommands()) {
    const std::vector<std::string> words = absl::StrSplit(command.name, ' ');
    const absl::StatusOr<const Command*> found = FindCommand(words);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, &command);
    EXPECT_EQ(NameWords(command), words.size());
  }
}

TEST(CommandLine, ValuesFollowABlankOrAnEqualsSign) {
  const absl::StatusOr<const Command*> fork = FindCommand({"snapshot", "fork"});
  ASSERT_TRUE(fork.ok());
  const auto options = ParseOptions(
      **fork, {"job", "--as=new", "--world", "4", "one", "-o", "json", "--endpoint", "a:1,b:2"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->as, "new");
  EXPECT_EQ(options->world, 4u);
  EXPECT_EQ(options->form, Form::kJson);
  EXPECT_EQ(options->words, (std::vector<std::string>{"job", "one"}));
  EXPECT_EQ(options->endpoints, (std::vector<std::string>{"a:1", "b:2"}));
}

TEST(CommandLine, AFormThatIsNoneNamesTheNearest) {
  const absl::StatusOr<const Command*> status = FindCommand({"status"});
  ASSERT_TRUE(status.ok());
  const auto options = ParseOptions(**status, {"-o", "yml", "--endpoint", "a:1"});
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(options.status().message()), HasSubstr("did you mean yaml?"));
  const auto watched = ParseOptions(**status, {"-o", "json", "--watch", "--endpoint", "a:1"});
  EXPECT_THAT(std::string(watched.status().message()), HasSubstr("--watch shows tables"));
}

TEST(CommandLine, ThePageIsThatOfTheTable) {
  std::ifstream file(BALLAST_DOCS "/ballastctl.md");
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(page, CommandReference()) << "run ballastctl_reference > docs/ballastctl.md";
}

TEST(CommandLine, HelpNeedsNothingElse) {
  for (const Command& command : AllCommands()) {
    if (command.run == nullptr) continue;
    const auto options = ParseOptions(command, {"--help"});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_TRUE(options->help);
  }
}

}  // namespace
}  // namespace ballast::tools
