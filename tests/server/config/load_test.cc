// Loading of the server configuration: sources, their precedence, and the origins of values.
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

// A silent process is found at the first look after report_after: a server looks at its trainers 25
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

TEST(Load, ServiceVariablesOfKubernetesAndDockerAreIgnored) {
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

TEST(Load, AWarningOfAVariableWithAnyBytesInItsNameStaysOneLineOfWhatIsPrinted) {
  LoadOptions options;
  options.env = {{"BALLAST_MINE\nstorage: {checkpoint_rounds: 9}", "1"}, {"BALLAST_\xff", "1"}};
  const auto loaded = Load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->warnings, testing::SizeIs(2));
  LoadOptions again;
  again.text = Print(*loaded);
  const auto second = Load(again);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->config.storage().checkpoint_rounds(),
            loaded->config.storage().checkpoint_rounds());
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

// Found by the fuzz target config: the text after the newline looked like a message of its own.
TEST(Load, AFlagOfAnyBytesIsOneLine) {
  LoadOptions options;
  options.flags = {{"a\n:1:2: b", "x"}};
  EXPECT_EQ(std::string(Load(options).status().message()),
            "--a\\n:1:2: b: unknown field \"a\\n:1:2: b\"");
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

TEST(Load, AMissingFileIsNotFoundAndADirectoryIsRefused) {
  LoadOptions options;
  options.file = testing::TempDir() + "/no-such-dir/server.yaml";
  EXPECT_EQ(Load(options).status().code(), absl::StatusCode::kNotFound);
  options.file = testing::TempDir();
  EXPECT_EQ(Load(options).status().code(), absl::StatusCode::kInvalidArgument);
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
