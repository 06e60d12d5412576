// The contributors of each extent in the open round: those of the epoch's record, or in an upload
// the lead trainer alone.
// Comes from: the plan, and the first RoundBegin of an upload. Goes to: RoundFsm.
// Thread safety: thread-compatible; a part of RoundFsm.
#pragma once

#include <cstdint>
#include <vector>

#include "common/job/contributors.h"
#include "common/tensor/layout.h"

namespace ballast::server {

class ContributorTable {
 public:
  // Takes the sets of an epoch, one per group of `layout`. The open round is no upload.
  void Take(const std::vector<ContributorSet>& sets, const Layout& layout);

  // The open round is an upload of `slot`, until the next Take or EndUpload.
  void BeginUpload(uint32_t slot) { uploader_ = {slot}; }
  void EndUpload() { uploader_.clear(); }
  bool uploads() const { return !uploader_.empty(); }

  // The extent's contributors, ascending, at least one.
  const std::vector<uint32_t>& Of(uint32_t extent) const {
    return uploads() ? uploader_ : slots_[extent];
  }
  bool Contributes(uint32_t extent, uint32_t slot) const;

 private:
  std::vector<std::vector<uint32_t>> slots_;  // per extent
  std::vector<uint32_t> uploader_;            // empty: no upload
};

}  // namespace ballast::server
