// Tests of server/admin/exposition.h: the text of a full server, line by line, and promtool's
// opinion of it.
#include "server/admin/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/metrics/metrics.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A server with one busy job.
std::string RenderBusyServer() {
  ServerMetrics metrics(BuildInfo{"0.1.0", "abc", "avx2"});
  const std::shared_ptr<JobMetrics> job = metrics.Job({.name = "gpt"});
  job->rounds_committed.Add(3);
  job->grad_norm.Set(std::numeric_limits<double>::infinity());
  metrics.ObserveRound(RoundPhase::kCollect, std::chrono::milliseconds(3));
  metrics.frames_rejected("WRONG_EPOCH")->Add();
  metrics.checksum_errors("frame")->Add();
  return RenderMetrics(metrics.registry());
}

// The family a sample line belongs to, without the suffixes of histograms.
std::string FamilyOf(absl::string_view line) {
  absl::string_view name = line.substr(0, line.find_first_of("{ "));
  for (const char* suffix : {"_bucket", "_sum", "_count"}) absl::ConsumeSuffix(&name, suffix);
  return std::string(name);
}

TEST(ExpositionTest, EverySampleIsANumberOfADeclaredFamily) {
  std::set<std::string> with_help, with_type;
  for (absl::string_view line : absl::StrSplit(RenderBusyServer(), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") {
      ASSERT_GE(words.size(), 4u) << line;
      (words[1] == "HELP" ? with_help : with_type).insert(words[2]);
      continue;
    }
    EXPECT_EQ(with_help.count(FamilyOf(line)), 1u) << line;
    EXPECT_EQ(with_type.count(FamilyOf(line)), 1u) << line;
    double value = 0.0;
    EXPECT_TRUE(absl::SimpleAtod(words.back(), &value)) << line;
    // Prometheus sets these itself, from its own configuration.
    EXPECT_THAT(line, Not(HasSubstr("job=")));
    EXPECT_THAT(line, Not(HasSubstr("instance=")));
  }
  EXPECT_EQ(with_help, with_type);
  EXPECT_GE(with_help.size(), 18u);
}

TEST(ExpositionTest, ShowsTheCoreSet) {
  const std::string text = RenderBusyServer();
  for (const char* line :
       {"ballast_rounds_total{tenant=\"default\",run=\"gpt\",result=\"committed\"} 3\n",
        "ballast_rounds_total{tenant=\"default\",run=\"gpt\",result=\"skipped_overflow\"} 0\n",
        "ballast_rounds_total{tenant=\"default\",run=\"gpt\",result=\"halted\"} 0\n",
        "ballast_rounds_total{tenant=\"default\",run=\"gpt\",result=\"aborted\"} 0\n",
        "ballast_round_duration_seconds_bucket{phase=\"collect\",le=\"0.005\"} 1\n",
        "ballast_round_duration_seconds_bucket{phase=\"collect\",le=\"+Inf\"} 1\n",
        "ballast_round_duration_seconds_count{phase=\"collect\"} 1\n",
        "ballast_push_bytes_total{tenant=\"default\",run=\"gpt\"} 0\n",
        "ballast_pull_bytes_total{tenant=\"default\",run=\"gpt\"} 0\n",
        "ballast_copied_bytes_total{tenant=\"default\",run=\"gpt\"} 0\n",
        "ballast_push_duplicates_total 0\n",
        "ballast_push_conflicts_total 0\n",
        "ballast_frames_rejected_total{reason=\"WRONG_EPOCH\"} 1\n",
        "ballast_last_round_commit_timestamp_seconds{tenant=\"default\",run=\"gpt\"} 0\n",
        "ballast_grad_norm{tenant=\"default\",run=\"gpt\"} +Inf\n",
        "ballast_trainers{tenant=\"default\",run=\"gpt\",state=\"unresponsive\"} 0\n",
        "ballast_state_bytes{tier=\"nvme\"} 0\n",
        "ballast_round_phase{tenant=\"default\",run=\"gpt\",phase=\"vote\"} 0\n",
        "ballast_log_flush_duration_seconds_bucket{le=\"5e-05\"} 0\n",
        "ballast_round_duration_seconds_bucket{phase=\"step\",le=\"600\"} 0\n",
        "ballast_checksum_errors_total{where=\"frame\"} 1\n",
        "ballast_build_info{version=\"0.1.0\",revision=\"abc\",isa=\"avx2\"} 1\n",
        "# TYPE process_resident_memory_bytes gauge\n",
        "# TYPE process_cpu_seconds_total counter\n",
        "# TYPE process_open_fds gauge\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(ExpositionTest, SixtyFourJobsTakeLessThanAMegabyte) {
  ServerMetrics metrics(BuildInfo{"0.1.0", "abc", "avx2"});
  std::vector<std::shared_ptr<JobMetrics>> jobs;
  for (int i = 0; i < 64; ++i) {
    jobs.push_back(metrics.Job({.name = std::string(120, 'j') + std::to_string(i)}));
    jobs.back()->push_bytes.Add(UINT64_MAX / 2);
    jobs.back()->grad_norm.Set(0.12345678901234567);
  }
  EXPECT_LT(RenderMetrics(metrics.registry()).size(), size_t{1} << 20);
}

TEST(ExpositionTest, EscapesLabelValues) {
  MetricRegistry registry;
  registry.Declare("a_total", MetricKind::kCounter, "Count.");
  registry.Add("a_total", {{"op", "a\"b\\c\nd"}}, std::make_shared<Counter>());
  EXPECT_THAT(RenderMetrics(registry), HasSubstr("a_total{op=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

TEST(ExpositionTest, PromtoolFindsNoFault) {
  const std::string promtool_anywhere = "PATH=\"$PATH:" TOOLS_FOLDER "\"; promtool ";
  ASSERT_EQ(std::system((promtool_anywhere + "--version >/dev/null 2>&1").c_str()), 0)
      << "no promtool; scripts/setup.sh unpacks one";
  FILE* promtool = popen((promtool_anywhere + "check metrics").c_str(), "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = RenderBusyServer();
  EXPECT_EQ(fwrite(text.data(), 1, text.size(), promtool), text.size());
  EXPECT_EQ(pclose(promtool), 0);
}

}  // namespace
}  // namespace ballast
