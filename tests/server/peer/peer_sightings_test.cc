// Servers' findings in each other's Hellos: lists that differ, and a second process with an id.
#include "server/peer/peer_sightings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::chrono::seconds kMemory{10};

std::vector<ServerAddress> Servers(const std::vector<uint32_t>& ids) {
  std::vector<ServerAddress> servers;
  for (const uint32_t id : ids) servers.push_back({id, "host-" + std::to_string(id) + ":7000"});
  return servers;
}

class PeerSightingsTest : public ::testing::Test {
 protected:
  // A Hello of server `id`, whose cluster.peers has `ids`.
  v1::PeerHello HelloOf(uint32_t id, uint64_t incarnation, const std::vector<uint32_t>& ids) {
    PeerSightings sender(&clock_, kMemory);
    sender.SetServers(id, Servers(ids));
    v1::PeerHello hello;
    sender.Fill(&hello);
    hello.set_id(id);
    hello.set_incarnation(incarnation);
    return hello;
  }

  FakeClock clock_;
  PeerSightings sightings_{&clock_, kMemory};
};

TEST_F(PeerSightingsTest, ListsThatDifferAreShownAtBothServers) {
  // Server 0 does not know server 1, which says Hello to it.
  sightings_.SetServers(0, Servers({0}));
  sightings_.OnRequest(HelloOf(1, 7, {0, 1}));
  EXPECT_THAT(sightings_.Problems(),
              ElementsAre(HasSubstr("cluster.peers of server 1 has 0, 1, and that of server 0 has "
                                    "0: normal while a cluster grows")));
  // Its answer shows the same at server 1.
  PeerSightings other(&clock_, kMemory);
  other.SetServers(1, Servers({0, 1}));
  other.OnAnswer(HelloOf(0, 6, {0}));
  EXPECT_THAT(other.Problems(), ElementsAre(HasSubstr("cluster.peers of server 0 has 0, and")));
  // Server 0 was restarted with the same list.
  other.OnAnswer(HelloOf(0, 8, {0, 1}));
  EXPECT_THAT(other.Problems(), IsEmpty());
  // Server 1 was ended.
  clock_.Advance(kMemory);
  EXPECT_THAT(sightings_.Problems(), IsEmpty());
}

TEST_F(PeerSightingsTest, OtherClustersAndOlderReleasesAreNoProblem) {
  sightings_.SetServers(0, Servers({0, 1}));
  sightings_.OnRequest(HelloOf(5, 7, {4, 5}));
  v1::PeerHello older = HelloOf(1, 7, {});
  sightings_.OnRequest(older);
  sightings_.OnAnswer(older);
  sightings_.OnRequest(HelloOf(0, 9, {0, 1, 2}));  // As if it were this server.
  EXPECT_THAT(sightings_.Problems(), IsEmpty());
}

TEST_F(PeerSightingsTest, ReportsOfUnknownPeersAreBounded) {
  sightings_.SetServers(0, Servers({0, 1}));
  for (uint32_t id = 1; id < 1000; ++id) sightings_.OnRequest(HelloOf(id, id, {0, id}));
  EXPECT_EQ(sightings_.Problems().size(), 63u);  // Server 1 has the same list.
  std::vector<uint32_t> many(1000);
  for (uint32_t i = 0; i < many.size(); ++i) many[i] = i;
  clock_.Advance(kMemory);
  sightings_.OnRequest(HelloOf(1, 1, many));
  EXPECT_THAT(sightings_.Problems(), IsEmpty());
}

TEST_F(PeerSightingsTest, TwoProcessesWithOneIdAreNamed) {
  sightings_.SetServers(0, Servers({0, 1}));
  const v1::PeerHello right = HelloOf(1, 100, {0, 1});
  v1::PeerHello wrong = HelloOf(1, 200, {0, 1});
  wrong.set_address("elsewhere:7000");
  sightings_.OnRequest(right);
  sightings_.OnAnswer(right);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(sightings_.Problems(), IsEmpty()) << i;
    sightings_.OnRequest(wrong);
    sightings_.OnRequest(right);
    if (i < 2) sightings_.OnAnswer(right);
  }
  EXPECT_THAT(
      sightings_.Problems(),
      ElementsAre(::testing::AllOf(HasSubstr("two processes are server 1"),
                                   HasSubstr("at host-1:7000"), HasSubstr("at elsewhere:7000"))));
  clock_.Advance(kMemory);
  EXPECT_THAT(sightings_.Problems(), IsEmpty()) << "it was stopped";
}

// Its Hello may come before the last answer of the process that it follows.
TEST_F(PeerSightingsTest, AServerThatWasStartedAgainIsOne) {
  sightings_.SetServers(0, Servers({0, 1}));
  const v1::PeerHello before = HelloOf(1, 100, {0, 1}), after = HelloOf(1, 200, {0, 1});
  sightings_.OnRequest(before);
  sightings_.OnAnswer(before);
  sightings_.OnRequest(after);
  sightings_.OnAnswer(before);
  for (int i = 0; i < 5; ++i) {
    sightings_.OnRequest(after);
    EXPECT_THAT(sightings_.Problems(), IsEmpty());
    sightings_.OnAnswer(after);
  }
  EXPECT_THAT(sightings_.Problems(), IsEmpty());
}

}  // namespace
}  // namespace ballast::server
