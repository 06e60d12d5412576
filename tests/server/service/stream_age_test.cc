// When a stream ends at its age: between two rounds, or a while later within one.
#include "server/service/stream_age.h"

#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr StreamAge::Time kDay = hours(24);
constexpr StreamAge::Time kBorn = hours(100);
// Beyond any age of 24 hours with its jitter, and before the end of the grace.
constexpr StreamAge::Time kAged = kBorn + std::chrono::minutes(24 * 66);

StreamAge Make(uint64_t chance = 0) { return StreamAge(hours(24), hours(6), kBorn, chance); }

TEST(StreamAge, EndsBetweenRoundsAndNotWithinOne) {
  StreamAge age = Make();
  EXPECT_FALSE(age.Over(kBorn));
  EXPECT_TRUE(age.Over(kAged));
  age.OnWork();
  EXPECT_FALSE(age.Over(kAged));
  age.OnRoundDone();
  EXPECT_TRUE(age.Over(kAged));
}

TEST(StreamAge, EndsWithinARoundWhenTheGraceIsOver) {
  StreamAge age = Make();
  age.OnWork();
  EXPECT_TRUE(age.Over(kAged + hours(6)));
}

TEST(StreamAge, WithoutAnAgeItNeverEnds) {
  const StreamAge age(seconds(0), seconds(30), kBorn, 1);
  EXPECT_FALSE(age.Over(kBorn + hours(100'000)));
}

TEST(StreamAge, ChanceMovesTheEndByATenthAtMost) {
  int early = 0;
  int late = 0;
  for (uint64_t chance = 0; chance < 1000; ++chance) {
    const StreamAge age = Make(chance);
    EXPECT_FALSE(age.Over(kBorn + kDay * 9 / 10 - seconds(1)));
    EXPECT_TRUE(age.Over(kBorn + kDay * 11 / 10 + seconds(1)));
    early += age.Over(kBorn + kDay * 95 / 100) ? 1 : 0;
    late += age.Over(kBorn + kDay * 105 / 100) ? 0 : 1;
  }
  EXPECT_GT(early, 150);
  EXPECT_GT(late, 150);
}

}  // namespace
}  // namespace ballast::server
