// Tests of tools/reference/metrics_page.h, and that the committed page is the one the declarations
// give.
#include "tools/reference/metrics_page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/declarations.h"

namespace ballast::tools {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

constexpr char kRules[] = R"(groups:
  - name: g
    rules:
      # ballast_grad_norm is not used.
      - record: a:b:c
        expr: rate(ballast_rounds_total{job="ballast"}[5m])
      - alert: Slow
        expr: >-
          a:b:c
          < histogram_quantile(0.9, ballast_log_flush_duration_seconds_bucket)
        for: 1m
        annotations:
          summary: ballast_loss_scale
)";

TEST(MetricsOfRules, AnAlertUsesTheMetricsOfItsExpressionAndOfItsRecordingRules) {
  const auto rules = MetricsOfRules(kRules);
  ASSERT_EQ(rules.size(), 2u);
  const std::set<std::string>& slow = rules.at("Slow");
  EXPECT_EQ(slow.count("ballast_log_flush_duration_seconds"), 1u);
  EXPECT_EQ(slow.count("ballast_rounds_total"), 1u);
  EXPECT_EQ(slow.count("ballast_loss_scale"), 0u);
  EXPECT_EQ(rules.at("a:b:c").count("ballast_grad_norm"), 0u);
}

TEST(MetricsPageTest, HasARowForEveryDeclaration) {
  const std::string page = MetricsPage(kRules);
  for (const MetricDeclaration& d : MetricDeclarations()) {
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("\n| `", d.name, "` | "))) << d.name;
  }
  EXPECT_TRUE(absl::StrContains(
      page, "| `ballast_rounds_total` | counter | `tenant`, `run`, `result` | Rounds that ended"));
  EXPECT_TRUE(absl::StrContains(page, "aborted. | `Slow`, `a:b:c` |"));
}

TEST(MetricsPageTest, TheCommittedPageIsCurrent) {
  EXPECT_EQ(ReadFile("docs/reference/metrics.md"),
            MetricsPage(ReadFile("deploy/monitoring/rules.yaml")))
      << "run: ballast_metrics_reference deploy/monitoring/rules.yaml > docs/reference/metrics.md";
}

}  // namespace
}  // namespace ballast::tools
