// The environment given to the process.
#include "server/config/environment.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace ballast::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ProcessEnvironmentTest, TheFirstOfANameCountsAsForGetenv) {
  char first[] = "BALLAST_ISA=avx2";
  char none[] = "NO_VALUE";
  char empty[] = "EMPTY=";
  char second[] = "BALLAST_ISA=a=b";
  char* given[] = {first, none, empty, second, nullptr};
  char** const before = std::exchange(environ, given);
  const std::map<std::string, std::string> found = ProcessEnvironment();
  const std::string asked = std::getenv("BALLAST_ISA");
  environ = nullptr;
  const std::map<std::string, std::string> cleared = ProcessEnvironment();
  environ = before;
  EXPECT_THAT(found, ElementsAre(Pair("BALLAST_ISA", "avx2"), Pair("EMPTY", "")));
  EXPECT_EQ(asked, "avx2");
  EXPECT_THAT(cleared, IsEmpty()) << "after clearenv()";
}

}  // namespace
}  // namespace ballast::config
