#include "tools/reference/metrics_page.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/metrics/declarations.h"

namespace ballast::tools {
namespace {

constexpr char kHead[] =
    R"(<!-- Generated: ballast_metrics_reference deploy/monitoring/rules.yaml, into this file -->
# Metrics

What `/metrics` on a server's admin port exports, in Prometheus' text format. Names end in their
unit; a counter ends in `_total` and starts again from 0 with the process. Of a histogram `X`
Prometheus stores `X_bucket`, `X_sum` and `X_count`. Series with the labels `tenant` and `run` are
of one job: they begin when the job is made or recovered at this server, and end when its memory is
given back, at most `timing.job_ttl` after the job's end. Series with a label `reason`, `where` or
`grpc_code` begin with their first event; `grpc_code="OK"` is there from the start.

The last column names the alerts and recorded series of
[rules.yaml](../../deploy/monitoring/rules.yaml) that use the metric.
[operations.md](../operations.md#alerts) says what to do about an alert.

| Metric | Type | Labels | Meaning | Used by |
|---|---|---|---|---|
)";

bool IsWordByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':';
}

// All words of an expression, without the suffixes of histograms.
void AddWords(absl::string_view text, std::set<std::string>* words) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin;
    while (end < text.size() && IsWordByte(text[end])) ++end;
    if (end > begin) {
      absl::string_view word = text.substr(begin, end - begin);
      words->insert(std::string(word));
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (absl::ConsumeSuffix(&word, suffix)) words->insert(std::string(word));
      }
    }
    begin = end + 1;
  }
}

const char* TypeName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "";
}

std::string LabelsText(absl::string_view labels) {
  const std::vector<std::string> names = absl::StrSplit(labels, ", ", absl::SkipEmpty());
  return absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, "`", name, "`");
  });
}

}  // namespace

std::map<std::string, std::set<std::string>> MetricsOfRules(absl::string_view rules_yaml) {
  std::map<std::string, std::set<std::string>> words;
  std::set<std::string>* rule = nullptr;
  bool in_expression = false;
  for (absl::string_view line : absl::StrSplit(rules_yaml, '\n')) {
    absl::string_view text = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(text, "#")) continue;
    if (absl::ConsumePrefix(&text, "- alert: ") || absl::ConsumePrefix(&text, "- record: ")) {
      rule = &words[std::string(text)];
      in_expression = false;
      continue;
    }
    if (absl::ConsumePrefix(&text, "expr:")) {
      in_expression = true;
    } else if (absl::StartsWith(text, "for:") || absl::StartsWith(text, "labels:") ||
               absl::StartsWith(text, "annotations:")) {
      in_expression = false;
    }
    if (rule != nullptr && in_expression) AddWords(text, rule);
  }
  for (auto& [name, used] : words) {
    for (const std::string& word : std::set<std::string>(used)) {
      const auto recorded = words.find(word);
      if (recorded != words.end()) used.insert(recorded->second.begin(), recorded->second.end());
    }
  }
  return words;
}

std::string MetricsPage(absl::string_view rules_yaml) {
  const auto rules = MetricsOfRules(rules_yaml);
  std::string page = kHead;
  for (const MetricDeclaration& d : MetricDeclarations()) {
    std::vector<std::string> users;
    for (const auto& [rule, words] : rules) {
      if (words.count(d.name) != 0) users.push_back(absl::StrCat("`", rule, "`"));
    }
    absl::StrAppend(&page, "| `", d.name, "` | ", TypeName(d.kind), " | ", LabelsText(d.labels),
                    " | ", d.help, " | ", absl::StrJoin(users, ", "), " |\n");
  }
  return page;
}

}  // namespace ballast::tools
