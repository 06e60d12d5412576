// See staging.h.
#include "client/aio/staging.h"

#include "common/base/status_macros.h"

namespace ballast {

absl::StatusOr<char*> Staging::Take() {
  MutexLock lock(&mu_);
  if (memory_.bytes() == 0) {
    BALLAST_ASSIGN_OR_RETURN(memory_, Arena::Create(chunk_bytes_ * chunks_));
    for (size_t i = chunks_; i-- > 0;) free_.push_back(memory_.data() + i * chunk_bytes_);
  }
  while (free_.empty()) given_.Wait(&mu_);
  char* const chunk = free_.back();
  free_.pop_back();
  return chunk;
}

void Staging::Give(char* chunk) {
  MutexLock lock(&mu_);
  free_.push_back(chunk);
  given_.NotifyOne();  // Under the lock: the owner may go away once all chunks are back.
}

}  // namespace ballast
