#include "server/directory/counted_attach.h"

#include <utility>

#include "common/base/status_macros.h"

namespace ballast::server {

absl::StatusOr<AttachDone> CountAttach(const std::shared_ptr<Quotas>& quotas,
                                       const AttachCall& call, const AttachDone& done) {
  const Holding attach{Holding::Kind::kAttach, quotas->NewNumber()};
  BALLAST_RETURN_IF_ERROR(quotas->Take(attach, call.caller.tenant(), {.waiting_attaches = 1}));
  return AttachDone([done, counted = GiveAtEnd(quotas, attach)](
                        absl::StatusOr<AttachResult> result) { done(std::move(result)); });
}

}  // namespace ballast::server
