// The quota file: its content, and its faults by line and column.
#include "server/config/quota_file.h"

#include "gtest/gtest.h"

namespace ballast::config {
namespace {

using server::kUnlimited;

TEST(QuotaFileTest, ARowTakesItsMissingFieldsFromTheDefaultRow) {
  const auto table = ParseQuotas(
      "tenants:\n"
      "  acme: {jobs: 16, disk: unlimited}\n"
      "  b: {}\n"
      "default: {jobs: 4, seats: 8, dram: 64GiB, disk: 1TiB, in_flight: 1MiB, "
      "waiting_attaches: 2}\n",
      "q");
  ASSERT_TRUE(table.ok()) << table.status();
  const server::Amounts others{.jobs = 4,
                               .seats = 8,
                               .dram_bytes = uint64_t{64} << 30,
                               .disk_bytes = uint64_t{1} << 40,
                               .in_flight_bytes = 1 << 20,
                               .waiting_attaches = 2};
  EXPECT_EQ(table->Of("somebody else"), others);
  EXPECT_EQ(table->Of("b"), others);
  server::Amounts acme = others;
  acme.jobs = 16;
  acme.disk_bytes = kUnlimited;
  EXPECT_EQ(table->Of("acme"), acme);
}

TEST(QuotaFileTest, AnEmptyFileLimitsNothing) {
  const auto table = ParseQuotas("# nothing yet\n", "q");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Of("a"), server::NoLimits());
}

TEST(QuotaFileTest, EachMistakeIsNamedWithItsPlace) {
  const struct {
    const char* text;
    const char* error;
  } cases[] = {
      {"[1]", "q:1:1: a map with default and tenants is expected, got a list"},
      {"tenant: {}",
       "q:1:1: \"tenant\" is not known here; did you mean tenants? known: "
       "default, tenants"},
      {"default: 3", "q:1:10: default: a map is expected, got a single value"},
      {"default:\n  job: 3",
       "q:2:3: \"job\" is not known here; did you mean jobs? known: "
       "jobs, seats, dram, disk, in_flight, waiting_attaches"},
      {"default: {jobs: -1}", "q:1:17: jobs: expected a whole number or unlimited, got \"-1\""},
      {"default: {jobs: 1GiB}", "q:1:17: jobs: expected a whole number or unlimited, got \"1GiB\""},
      {"default: {jobs: '3'}", "q:1:17: jobs: a number is expected, got a text in quotes"},
      {"default: {jobs: [1]}", "q:1:17: jobs: a number is expected, got a list"},
      {"default: {jobs: 1, jobs: 2}", "q:1:20: duplicate field \"jobs\" (first at q:1:11)"},
      {"tenants: {a/b: {}}", "q:1:11: "},
      {"tenants: {a: {dram: 5 parsecs}}", "q:1:21: dram: "},
      {"tenants: {a: &x {}}", "q:1:14: anchors (&name) are not allowed"},
      {"tenants:\n\ta: {}", "q:2:3: not valid YAML: "},
  };
  for (const auto& [text, error] : cases) {
    const absl::Status status = ParseQuotas(text, "q").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(status.message()).substr(0, std::string(error).size()), error) << text;
  }
}

TEST(QuotaFileTest, AllMistakesAreTold) {
  const absl::Status status =
      ParseQuotas("default: {jobs: x}\ntenants: {a: {seats: y}}", "q").status();
  EXPECT_EQ(std::string(status.message()),
            "q:1:17: jobs: expected a whole number or unlimited, got \"x\"\n"
            "q:2:22: seats: expected a whole number or unlimited, got \"y\"");
}

}  // namespace
}  // namespace ballast::config
