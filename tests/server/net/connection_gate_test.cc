// ConnectionGate's three limits, and the entries that it forgets.
#include "server/net/connection_gate.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ballast::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ConnectionGate, CountsOpenConnectionsInTotalAndPerAddress) {
  ConnectionGate gate({.total = 3, .per_address = 2, .per_second = 100});
  EXPECT_EQ(gate.Admit("a", seconds(0)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", seconds(0)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", seconds(0)), ConnectionRefusal::kAddress);
  EXPECT_EQ(gate.Admit("b", seconds(0)), std::nullopt);
  EXPECT_EQ(gate.Admit("c", seconds(0)), ConnectionRefusal::kFull);
  EXPECT_EQ(gate.open(), 3u);
  gate.Release("a");
  EXPECT_EQ(gate.Admit("c", seconds(0)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", seconds(0)), ConnectionRefusal::kFull);
}

TEST(ConnectionGate, AnAddressOpensSoManyInASecondAndHoldsUpNoOther) {
  ConnectionGate gate({.total = 100, .per_address = 100, .per_second = 10});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(gate.Admit("a", seconds(5)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", seconds(5)), ConnectionRefusal::kRate);
  EXPECT_EQ(gate.Admit("b", seconds(5)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", seconds(5) + milliseconds(99)), ConnectionRefusal::kRate);
  EXPECT_EQ(gate.Admit("a", seconds(5) + milliseconds(101)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", seconds(5) + milliseconds(102)), ConnectionRefusal::kRate);
  // No longer pause saves up more.
  int admitted = 0;
  for (int i = 0; i < 20; ++i) admitted += gate.Admit("a", seconds(60)) == std::nullopt ? 1 : 0;
  EXPECT_EQ(admitted, 10);
}

TEST(ConnectionGate, AnAddressWhoseConnectionsAreCutHasToWait) {
  ConnectionGate gate({.total = 100, .per_address = 100, .per_second = 10});
  ASSERT_EQ(gate.Admit("a", seconds(0)), std::nullopt);
  gate.Punish("a", seconds(0));
  EXPECT_EQ(gate.Admit("a", seconds(1)), ConnectionRefusal::kRate);
  EXPECT_EQ(gate.Admit("b", seconds(1)), std::nullopt);
  EXPECT_EQ(gate.Admit("a", milliseconds(1101)), std::nullopt);
  for (int i = 0; i < 20; ++i) gate.Punish("a", seconds(2));
  gate.Release("a");
  gate.Release("a");
  gate.Forget(seconds(6));
  EXPECT_EQ(gate.Admit("a", seconds(7)), ConnectionRefusal::kRate);
  EXPECT_EQ(gate.Admit("a", milliseconds(7101)), std::nullopt);
  gate.Release("a");
  gate.Punish("a", seconds(8));
  gate.Release("b");
  gate.Forget(seconds(9));
  EXPECT_EQ(gate.addresses(), 1u);
  gate.Forget(seconds(20));
  EXPECT_EQ(gate.addresses(), 0u);
}

TEST(ConnectionGate, ForgetsAddressesThatAreGoneAndNoOthers) {
  ConnectionGate gate({.total = 10, .per_address = 10, .per_second = 1});
  ASSERT_EQ(gate.Admit("stays", seconds(0)), std::nullopt);
  ASSERT_EQ(gate.Admit("goes", seconds(0)), std::nullopt);
  gate.Release("goes");
  gate.Forget(milliseconds(999));
  EXPECT_EQ(gate.addresses(), 2u);
  EXPECT_EQ(gate.Admit("goes", milliseconds(999)),
            ConnectionRefusal::kRate);  // Not forgotten too early.
  gate.Forget(seconds(3));
  EXPECT_EQ(gate.addresses(), 1u);
  gate.Release("stays");
}

}  // namespace
}  // namespace ballast::server
