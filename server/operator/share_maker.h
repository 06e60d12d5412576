// ShareMaker: the files of this server's share of a job that begins in stored state.
// Comes from: Restorer, Importer. Goes to: JobStore, the images of the new job.
// Thread safety: any thread, one call at a time for a job; every call blocks on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/jobs/cancel_token.h"
#include "server/jobs/job_store.h"
#include "server/jobs/this_server.h"
#include "server/jobs/works.h"

namespace ballast::server {

class ShareMaker {
 public:
  // Reads the state of an extent into `image`, which is on pages; `scratch` is free for its use.
  using ReadState = std::function<absl::Status(uint32_t extent, char* image, char* scratch)>;
  struct Filling {
    std::string kind;  // of the Work
    ImageFile* images = nullptr;
    size_t scratch_bytes = 0;
    const CancelToken* cancel = nullptr;  // asked before each extent; its error is the answer
  };

  // All outlive the object.
  ShareMaker(const ThisServer* self, JobStore* store, Works* works)
      : self_(self), store_(store), works_(works) {}

  // Makes the files, which `fill` fills. Errors: NAME_IN_USE when a whole job of this name is here;
  // those of `fill` and of JobStore::Create.
  absl::Status Make(const JobPlan& plan, const JobStore::Fill& fill);
  // Writes the states of this server's extents; several call `read` at a time.
  absl::Status Fill(const Filling& filling, const JobPlan& plan, const Layout& layout,
                    const ReadState& read);

 private:
  const ThisServer* const self_;
  JobStore* const store_;
  Works* const works_;
};

}  // namespace ballast::server
