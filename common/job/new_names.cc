#include "common/job/new_names.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/reason.h"
#include "common/text/inert.h"
#include "common/text/names.h"

namespace ballast {
namespace {

// In UTF-8, U+0080 to U+009F are this byte and one of 80 to 9F; U+00A0 is this byte and A0.
constexpr char kLead = '\xC2';
constexpr unsigned char kBehindC1 = 0xA0;

bool HasC1Control(absl::string_view name) {
  for (size_t at = 0; at + 1 < name.size(); ++at) {
    if (name[at] == kLead && static_cast<unsigned char>(name[at + 1]) < kBehindC1) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckNewNames(std::span<const TensorSpec> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<std::string> names = tensors[i].aliases;
    names.push_back(tensors[i].name);
    const auto bad = std::ranges::find_if(names, HasC1Control);
    if (bad == names.end()) continue;
    return ReasonedError(
        absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
        absl::StrCat("the name ", Inert(Quoted(*bad)), " of new tensor ", i,
                     " contains a control character (U+0080 to U+009F); rename it"),
        {});
  }
  return absl::OkStatus();
}

}  // namespace ballast
