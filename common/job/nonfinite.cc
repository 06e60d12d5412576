#include "common/job/nonfinite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"

namespace ballast {
namespace {

// Row-major index of `element` in `shape`; empty for a scalar.
std::string IndexText(const std::vector<int64_t>& shape, uint64_t element) {
  std::vector<uint64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    const auto size = std::max<uint64_t>(1, static_cast<uint64_t>(shape[d]));
    index[d] = element % size;
    element /= size;
  }
  return index.empty() ? "" : absl::StrCat("[", absl::StrJoin(index, ", "), "]");
}

// "tensor "w"[3, 17] (element 65)".
std::string ElementText(const Layout& layout, const JobSpec& spec, const Nonfinite& nonfinite) {
  if (nonfinite.extent >= layout.extents().size()) {
    return absl::StrCat("extent ", nonfinite.extent, ", element ", nonfinite.element);
  }
  const Extent& extent = layout.extents()[nonfinite.extent];
  const auto first = layout.runs().begin() + extent.first_run;
  const auto after = std::upper_bound(
      first, first + extent.run_count, nonfinite.element,
      [](uint32_t element, const Run& run) { return element < run.extent_offset; });
  const Run& run = after == first ? *first : *(after - 1);
  const TensorSpec& tensor = spec.tensors[run.tensor];
  const uint64_t element = run.tensor_offset + nonfinite.element - run.extent_offset;
  return absl::StrCat("tensor \"", tensor.name, "\"", IndexText(tensor.shape, element),
                      " (element ", element, ")");
}

}  // namespace

bool ComesBefore(const Nonfinite& a, const Nonfinite& b) {
  const auto rank = [](const Nonfinite& nonfinite) {
    const int kind =
        nonfinite.kind == NonfiniteKind::kNone ? 2 : nonfinite.kind == NonfiniteKind::kNorm;
    return std::make_tuple(kind, nonfinite.extent, nonfinite.element);
  };
  return rank(a) < rank(b);
}

std::string NonfiniteText(const Layout& layout, const JobSpec& spec, const Nonfinite& nonfinite) {
  const std::string where = ElementText(layout, spec, nonfinite);
  const std::string value = absl::StrFormat("%.9g", std::bit_cast<float>(nonfinite.value_bits));
  switch (nonfinite.kind) {
    case NonfiniteKind::kNone:
      return "every element is finite";
    case NonfiniteKind::kGradient:
      return absl::StrCat(where, ": slot ", nonfinite.slot, "'s gradient is ", value);
    case NonfiniteKind::kSum:
      return absl::StrCat(where, ": the fp32 sum of the slots overflows when slot ", nonfinite.slot,
                          "'s gradient of ", value, " is added");
    case NonfiniteKind::kNorm:
      break;
  }
  return absl::StrCat(where, ": slot ", nonfinite.slot, "'s gradient is ", value,
                      ", finite, but the sum of squares of its tile overflows fp32");
}

absl::Status HaltError(const Layout& layout, const JobSpec& spec, const UnappliedRound& round) {
  const std::string why =
      spec.policy.loss_scaler.has_value()
          ? absl::StrCat("it overflows, and the loss scale is at its minimum, ",
                         spec.policy.loss_scaler->min_loss_scale)
      : spec.nonfinite == NonfinitePolicy::kHalt
          ? std::string("nonfinite is halt")
          : absl::StrCat("it is number ", round.consecutive_skips,
                         " in a row that cannot be applied; max_consecutive_skips is ",
                         spec.max_consecutive_skips);
  return ReasonedError(
      absl::StatusCode::kAborted, Reason::kNonfinite,
      absl::StrCat(
          "job \"", spec.name, "\": round ", round.round, " was halted (", why,
          "): ", NonfiniteText(layout, spec, round.first), "; ", round.nonfinite,
          " elements are not finite. Nothing was applied: weights and optimizer state are ",
          "those of before the round. Find the cause (data, learning rate, loss_scale), ",
          "then step again",
          !IsDurable(spec) ? "" : ", or start the trainers again with resume=\"auto\""),
      {.job = spec.name, .round = round.round, .slot = static_cast<int>(round.first.slot)});
}

}  // namespace ballast
