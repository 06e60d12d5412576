#include "common/job/upload_plane.h"

namespace ballast {

const char* UploadPlaneText(UploadPlane plane) {
  switch (plane) {
    case UploadPlane::kNone:
      return "gradients";
    case UploadPlane::kWeights:
      return "weights";
    case UploadPlane::kP:
      return "masters";
    case UploadPlane::kPLow:
      return "the low half of masters";
    case UploadPlane::kM:
      return "first moments";
    case UploadPlane::kMLow:
      return "the low half of first moments";
    case UploadPlane::kV:
      return "second moments";
    case UploadPlane::kVLow:
      return "the low half of second moments";
  }
  return "?";
}

}  // namespace ballast
