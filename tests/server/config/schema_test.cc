// Every field of server.proto carries what loader, printer and reference need, and the committed
// reference is the one this schema generates.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "server/config/fields.h"
#include "server/config/load.h"
#include "server/config/print.h"

namespace ballast::config {
namespace {

TEST(Schema, EveryFieldHasADocAndEveryNumberAMaximum) {
  for (const Leaf& leaf : Leaves()) {
    const v1::FieldRule& rule = RuleOf(leaf.field);
    EXPECT_FALSE(rule.doc().empty()) << leaf.path;
    const bool number = leaf.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ||
                        leaf.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
    EXPECT_EQ(rule.has_max(), number) << leaf.path;
    if (leaf.section != nullptr) {
      EXPECT_TRUE(leaf.section->message_type()->options().HasExtension(v1::section));
    }
  }
}

TEST(Schema, DefaultsAreWithinTheirOwnBounds) {
  const absl::Status status = Validate(DefaultConfig());
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Schema, NamesOfVariablesAreUnique) {
  std::set<std::string> names;
  for (const Leaf& leaf : Leaves()) EXPECT_TRUE(names.insert(leaf.env).second) << leaf.env;
  EXPECT_EQ(names.count("BALLAST_STORAGE_DRAM_BUDGET"), 1u);
  EXPECT_EQ(names.count("BALLAST_ISA"), 1u);
}

TEST(Reference, NamesEveryField) {
  const std::string reference = Reference();
  for (const Leaf& leaf : Leaves()) {
    EXPECT_TRUE(absl::StrContains(reference, "| `" + leaf.path + "` |")) << leaf.path;
  }
}

TEST(Reference, TheCommittedPageIsCurrent) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/docs/config.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), Reference()) << "run: ballast_config_reference > docs/config.md";
}

}  // namespace
}  // namespace ballast::config
