// Reads the typed detail that every status of the client carries. See ballast/error.h.
#include "ballast/error.h"

#include "common/base/reason.h"

namespace ballast::client {

ErrorInfo GetErrorInfo(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  const ErrorFields fields = FieldsOf(status);
  ErrorInfo info;
  info.reason = static_cast<int>(reason);
  info.reason_name = ReasonName(reason);
  info.job = fields.job;
  info.round = fields.round;
  info.slot = fields.slot;
  info.server = fields.server;
  return info;
}

}  // namespace ballast::client
