// Messages for a wrong server configuration: tables of bad inputs with their exact texts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/config/load.h"

namespace ballast::config {
namespace {

absl::Status LoadStatus(const std::string& text) {
  LoadOptions options;
  options.file = "server.yaml";
  options.text = text;
  return Load(options).status();
}

struct BadInput {
  std::string text;
  std::string message;
};

void ExpectMessages(const std::vector<BadInput>& table) {
  for (const BadInput& bad : table) {
    const absl::Status status = LoadStatus(bad.text);
    ASSERT_FALSE(status.ok()) << bad.text;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_EQ(std::string(status.message()), bad.message) << bad.text;
  }
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
       "storage, aio, rounds, limits, timing, log, security, isa)"},
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
       "limits, timing, log, security, isa)"},
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
  });
}

TEST(Load, ErrorsOfSizesAndDurationsNameTheUnitsAndTheBounds) {
  ExpectMessages({
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

TEST(Load, RulesOfAddressesNameThePlaceAndTheNextStep) {
  ExpectMessages({
      {"listen: {address: \"0.0.0.0:7000\", advertise_address: \"127.0.0.1:7000\"}\n",
       "server.yaml:1:19: listen.address: \"0.0.0.0:7000\" is not a loopback address, and callers "
       "prove nothing there; set security.mode: tls, or on a network you trust "
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
       "server.yaml:1:18: admin.address: \"myhost:9000\" is not a loopback address, and callers "
       "prove nothing there; set admin.token_file, or on a network you trust "
       "listen.insecure_network: true"},
  });
}

TEST(Load, SecuredPortsMayBeReachedByOthers) {
  EXPECT_TRUE(LoadStatus("listen: {address: \"10.0.0.1:7000\"}\n"
                         "admin: {address: \"10.0.0.1:9000\", token_file: t}\n"
                         "security: {mode: tls, ca: a, certificate: c, key: k}\n")
                  .ok());
  EXPECT_FALSE(LoadStatus("admin: {address: \"10.0.0.1:9000\"}\n"
                          "security: {mode: tls, ca: a, certificate: c, key: k}\n")
                   .ok());
}

TEST(Load, RulesOfSecurityNameThePlaceAndTheNextStep) {
  ExpectMessages({
      {"security: {mode: mtls}\n",
       "server.yaml:1:18: security.mode: expected one of none, tls, got \"mtls\""},
      {"security:\n  mode: tls\n  ca: ca.pem\n  certificate: server.pem\n",
       "security.key: must be set with security.mode: tls; scripts/dev-ca.sh makes files for "
       "tests"},
      {"security:\n  mode: tls\n  ca: ca.pem\n  certificate: \"\"\n  key: server.key\n",
       "server.yaml:4:16: security.certificate: must be set with security.mode: tls; "
       "scripts/dev-ca.sh makes files for tests"},
      {"security: {key: server.key}\n",
       "server.yaml:1:17: security.key: \"server.key\" has no effect without security.mode: tls; "
       "set that, or remove this"},
      {"storage: {must_exist: true}\n",
       "server.yaml:1:23: storage.must_exist: there is no storage.data_dir that could exist; set "
       "that one, or leave this one out"},
      {"security: {tokens_file: t, denied_file: d}\n",
       "server.yaml:1:25: security.tokens_file: \"t\" has no effect without security.mode: tls; "
       "set "
       "that, or remove this\n"
       "server.yaml:1:41: security.denied_file: \"d\" has no effect without security.mode: tls; "
       "set "
       "that, or remove this"},
      {"security: {trust_domain: Ex/ample}\n",
       "server.yaml:1:26: security.trust_domain: \"Ex/ample\" is no trust domain; use 1 to 128 of "
       "a-z 0-9 . _ -, beginning with a letter or a digit"},
      {"security: {trust_domain: -a}\n",
       "server.yaml:1:26: security.trust_domain: \"-a\" is no trust domain; use 1 to 128 of a-z "
       "0-9 "
       ". _ -, beginning with a letter or a digit"},
      {"security: {trust_domain: \"\"}\n",
       "server.yaml:1:26: security.trust_domain: \"\" is no trust domain; use 1 to 128 of a-z 0-9 "
       ". "
       "_ -, beginning with a letter or a digit"},
  });
}

TEST(Load, RulesOfPeersNameThePlaceAndTheNextStep) {
  ExpectMessages({
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
  });
}

TEST(Load, RulesBetweenTwoNumbersSayWhichToRaiseOrLower) {
  ExpectMessages({
      {"rounds: {chunk_bytes: 4MiB}\n",
       "server.yaml:1:23: rounds.chunk_bytes: 4MiB does not fit into limits.max_frame_bytes 4MiB "
       "with 4KiB to spare; lower the first or raise the second"},
      {"rounds: {credit_bytes: 1MiB}\n",
       "server.yaml:1:24: rounds.credit_bytes: 1MiB is below twice rounds.chunk_bytes 1MiB; raise "
       "the first or lower the second"},
      {"limits: {max_rpc_memory_bytes: 63MiB}\n",
       "server.yaml:1:32: limits.max_rpc_memory_bytes: 63MiB is below four times "
       "rounds.credit_bytes 16MiB; raise the first or lower the second"},
      {"limits: {max_rpc_memory_bytes: 1023MiB, max_control_message_bytes: 256MiB}\n",
       "server.yaml:1:32: limits.max_rpc_memory_bytes: 1023MiB is below four times "
       "limits.max_control_message_bytes 256MiB; raise the first or lower the second"},
      {"limits: {max_rpc_memory_bytes: 127MiB, max_frame_bytes: 32MiB}\n",
       "server.yaml:1:32: limits.max_rpc_memory_bytes: 127MiB is below four times "
       "limits.max_frame_bytes 32MiB; raise the first or lower the second"},
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
  const absl::Status status = LoadStatus(text);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(absl::StartsWith(status.message(), "server.yaml:1:1: unknown field"));
  EXPECT_TRUE(absl::StrContains(status.message(), "\nserver.yaml:20:1: unknown field"));
  EXPECT_FALSE(absl::StrContains(status.message(), "unknown_20"));
  EXPECT_TRUE(absl::EndsWith(status.message(), "\nand 10 more"));
}

TEST(Load, ALongWordIsShortenedInTheMessage) {
  const absl::Status status = LoadStatus("? " + std::string(5000, 'a') + "\n: 1\n");
  ASSERT_FALSE(status.ok());
  EXPECT_LT(status.message().size(), 400u);
}

}  // namespace
}  // namespace ballast::config
