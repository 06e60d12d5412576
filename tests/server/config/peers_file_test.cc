// The peers file of a cluster: accepted files, and the exact words for refused ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/load.h"

namespace ballast::config {
namespace {

struct BadInput {
  std::string text;
  std::string message;
};

TEST(ParsePeersFile, ReadsJsonAndRefusesTheRest) {
  const auto peers = ParsePeersFile(
      "{\"peers\":[{\"id\":0,\"address\":\"127.0.0.1:1234\"},{\"id\":4,\"address\":\"[::1]:5\"}]}");
  ASSERT_TRUE(peers.ok()) << peers.status();
  ASSERT_EQ(peers->size(), 2u);
  EXPECT_EQ((*peers)[1].id(), 4u);
  EXPECT_EQ((*peers)[1].address(), "[::1]:5");
  const std::vector<BadInput> table = {
      {"", "f: empty; expected {\"peers\": [{\"id\": 0, \"address\": \"host:port\"}]}"},
      {"{}", "f: names no peers"},
      {"{\"peers\":[]}", "f: names no peers"},
      {"{\"peers\":[{\"id\":0}]}", "f:1:11: peers[0]: missing field \"address\""},
      {"{\"peers\":[{\"id\":\"0\",\"address\":\"a:1\"}]}",
       "f:1:17: peers[0].id: expected a whole number, got the text \"0\""},
      {"{\"peers\":[{\"id\":70000,\"address\":\"a:1\"}]}",
       "f:1:17: peers[0].id: 70000 is above the maximum 65535"},
      {"{\"peer\":[]}", "f:1:2: unknown field \"peer\" (did you mean \"peers\"?)"},
  };
  for (const BadInput& bad : table) {
    const auto parsed = ParsePeersFile(bad.text, "f");
    ASSERT_FALSE(parsed.ok()) << bad.text;
    EXPECT_EQ(std::string(parsed.status().message()), bad.message);
  }
}

TEST(ReadPeersFile, DistinguishesAMissingFileFromANonFile) {
  EXPECT_EQ(ReadPeersFile(testing::TempDir() + "/no-such-file").status().code(),
            absl::StatusCode::kNotFound);
  const absl::Status status = ReadPeersFile(testing::TempDir()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "cannot read the peers file " + testing::TempDir() + "; is it a file?");
}

TEST(ValidatePeers, HoldsThemAgainstTheServersOwnConfiguration) {
  ServerConfig config;
  config.mutable_cluster()->set_id(1);
  const auto parsed =
      ParsePeersFile("{peers: [{id: 0, address: 'localhost:1'}, {id: 1, address: '127.0.0.1:2'}]}");
  ASSERT_TRUE(parsed.ok());
  std::vector<Peer> peers = *parsed;
  EXPECT_TRUE(ValidatePeers(config, peers).ok());
  peers[0].set_address("10.0.0.1:0");
  EXPECT_EQ(std::string(ValidatePeers(config, peers).message()),
            "peers[0].address: port 0 cannot be reached; give the port others connect to\n"
            "peers[0].address: \"10.0.0.1:0\" is not a loopback address, and callers prove "
            "nothing there; set security.mode: tls, or on a network you trust "
            "listen.insecure_network: true");
  config.mutable_cluster()->set_id(2);
  config.mutable_listen()->set_insecure_network(true);
  peers[0].set_address("10.0.0.1:1");
  EXPECT_EQ(std::string(ValidatePeers(config, peers).message()),
            "cluster.id: 2 is not among peers; add this server there");
  EXPECT_FALSE(ValidatePeers(config, {}).ok());
}

}  // namespace
}  // namespace ballast::config
