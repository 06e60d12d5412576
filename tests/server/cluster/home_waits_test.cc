// How long an attach may wait at the home, whatever it asks for.
#include "tests/server/cluster/home_inputs.h"

namespace ballast::server::testing {
namespace {

TEST(HomeWaitsTest, AnAttachWaitsNoLongerThanTheServersTimeOut) {
  const home::Rules rules = TestRules();
  for (const auto& [asked, granted] :
       {std::pair{milliseconds(0), seconds(600)}, std::pair{milliseconds(5000), seconds(5)},
        std::pair{milliseconds(86'400'000), seconds(600)}}) {
    AttachCall call = HomeCall(0, kFirst);
    call.wait = asked;
    HomeRig rig(HomeJob::New(&rules, call));
    EXPECT_EQ(One<home::Arm>(rig.Attach(call)).after, granted);
    EXPECT_EQ(rules.WaitOf(call), granted);
  }
}

}  // namespace
}  // namespace ballast::server::testing
