// Loading of the server configuration: precedence, origins, and a table of bad inputs with the
// exact message a user reads.
#include "server/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/config/print.h"

namespace ballast::config {
namespace {

using Strings = std::map<std::string, std::string>;

absl::StatusOr<LoadedConfig> LoadText(const std::string& text, const Strings& env = {},
                                      const Strings& flags = {}) {
  LoadOptions options;
  options.file = "server.yaml";
  options.text = text;
  options.env = env;
  options.flags = flags;
  return Load(options);
}

struct BadInput {
  std::string text;
  std::string message;
};

void ExpectMessages(const std::vector<BadInput>& table) {
  for (const BadInput& bad : table) {
    const auto loaded = LoadText(bad.text);
    ASSERT_FALSE(loaded.ok()) << bad.text;
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_EQ(std::string(loaded.status().message()), bad.message) << bad.text;
  }
}

// Who fell silent is found at the first look after report_after: a server looks at its trainers 25
// times in that time and at its peers with every heartbeat, a trainer at its servers twice as
// often. A trainer thinks for a fifth of a heartbeat before it blames another trainer.
TEST(Load, ByDefaultALossIsToldWithinThreeSeconds) {
  const v1::Timing timing = DefaultConfig().timing();
  const int64_t silence = timing.report_after();
  const int64_t beat = timing.heartbeat_interval();
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_LE(silence + silence / 25 + beat / 5, 3 * kSecond);
  EXPECT_LE(silence + beat, 3 * kSecond);
}

TEST(Load, WithoutAnySourceGivesTheDefaults) {
  const auto loaded = Load({});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.listen().address(), "127.0.0.1:0");
  EXPECT_EQ(loaded->config.rounds().chunk_bytes(), 1 << 20);
  EXPECT_EQ(loaded->config.timing().report_after(), 2'500'000'000);
  EXPECT_EQ(loaded->config.limits().max_tensors(), 1'000'000u);
  EXPECT_EQ(loaded->origins.at("timing.lease"), "default");
  EXPECT_EQ(loaded->config.SerializeAsString(), DefaultConfig().SerializeAsString());
}

TEST(Load, AnEmptyFileAndEmptySectionsGiveTheDefaults) {
  for (const std::string text :
       {"", "\n# only a comment\n", "---\n", "listen:\nstorage:\n", "{}"}) {
    const auto loaded = LoadText(text);
    ASSERT_TRUE(loaded.ok()) << text << loaded.status();
    EXPECT_EQ(loaded->config.SerializeAsString(), DefaultConfig().SerializeAsString()) << text;
  }
}

TEST(Load, UnitsEnumsAndBoolsAreReadAsWritten) {
  const auto loaded = LoadText(
      "listen: {insecure_network: true}\n"
      "storage:\n  dram_budget: 1.5GiB\n  data_dir: /var/lib/b\xc3\xa4llast\n"
      "rounds: {chunk_bytes: 65536, credit_bytes: \"4 MiB\"}\n"
      "timing: {lease: 1.5m, job_ttl: \"2h\"}\n"
      "log: {level: warn, format: json}\nisa: avx2\n");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ServerConfig& config = loaded->config;
  EXPECT_TRUE(config.listen().insecure_network());
  EXPECT_EQ(config.storage().dram_budget(), 3LL << 29);
  EXPECT_EQ(config.storage().data_dir(), "/var/lib/b\xc3\xa4llast");
  EXPECT_EQ(config.rounds().chunk_bytes(), 65536);
  EXPECT_EQ(config.rounds().credit_bytes(), 4 << 20);
  EXPECT_EQ(config.timing().lease(), 90'000'000'000);
  EXPECT_EQ(config.timing().job_ttl(), 7'200'000'000'000);
  EXPECT_EQ(config.log().level(), v1::LOG_LEVEL_WARN);
  EXPECT_EQ(config.log().format(), v1::LOG_FORMAT_JSON);
  EXPECT_EQ(config.isa(), "avx2");
}

TEST(Load, LaterSourcesWinAndOriginsSayWhich) {
  const std::string text = "cluster:\n  id: 1\n  name: file\nlog:\n  level: warn\n";
  const auto loaded = LoadText(text, {{"BALLAST_CLUSTER_ID", "2"}, {"BALLAST_LOG_LEVEL", "error"}},
                               {{"cluster.id", "3"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.cluster().id(), 3u);
  EXPECT_EQ(loaded->config.cluster().name(), "file");
  EXPECT_EQ(loaded->config.log().level(), v1::LOG_LEVEL_ERROR);
  EXPECT_EQ(loaded->origins.at("cluster.id"), "--cluster.id");
  EXPECT_EQ(loaded->origins.at("cluster.name"), "server.yaml:3:9");
  EXPECT_EQ(loaded->origins.at("log.level"), "BALLAST_LOG_LEVEL");
  EXPECT_EQ(loaded->origins.at("log.format"), "default");
}

TEST(Load, AListInAVariableReplacesTheListOfTheFile) {
  const auto loaded = LoadText(
      "listen: {address: \"127.0.0.1:7000\"}\n"
      "cluster: {id: 5, peers: [{id: 5, address: \"localhost:1\"}, {id: 6, address: \"[::1]:2\"}]}",
      {{"BALLAST_CLUSTER_PEERS", "[{id: 5, address: 'localhost:9'}]"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->config.cluster().peers_size(), 1);
  EXPECT_EQ(loaded->config.cluster().peers(0).address(), "localhost:9");
  EXPECT_EQ(loaded->origins.at("cluster.peers[0].id"), "BALLAST_CLUSTER_PEERS:1:7");
  EXPECT_EQ(loaded->origins.count("cluster.peers[1].id"), 0u);
}

TEST(Load, VariablesOfClientsAndOtherProgramsAreIgnored) {
  const auto loaded = LoadText("", {{"BALLAST_ENDPOINTS", "x"},
                                    {"BALLAST_FAILPOINTS", "x"},
                                    {"BALLAST_JOB", "x"},
                                    {"BALLAST_TIME_SCALE", "4"},
                                    {"PATH", "/bin"},
                                    {"LISTEN_ADDRESS", "x"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->warnings, testing::IsEmpty());
}

TEST(Load, WhatKubernetesAndDockerSetForAServiceIsIgnored) {
  const auto loaded = LoadText("", {{"BALLAST_SERVICE_HOST", "10.0.0.1"},
                                    {"BALLAST_SERVICE_PORT", "7000"},
                                    {"BALLAST_SERVICE_PORT_GRPC", "7000"},
                                    {"BALLAST_PORT", "tcp://10.0.0.1:7000"},
                                    {"BALLAST_PORT_7000_TCP", "tcp://10.0.0.1:7000"},
                                    {"BALLAST_PORT_7000_TCP_ADDR", "10.0.0.1"},
                                    {"BALLAST_PORT_7000_TCP_PORT", "7000"},
                                    {"BALLAST_PORT_7000_TCP_PROTO", "tcp"},
                                    {"BALLAST_PORT_53_UDP", "udp://10.0.0.1:53"},
                                    {"BALLAST_ADMIN_SERVICE_HOST", "10.0.0.2"},
                                    {"BALLAST_ADMIN_PORT", "tcp://10.0.0.2:9000"},
                                    {"BALLAST_LOG_PORT_24224_TCP", "tcp://10.0.0.3:24224"},
                                    {"BALLAST_NAME", "/trainer/ballast"},
                                    {"BALLAST_ENV_GOPATH", "/go"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->warnings, testing::IsEmpty());
  EXPECT_EQ(loaded->config.SerializeAsString(), DefaultConfig().SerializeAsString());
}

TEST(Load, UnknownVariablesThatResembleNoFieldAreWarnedOf) {
  const auto loaded = LoadText("", {{"BALLAST_ADDRESS", "127.0.0.1:1"},
                                    {"BALLAST_HOME", "/opt/ballast"},
                                    {"BALLAST_PORT", "7000"},
                                    {"BALLAST_RANKS", "2"},
                                    {"BALLAST_TEST_ANYTHING", "x"},
                                    {"NOT_BALLAST_HOME", "x"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(
      loaded->warnings,
      testing::ElementsAre(
          "BALLAST_ADDRESS: unknown variable, ignored (did you mean "
          "\"BALLAST_LISTEN_ADDRESS\"?)",
          "BALLAST_HOME: unknown variable, ignored", "BALLAST_PORT: unknown variable, ignored",
          "BALLAST_RANKS: unknown variable, ignored (did you mean \"BALLAST_RANK\"?)"));
  EXPECT_TRUE(absl::StrContains(Print(*loaded), "\n# BALLAST_HOME: unknown variable, ignored\n"));
}

TEST(Load, MisspeltVariablesOutsideAnySectionAreErrors) {
  const auto loaded = LoadText("", {{"BALLAST_DRAM_BUDGET", "1GiB"},
                                    {"BALLAST_LISTEN_PORT", "7000"},
                                    {"BALLAST_STROAGE_DATA_DIR", "/data"},
                                    {"BALLAST_TIMESCALE", "4"}});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(std::string(loaded.status().message()),
            "BALLAST_DRAM_BUDGET: unknown variable: the name of its section is missing (did you "
            "mean \"BALLAST_STORAGE_DRAM_BUDGET\"?)\n"
            "BALLAST_LISTEN_PORT: unknown variable: section \"listen\" has no such field\n"
            "BALLAST_STROAGE_DATA_DIR: unknown variable (did you mean "
            "\"BALLAST_STORAGE_DATA_DIR\"?); if it is not meant for ballastd, unset or rename it\n"
            "BALLAST_TIMESCALE: unknown variable (did you mean \"BALLAST_TIME_SCALE\"?); if it is "
            "not meant for ballastd, unset or rename it");
}

TEST(Load, FlagsAreNamedAsTheUserTypedThem) {
  LoadOptions options;
  options.flags = {{"listen.address", "foo"}, {"log.level", "loud"}, {"cluster.id", "-1"}};
  options.flags_typed = {{"listen.address", "--listen"}, {"log.level", "--set log.level"}};
  EXPECT_EQ(std::string(Load(options).status().message()),
            "--cluster.id: cluster.id: -1 is below the minimum 0\n"
            "--set log.level: log.level: expected one of info, warn, error, got \"loud\"");
  options.flags = {{"listen.address", "foo"}};
  EXPECT_EQ(std::string(Load(options).status().message()),
            "--listen: listen.address: expected host:port such as 127.0.0.1:7000 or [::1]:7000, "
            "got \"foo\": there is no port");
}

TEST(Load, MisspeltVariablesAndFlagsAreErrors) {
  const auto loaded = LoadText("",
                               {{"BALLAST_LISTEN_ADRESS", "127.0.0.1:1"},
                                {"BALLAST_LOG_XYZZYXYZZY", "1"},
                                {"BALLAST_ROUNDS_WORKER_THREADS", "many"},
                                {"BALLAST_CLUSTER_PEERS", "[{id: 0, port: 1}]"},
                                {"BALLAST_STORAGE_DATA_DIR", "\xff"}},
                               {{"listen.adress", "x"}, {"listen", "x"}, {"log.level", "loud"}});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(std::string(loaded.status().message()),
            "BALLAST_CLUSTER_PEERS:1:10: unknown field \"port\" (known here: id, address)\n"
            "BALLAST_CLUSTER_PEERS:1:2: cluster.peers[0]: missing field \"address\"\n"
            "BALLAST_LISTEN_ADRESS: unknown variable: section \"listen\" has no such field (did "
            "you mean \"BALLAST_LISTEN_ADDRESS\"?)\n"
            "BALLAST_LOG_XYZZYXYZZY: unknown variable: section \"log\" has no such field\n"
            "BALLAST_ROUNDS_WORKER_THREADS: rounds.worker_threads: expected a whole number, got "
            "\"many\"\n"
            "BALLAST_STORAGE_DATA_DIR: storage.data_dir: must be UTF-8 text on one line, without "
            "control characters\n"
            "--listen: unknown field \"listen\"\n"
            "--listen.adress: unknown field \"listen.adress\" (did you mean \"listen.address\"?)\n"
            "--log.level: log.level: expected one of info, warn, error, got \"loud\"");
}

TEST(Load, StructureErrorsNameThePlace) {
  ExpectMessages({
      {"storage:\n  dram_budgt: 1GiB\n",
       "server.yaml:2:3: unknown field \"dram_budgt\" (did you mean \"dram_budget\"?)"},
      {"lisen: {}\n", "server.yaml:1:1: unknown field \"lisen\" (did you mean \"listen\"?)"},
      {"log:\n  dram_budget: 1GiB\n",
       "server.yaml:2:3: unknown field \"dram_budget\" (did you mean \"storage.dram_budget\"?)"},
      {"log: {qqq: 1}\n", "server.yaml:1:7: unknown field \"qqq\" (known here: level, format)"},
      {"log: {LEVEL: info}\n",
       "server.yaml:1:7: unknown field \"LEVEL\" (known here: level, format)"},
      {"log:\n  level: info\nlog:\n  format: text\n",
       "server.yaml:3:1: duplicate field \"log\" (first at server.yaml:1:1)"},
      {"{\"log\": {\"level\": \"info\", \"level\": \"warn\"}}",
       "server.yaml:1:27: duplicate field \"level\" (first at server.yaml:1:10)"},
      {"log: info\n", "server.yaml:1:6: log: expected a map of fields, got a single value"},
      {"log: [info]\n", "server.yaml:1:6: log: expected a map of fields, got a list"},
      {"- log\n", "server.yaml:1:1: expected a map of fields, got a list"},
      {"just words\n", "server.yaml:1:1: expected a map of fields, got a single value"},
      {"log: {level: [info]}\n",
       "server.yaml:1:14: log.level: expected a single value, got a list"},
      {"log: {level: }\n", "server.yaml:1:14: log.level: expected a single value, got nothing"},
      {"log: {level: ~}\n", "server.yaml:1:14: log.level: expected a single value, got nothing"},
      {"cluster: {peers: {id: 1}}\n",
       "server.yaml:1:18: cluster.peers: expected a list, got a map of fields"},
      {"cluster:\n  peers: [3]\n",
       "server.yaml:2:11: cluster.peers[0]: expected a map of fields, got a single value"},
      {"cluster:\n  peers:\n    - id: 3\n",
       "server.yaml:3:7: cluster.peers[0]: missing field \"address\""},
      {"? [a]\n: 1\n",
       "server.yaml:1:3: a field name is expected here, got a list\n"
       "server.yaml:1:3: unknown field \"\" (known here: listen, admin, cluster, "
       "storage, aio, rounds, limits, timing, log, isa)"},
  });
}

TEST(Load, RefusesWhatYamlAllowsAndConfigurationDoesNotNeed) {
  ExpectMessages({
      {"log: &a {level: info}\n", "server.yaml:1:6: anchors (&name) are not allowed"},
      {"log: &a {level: info}\nadmin: *a\n",
       "server.yaml:1:6: anchors (&name) are not allowed\n"
       "server.yaml:2:8: aliases (*name) are not allowed; write the value out"},
      {"isa: !!str avx2\n", "server.yaml:1:6: tags are not allowed: \"tag:yaml.org,2002:str\""},
      {"isa: avx2\n---\nisa: scalar\n", "server.yaml:2:1: only one document is allowed"},
      {"a: [[[[[[[[[[1]]]]]]]]]]\n",
       "server.yaml:1:11: nested deeper than 8 levels\n"
       "server.yaml:1:1: unknown field \"a\" (known here: listen, admin, cluster, storage, aio, "
       "rounds, "
       "limits, timing, log, isa)"},
      {"log: {level: info}\n,\n", "server.yaml:2:1: not valid YAML: end of map not found"},
      {",", "server.yaml:1:1: only one document is allowed"},
      {"]", "server.yaml:1:1: not valid YAML: illegal flow end"},
      {"log: {level: info\n", "server.yaml:2:1: not valid YAML: end of map flow not found"},
      {"log:\n\tlevel: info\n",
       "server.yaml:2:7: not valid YAML: illegal map value (indentation must be blanks, not tabs)"},
      {"isa: \"abc\n", "server.yaml:1:6: isa: \"abc \" begins or ends with a blank; remove it"},
      {std::string("isa: a\0b\n", 9),
       "server.yaml: not UTF-8 text, or it contains control characters"},
      {"isa: \xc3\x28\n", "server.yaml: not UTF-8 text, or it contains control characters"},
      {"cluster: {name: \"a\\tb\"}\n",
       "server.yaml:1:17: cluster.name: must be UTF-8 text on one line, without control "
       "characters"},
      {std::string((1 << 20) + 1, '#'), "server.yaml: larger than the limit of 1048576 bytes"},
  });
}

TEST(Load, ValueErrorsNameTheFieldTheValueAndTheBounds) {
  ExpectMessages({
      {"listen: {insecure_network: yes}\n",
       "server.yaml:1:28: listen.insecure_network: expected true or false, got \"yes\""},
      {"listen: {insecure_network: \"true\"}\n",
       "server.yaml:1:28: listen.insecure_network: expected true or false, got the text \"true\""},
      {"admin: {enabled: on}\n",
       "server.yaml:1:18: admin.enabled: expected true or false, got \"on\""},
      {"log: {level: INFO}\n",
       "server.yaml:1:14: log.level: expected one of info, warn, error, got \"INFO\""},
      {"isa: sse2\n",
       "server.yaml:1:6: isa: expected one of \"\", \"scalar\", \"avx2\", "
       "\"avx512\", got \"sse2\""},
      {"limits: {max_jobs: \"5\"}\n",
       "server.yaml:1:20: limits.max_jobs: expected a whole number, got the text \"5\""},
      {"limits: {max_jobs: 010}\n",
       "server.yaml:1:20: limits.max_jobs: expected a whole number, got \"010\""},
      {"limits: {max_jobs: 1e3}\n",
       "server.yaml:1:20: limits.max_jobs: expected a whole number, got \"1e3\""},
      {"limits: {max_jobs: -1}\n", "server.yaml:1:20: limits.max_jobs: -1 is below the minimum 1"},
      {"limits: {max_jobs: 99999999999999999999}\n",
       "server.yaml:1:20: limits.max_jobs: \"99999999999999999999\" does not fit into 64 bits"},
      {"limits: {max_jobs: 4294967297}\n",
       "server.yaml:1:20: limits.max_jobs: 4294967297 is above the maximum 65536"},
      {"rounds: {chunk_bytes: 64MiB}\n",
       "server.yaml:1:23: rounds.chunk_bytes: 64MiB is above the maximum 8MiB"},
      {"storage: {memory_budget: 1MiB}\n",
       "server.yaml:1:26: storage.memory_budget: 1MiB is below the minimum 16MiB; 0 means 80 % of "
       "the memory available at start"},
      {"timing: {keepalive_time: 10ms}\n",
       "server.yaml:1:26: timing.keepalive_time: 10ms is below the minimum 1s"},
      {"storage: {dram_budget: 64GB}\n",
       "server.yaml:1:24: storage.dram_budget: size \"64GB\" has the unit \"GB\", which is not "
       "known; accepted units: B, KiB, MiB, GiB, TiB (for example 64MiB)"},
      {"timing: {lease: 10}\n",
       "server.yaml:1:17: timing.lease: duration \"10\" has no unit; accepted units: ns, us, ms, "
       "s, m, h (for example 30s)"},
      {"timing: {lease: -1s}\n",
       "server.yaml:1:17: timing.lease: duration \"-1s\" does not begin with a number; accepted "
       "units: ns, us, ms, s, m, h (for example 30s)"},
  });
}

TEST(Load, RulesAcrossFieldsNameThePlaceAndTheNextStep) {
  ExpectMessages({
      {"listen: {address: \"0.0.0.0:7000\", advertise_address: \"127.0.0.1:7000\"}\n",
       "server.yaml:1:19: listen.address: \"0.0.0.0:7000\" is not a loopback address, and this "
       "version has no TLS and no authentication; on a network you trust set "
       "listen.insecure_network: true"},
      {"listen: {address: \"0.0.0.0:7000\", insecure_network: true}\n",
       "listen.advertise_address: must be set, because others cannot reach listen.address "
       "\"0.0.0.0:7000\""},
      {"listen:\n  address: \"127.0.0.1:1\"\n  advertise_address: \"0.0.0.0:1\"\n"
       "  insecure_network: true\ncluster:\n  peers: [{id: 0, address: \"[::]:1\"}]\n",
       "server.yaml:3:22: listen.advertise_address: a wildcard cannot be reached; give this host's "
       "address\n"
       "server.yaml:6:28: cluster.peers[0].address: a wildcard cannot be reached; give the host's "
       "address"},
      {"listen: {advertise_address: \"127.0.0.1:0\"}\n",
       "server.yaml:1:29: listen.advertise_address: port 0 cannot be reached; give the port others "
       "connect to"},
      {"listen: {address: localhost}\n",
       "server.yaml:1:19: listen.address: expected host:port such as 127.0.0.1:7000 or [::1]:7000, "
       "got \"localhost\": there is no port"},
      {"admin: {address: \"myhost:9000\"}\n",
       "server.yaml:1:18: admin.address: \"myhost:9000\" is not a loopback address, and this "
       "version has no TLS and no authentication; on a network you trust set "
       "listen.insecure_network: true"},
      {"cluster: {name: \"-x\"}\n",
       "server.yaml:1:17: cluster.name: cluster name \"-x\" (2 bytes) is not allowed; use 1 to 128 "
       "letters, digits, '.', '_' or '-', beginning with a letter or digit"},
      {"listen: {address: \"127.0.0.1:1\"}\ncluster:\n  id: 7\n  peers:\n"
       "    - {id: 1, address: \"127.0.0.1:1\"}\n    - {id: 1, address: \"127.0.0.1:1\"}\n",
       "server.yaml:6:12: cluster.peers[1].id: 1 is already the id of cluster.peers[0]\n"
       "server.yaml:6:24: cluster.peers[1].address: \"127.0.0.1:1\" is already the address of "
       "cluster.peers[0]\n"
       "server.yaml:3:7: cluster.id: 7 is not among cluster.peers; add this server there"},
      {"cluster:\n  peers_file: p.json\n  peers: [{id: 0, address: \"127.0.0.1:1\"}]\n",
       "server.yaml:2:15: cluster.peers_file: excludes cluster.peers; remove one of them\n"
       "listen.address: port 0 is not known to the others; with cluster.peers give the port that "
       "stands there, or use cluster.peers_file"},
      {"rounds: {chunk_bytes: 4MiB}\n",
       "server.yaml:1:23: rounds.chunk_bytes: 4MiB does not fit into limits.max_frame_bytes 4MiB "
       "with 4KiB to spare; lower the first or raise the second"},
      {"rounds: {credit_bytes: 1MiB}\n",
       "server.yaml:1:24: rounds.credit_bytes: 1MiB is below twice rounds.chunk_bytes 1MiB; raise "
       "the first or lower the second"},
      {"timing: {report_after: 100ms}\n",
       "server.yaml:1:24: timing.report_after: 100ms must be above timing.heartbeat_interval "
       "500ms; raise the first or lower the second"},
      {"timing: {report_after: 500ms}\n",
       "server.yaml:1:24: timing.report_after: 500ms must be above timing.heartbeat_interval "
       "500ms; raise the first or lower the second"},
      {"timing: {lease: 2s}\n",
       "server.yaml:1:17: timing.lease: 2s must be above timing.report_after 2500ms; raise the "
       "first or lower the second"},
  });
}

TEST(Load, ReportsAllErrorsAndCountsTheRest) {
  std::string text;
  for (int i = 0; i < 30; ++i) absl::StrAppend(&text, "unknown_", i, ": 1\n");
  const auto loaded = LoadText(text);
  ASSERT_FALSE(loaded.ok());
  EXPECT_TRUE(absl::StartsWith(loaded.status().message(), "server.yaml:1:1: unknown field"));
  EXPECT_TRUE(absl::StrContains(loaded.status().message(), "\nserver.yaml:20:1: unknown field"));
  EXPECT_FALSE(absl::StrContains(loaded.status().message(), "unknown_20"));
  EXPECT_TRUE(absl::EndsWith(loaded.status().message(), "\nand 10 more"));
}

TEST(Load, ALongWordIsShortenedInTheMessage) {
  const auto loaded = LoadText("? " + std::string(5000, 'a') + "\n: 1\n");
  ASSERT_FALSE(loaded.ok());
  EXPECT_LT(loaded.status().message().size(), 400u);
}

TEST(Load, AMissingFileIsNotFoundAndADirectoryIsRefused) {
  LoadOptions options;
  options.file = testing::TempDir() + "/no-such-dir/server.yaml";
  EXPECT_EQ(Load(options).status().code(), absl::StatusCode::kNotFound);
  options.file = testing::TempDir();
  EXPECT_EQ(Load(options).status().code(), absl::StatusCode::kInvalidArgument);
}

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

TEST(ReadPeersFile, TellsWhatIsNotThereFromWhatIsNoFile) {
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
            "peers[0].address: \"10.0.0.1:0\" is not a loopback address, and this version has no "
            "TLS and no authentication; on a network you trust set listen.insecure_network: true");
  config.mutable_cluster()->set_id(2);
  config.mutable_listen()->set_insecure_network(true);
  peers[0].set_address("10.0.0.1:1");
  EXPECT_EQ(std::string(ValidatePeers(config, peers).message()),
            "cluster.id: 2 is not among peers; add this server there");
  EXPECT_FALSE(ValidatePeers(config, {}).ok());
}

TEST(Validate, ChecksAConfigurationThatWasBuiltInCode) {
  ServerConfig config;
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
  config.mutable_limits()->set_max_rank(9);
  config.set_isa("neon");
  EXPECT_EQ(std::string(Validate(config).message()),
            "limits.max_rank: 9 is above the maximum 8\n"
            "isa: expected one of \"\", \"scalar\", \"avx2\", \"avx512\", got \"neon\"");
}

}  // namespace
}  // namespace ballast::config
