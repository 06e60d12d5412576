// host:port texts.
#include "common/text/address.h"

#include <gtest/gtest.h>

#include <string>

namespace ballast {
namespace {

TEST(ParseHostPort, ReadsNamesIpv4AndIpv6) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:0")->port, 0);
  EXPECT_EQ(ParseHostPort("my-host.example:65535")->port, 65535);
  EXPECT_EQ(ParseHostPort("my-host.example:65535")->host, "my-host.example");
  EXPECT_EQ(ParseHostPort("[::1]:7000")->host, "::1");
}

TEST(ParseHostPort, RefusesEverythingElse) {
  for (const std::string text : {"", ":", "host", "host:", ":7000", "host:65536", "host:-1",
                                 "host:+1", "host:1x", "::1:7000", "[::1]", "[::1]:", "[]:1",
                                 "[x]:1", "a b:1", "a/b:1", "host:000001", "user@host:1"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseHostPort, NamesASchemeThatDoesNotBelongThere) {
  for (const std::string text : {"http://127.0.0.1:7000", "ipv6://[::1]:7000"}) {
    const absl::Status status = ParseHostPort(text).status();
    EXPECT_NE(status.message().find("has no scheme"), absl::string_view::npos) << status;
  }
}

TEST(ParseEndpoint, RefusesPort0AsWell) {
  EXPECT_EQ(ParseEndpoint("host:7000")->port, 7000);
  EXPECT_FALSE(ParseEndpoint("host").ok());
  const absl::Status status = ParseEndpoint("host:0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("got \"host:0\": port 0"), absl::string_view::npos) << status;
}

TEST(IsLoopback, KnowsTheLoopbackAddressesOnly) {
  for (const std::string host : {"127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const std::string host :
       {"0.0.0.0", "10.0.0.1", "::", "localhost.example", "127.0.0.1.example", "127.1", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(IsWildcard, KnowsBothWildcards) {
  EXPECT_TRUE(IsWildcard("0.0.0.0"));
  EXPECT_TRUE(IsWildcard("::"));
  EXPECT_FALSE(IsWildcard("127.0.0.1"));
  EXPECT_FALSE(IsWildcard("any"));
}

}  // namespace
}  // namespace ballast
