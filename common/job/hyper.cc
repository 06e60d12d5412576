#include "common/job/hyper.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace ballast {

std::string HyperRefusal(const OptimizerRow& row, const Options& options, const Hyper& hyper) {
  if (hyper.size() != row.hyper.size()) {
    return absl::StrCat(" has ", hyper.size(), " hyper-parameters; ", row.name, " has ",
                        row.hyper.size());
  }
  for (size_t k = 0; k < row.hyper.size(); ++k) {
    const double value = hyper[k];
    const HyperKey& key = row.hyper[k];
    if (!std::isfinite(value) || value < 0 || value >= key.limit) {
      return absl::StrCat(": ", key.name, " is ", value, "; it must be ",
                          std::isinf(key.limit) ? std::string("finite and at least 0")
                                                : absl::StrCat("at least 0 and below ", key.limit));
    }
    if (key.needs != kNoOption && options[key.needs] == 0 && value != 0) {
      return absl::StrCat(": ", key.name, " is ", value, "; the job began without ",
                          row.options[key.needs].name, " in any group, so it must stay 0");
    }
  }
  const bool lamb = row.kind == OptimizerKind::kLamb;
  if (lamb && hyper[kLambMaxCoeff] < hyper[kLambMinCoeff]) {
    return absl::StrCat(": max_coeff is ", hyper[kLambMaxCoeff],
                        "; it must be at least min_coeff, which is ", hyper[kLambMinCoeff]);
  }
  return "";
}

}  // namespace ballast
