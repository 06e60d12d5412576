// NCCL, opened at run time: the client is built and runs without it.
// Comes from: the process, where torch has loaded it, or the system's libnccl.so.2. Goes to:
// NcclComms. Read in NCCL's source and run against a fake, not against NCCL.
// Thread safety: a library does not change after Open.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collective/nccl_abi.h"

namespace ballast::collective {

class NcclLibrary {
 public:
  // The library of that name that this process has loaded already, as torch does; else the one that
  // the loader finds. It stays in the process. Logs path and version.
  // FAILED_PRECONDITION: there is none, it is older than nccl::kLeastVersion, or it lacks a
  // function; the text has the version or path found, the requirement, and the next step.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Open(
      const std::string& name = "libnccl.so.2");

  // As Open, for functions of this process; `path` names them in errors.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Over(const nccl::Functions& functions,
                                                                 const std::string& path);

  const nccl::Functions& functions() const { return functions_; }
  const std::string& path() const { return path_; }
  int version() const { return version_; }

  // An id for one communicator, never used twice. INTERNAL: what NCCL says.
  absl::StatusOr<nccl::UniqueId> NewId() const;

  // The error of a call that returned `result`. UNAVAILABLE: another rank or the network failed;
  // the text is NCCL's own, without the call. FAILED_PRECONDITION: NCCL refuses how it is used, as
  // with two ranks on one GPU. INTERNAL: any other.
  absl::Status ErrorOf(const std::string& call, int result) const;

 private:
  NcclLibrary(const nccl::Functions& functions, std::string path, int version)
      : functions_(functions), path_(std::move(path)), version_(version) {}

  const nccl::Functions functions_;
  const std::string path_;
  const int version_;
};

// "2.22.3" for 22203.
std::string NcclVersionText(int version);

}  // namespace ballast::collective
