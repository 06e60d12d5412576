// Every metric family of a state server: its name, kind, labels and meaning.
// docs/reference/metrics.md is printed from this table. Comes from: nothing. Goes to:
// ServerMetrics, which declares them all, and the reference page. Thread safety: constants.
#pragma once

#include "absl/types/span.h"
#include "common/metrics/registry.h"

namespace ballast {

struct MetricDeclaration {
  const char* name;
  MetricKind kind;
  // Names of the labels that every series of the family has, in their order: "run, result"; "" for
  // none.
  const char* labels;
  const char* help;  // one sentence
};

// All families, in the order of the reference page.
absl::Span<const MetricDeclaration> MetricDeclarations();

// Declares them all.
void DeclareMetrics(MetricRegistry* registry);

}  // namespace ballast
