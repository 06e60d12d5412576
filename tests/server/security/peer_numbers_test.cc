// Numbers of servers: alone, between two that restart, and at the gate of a server without
// security.
#include "server/security/peer_numbers.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/security/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/security/gate.h"

namespace ballast::server {
namespace {

using Kind = PeerNumbers::Kind;

constexpr char kDrop[] = "/ballast.v1.Peer/DropJob";
constexpr char kVote[] = "/ballast.v1.Peer/Vote";
constexpr char kWhichRest[] = "/ballast.v1.Peer/WhichRest";

std::string Secret(char c) { return std::string(kSecretBytes, c); }

// The Hello of server `from` to `to`, and its answer; to `to`'s own address.
void Greet(uint32_t from, PeerNumbers& one, uint32_t to, PeerNumbers& other) {
  const std::string hash = other.HashFor(from);
  other.Told(from, one.NumberFor(to), one.HeldHash(to));
  one.Answered(to, hash);
}

TEST(SecretTest, TwoAreDifferentAndHaveAllBytes) {
  EXPECT_EQ(NewSecret().size(), kSecretBytes);
  EXPECT_NE(NewSecret(), NewSecret());
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "ab"));
}

class PeerNumbersTest : public testing::Test {
 protected:
  PeerNumbersTest() {
    home_.SetServers({1});
    other_.SetServers({0});
    home_.SetAsk([this](uint32_t server) { asked_.push_back(server); });
  }

  PeerNumbers home_{Secret('h')};   // server 0
  PeerNumbers other_{Secret('o')};  // server 1
  std::vector<uint32_t> asked_;     // by the home
};

TEST_F(PeerNumbersTest, ANumberIsOfOneProcessForOneServer) {
  EXPECT_EQ(home_.NumberFor(1).size(), kSecretBytes);
  EXPECT_NE(home_.NumberFor(1), home_.NumberFor(2));
  EXPECT_NE(home_.NumberFor(1), other_.NumberFor(1));
  EXPECT_EQ(home_.HashFor(1), Sha256(home_.NumberFor(1)));
}

TEST_F(PeerNumbersTest, ACallCarriesTheNumberOnceTheServerAtTheAddressHasConfirmedIt) {
  EXPECT_EQ(home_.HeaderTo(1, 0), std::nullopt);
  Greet(1, other_, 0, home_);
  EXPECT_EQ(asked_, std::vector<uint32_t>{1}) << "it has to hear from that address";
  EXPECT_EQ(home_.HeaderTo(1, 0), std::nullopt);
  Greet(0, home_, 1, other_);
  const auto header = home_.HeaderTo(1, 0);
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(other_.SenderOf(*header), 0u);
  EXPECT_EQ(home_.SenderOf(*header), std::nullopt);
}

TEST_F(PeerNumbersTest, AHeaderCountsWholeAndOnlyFromTheServerItNames) {
  const std::string hex = absl::BytesToHexString(other_.NumberFor(0));
  EXPECT_EQ(other_.SenderOf(absl::StrCat("0 ", hex)), 0u);
  for (const std::string& bad :
       {absl::StrCat("2 ", hex), absl::StrCat("0 ", hex.substr(2)), absl::StrCat("0 ", hex, "00"),
        absl::StrCat("0 ", hex.substr(0, 31), "g"), absl::StrCat("0  ", hex),
        absl::StrCat(" ", hex), absl::StrCat("-1 ", hex), absl::StrCat("4294967296 ", hex), hex,
        std::string("0"), std::string()}) {
    EXPECT_EQ(other_.SenderOf(bad), std::nullopt) << bad;
  }
}

TEST_F(PeerNumbersTest, AStrangersNumberTakesThePlaceOfNone) {
  Greet(1, other_, 0, home_);
  Greet(0, home_, 1, other_);
  const auto header = home_.HeaderTo(1, 0);
  ASSERT_TRUE(header.has_value());
  asked_.clear();
  home_.Told(1, Secret('x'), "");
  EXPECT_EQ(home_.HeaderTo(1, 0), header);
  EXPECT_EQ(asked_, std::vector<uint32_t>{1}) << "the server may have been started again";
  // Also when the stranger comes first, the server's next Hello counts.
  home_.Doubt(1);
  home_.Told(1, Secret('x'), "");
  Greet(0, home_, 1, other_);
  EXPECT_EQ(home_.HeaderTo(1, 0), std::nullopt);
  Greet(1, other_, 0, home_);
  EXPECT_EQ(home_.HeaderTo(1, 0), header);
}

TEST_F(PeerNumbersTest, ABrokenCallIsFollowedByAHello) {
  Greet(1, other_, 0, home_);
  Greet(0, home_, 1, other_);
  const auto header = home_.HeaderTo(1, 0);
  home_.Doubt(1);
  EXPECT_EQ(home_.HeaderTo(1, 0), std::nullopt);
  EXPECT_EQ(home_.HeldHash(1), "");
  Greet(0, home_, 1, other_);
  EXPECT_EQ(home_.HeaderTo(1, 0), header) << "it is the same process";
}

TEST_F(PeerNumbersTest, AServerThatWasStartedAgainHasAnotherNumber) {
  Greet(1, other_, 0, home_);
  Greet(0, home_, 1, other_);
  const std::string old = *home_.HeaderTo(1, 0);
  PeerNumbers again(Secret('a'));
  again.SetServers({0});
  EXPECT_EQ(again.SenderOf(old), std::nullopt);
  Greet(0, home_, 1, again);
  EXPECT_EQ(home_.HeaderTo(1, 0), std::nullopt);
  Greet(1, again, 0, home_);
  EXPECT_EQ(again.SenderOf(*home_.HeaderTo(1, 0)), 0u);
}

TEST_F(PeerNumbersTest, AServerThatLacksOursIsAsked) {
  Greet(1, other_, 0, home_);
  Greet(0, home_, 1, other_);
  Greet(1, other_, 0, home_);
  Greet(0, home_, 1, other_);
  asked_.clear();
  Greet(1, other_, 0, home_);
  EXPECT_THAT(asked_, testing::IsEmpty()) << "both have what they need";
  home_.Told(1, other_.NumberFor(0), "");
  EXPECT_EQ(asked_, std::vector<uint32_t>{1});
  home_.SetAsk(nullptr);
  home_.Told(1, other_.NumberFor(0), "");
}

TEST_F(PeerNumbersTest, ReportsAboutOtherServersAreDropped) {
  home_.Told(7, Secret('x'), "");
  home_.Answered(7, Sha256(Secret('x')));
  EXPECT_EQ(home_.HeaderTo(7, 0), std::nullopt);
  EXPECT_EQ(home_.HeldHash(7), "");
  home_.Told(1, "short", "");
  EXPECT_THAT(asked_, testing::IsEmpty());
}

// --- At the gate of server 1, whose home is server 0 --------------------------------------------

class PlainGateTest : public testing::Test {
 protected:
  PlainGateTest() { gate_.SetServers(1, {0, 1, 2}); }
  void HeardAll() {
    for (const uint32_t server : {0u, 2u}) gate_.numbers()->Answered(server, "hash");
  }
  CallerFacts From(uint32_t server) {
    const std::string number = absl::BytesToHexString(gate_.numbers()->NumberFor(server));
    CallerFacts facts;
    facts.peer_numbers = {absl::StrCat(server, " ", number)};
    return facts;
  }
  absl::Status Admit(const char* method, const CallerFacts& facts = {}) {
    return gate_.Admit(*FindMethod(method), facts).status;
  }
  absl::Status Vote(uint32_t server, const CallerFacts& facts = {}) {
    const Admission admission = gate_.Admit(*FindMethod(kVote), facts);
    return admission.status.ok() ? gate_.CheckVoter(admission.caller, server) : admission.status;
  }
  uint64_t Refused(const char* reason) { return metrics_.calls_refused(reason)->value(); }

  ServerMetrics metrics_{BuildInfo()};
  Gate gate_{{}, &metrics_};
};

TEST_F(PlainGateTest, AnOrderCarriesTheNumberThatWasToldTheHome) {
  HeardAll();
  EXPECT_EQ(Admit(kDrop, From(0)), absl::OkStatus());
  EXPECT_EQ(ReasonOf(Admit(kDrop, From(2))), Reason::kNotPermitted);
  EXPECT_EQ(Refused("not_home"), 1u);
  CallerFacts wrong = From(0);
  wrong.peer_numbers[0].back() ^= 1;
  CallerFacts twice = From(0);
  twice.peer_numbers.push_back(twice.peer_numbers[0]);
  for (const CallerFacts& stranger : {CallerFacts(), wrong, twice}) {
    for (const char* const method : {kDrop, kVote, kWhichRest}) {
      const absl::Status status = Admit(method, stranger);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << method;
      EXPECT_EQ(ReasonOf(status), Reason::kNoIdentity) << method;
    }
  }
  EXPECT_EQ(Refused("number"), 9u);
}

TEST_F(PlainGateTest, OfAStrangersCallsThoseOfServersAreRefusedAndNoOthers) {
  HeardAll();
  uint64_t of_servers = 0;
  for (const MethodRow& row : MethodTable()) {
    const bool refused = row.roles.Has(Role::kServer) && row.scope != Scope::kHello;
    of_servers += refused ? 1 : 0;
    EXPECT_EQ(!Admit(row.method).ok(), refused) << row.method;
  }
  EXPECT_EQ(Refused("number"), of_servers);
  EXPECT_GT(of_servers, 0u);
}

TEST_F(PlainGateTest, ARefusalDoesNotShowTheNumber) {
  HeardAll();
  CallerFacts wrong = From(0);
  wrong.peer_numbers[0].back() ^= 1;
  const std::string hex = wrong.peer_numbers[0].substr(2, 30);
  EXPECT_THAT(std::string(Admit(kDrop, wrong).message()), testing::Not(testing::HasSubstr(hex)));
}

TEST_F(PlainGateTest, AServerVotesAsItself) {
  HeardAll();
  EXPECT_EQ(Vote(2, From(2)), absl::OkStatus());
  EXPECT_EQ(ReasonOf(Vote(0, From(2))), Reason::kNotPermitted);
  EXPECT_EQ(Refused("wrong_server"), 1u);
  EXPECT_EQ(Admit(kWhichRest, From(2)), absl::OkStatus());
}

TEST_F(PlainGateTest, BeforeTheServersHaveAnsweredAStrangerIsToldToAskAgain) {
  for (const char* const method : {kDrop, kVote, kWhichRest}) {
    EXPECT_EQ(ReasonOf(Admit(method)), Reason::kRecovering) << method;
  }
  EXPECT_EQ(Admit(kDrop, From(0)), absl::OkStatus()) << "a number proves its sender at once";
}

TEST_F(PlainGateTest, AServerOfAReleaseWithoutNumbersIsBelieved) {
  HeardAll();
  gate_.numbers()->Answered(2, "");
  EXPECT_EQ(gate_.numbers()->HeaderTo(2, 1), "");
  EXPECT_EQ(Vote(2), absl::OkStatus());
  EXPECT_EQ(Vote(0).code(), absl::StatusCode::kUnauthenticated) << "the home has numbers";
  EXPECT_EQ(Admit(kDrop).code(), absl::StatusCode::kUnauthenticated);
  gate_.numbers()->Answered(0, "");
  EXPECT_EQ(Admit(kDrop), absl::OkStatus());
  HeardAll();  // The upgrade is over.
  EXPECT_EQ(Vote(2).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Admit(kDrop).code(), absl::StatusCode::kUnauthenticated);
}

TEST(SecuredGateTest, CertificatesNeedNoNumbers) {
  Gate gate({.secured = true, .domain = "test"}, nullptr);
  EXPECT_EQ(gate.numbers(), nullptr);
}

}  // namespace
}  // namespace ballast::server
