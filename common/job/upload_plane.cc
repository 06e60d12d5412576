#include "common/job/upload_plane.h"

#include "absl/strings/str_cat.h"

namespace ballast {

std::string UploadPlaneText(UploadPlane plane, std::span<const StateArray> arrays) {
  if (plane == UploadPlane::kNone) return "gradients";
  if (plane == UploadPlane::kWeights) return "weights";
  const uint32_t array = ArrayOf(plane);
  if (array > arrays.size()) return absl::StrCat("plane ", static_cast<uint32_t>(plane));
  const char* const shown = array == 0 ? "masters" : arrays[array - 1].shown;
  return absl::StrCat(IsLowPlane(plane) ? "the low half of " : "", shown);
}

std::string ScheduleIndexRefusal(std::optional<int64_t> index, bool scheduled) {
  if (!index.has_value()) return "";
  if (!scheduled) {
    return absl::StrCat(" with position ", *index,
                        " of a schedule, and the job has none; leave it out");
  }
  if (*index >= -1 && *index <= static_cast<int64_t>(kStepCountMax)) return "";
  return absl::StrCat(" with position ", *index, " of the schedule; positions are -1 to ",
                      kStepCountMax);
}

}  // namespace ballast
