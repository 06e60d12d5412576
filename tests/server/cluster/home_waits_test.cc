// What a trainer may cost its home: how long an attach waits, how many of its words do.
#include "server/cluster/heard_box.h"
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

TEST(HeardBoxTest, OfEachProcessOnlyTheNewestWordWaits) {
  HeardBox box;
  const Member zero{0, 100, ""};
  EXPECT_TRUE(box.Put({7, zero, Doing{.bucket = 1}}));
  for (uint32_t i = 2; i <= 1000; ++i) EXPECT_FALSE(box.Put({7, zero, Doing{.bucket = i}}));
  EXPECT_FALSE(box.Put({7, {0, 101, ""}, Doing{.bucket = 3}}));
  EXPECT_FALSE(box.Put({8, zero, Doing{.bucket = 4}}));
  const std::vector<HeardBox::Word> words = box.Take();
  ASSERT_EQ(words.size(), 3u);
  EXPECT_EQ(words[0].doing.bucket, 1000u);
  EXPECT_EQ(words[1].rank.incarnation, 101u);
  EXPECT_EQ(words[2].job, 8u);
  EXPECT_TRUE(box.Put({7, zero, Doing{}}));
}

}  // namespace
}  // namespace ballast::server::testing
