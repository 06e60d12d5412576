#include "client/collective/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace ballast::collective {
namespace {

constexpr char kOr[] = ", or give collective= a process group of torch, or leave it out";

template <typename Function>
bool Find(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) absl::StrAppend(missing, missing->empty() ? "" : ", ", name);
  return *function != nullptr;
}

// The names that `library` lacks.
std::string FindAll(void* library, nccl::Functions* f) {
  std::string missing;
  Find(library, "ncclGetVersion", &f->get_version, &missing);
  Find(library, "ncclGetUniqueId", &f->get_unique_id, &missing);
  Find(library, "ncclCommInitRankConfig", &f->comm_init_rank_config, &missing);
  Find(library, "ncclCommGetAsyncError", &f->comm_get_async_error, &missing);
  Find(library, "ncclCommAbort", &f->comm_abort, &missing);
  Find(library, "ncclGroupStart", &f->group_start, &missing);
  Find(library, "ncclGroupEnd", &f->group_end, &missing);
  Find(library, "ncclReduceScatter", &f->reduce_scatter, &missing);
  Find(library, "ncclAllGather", &f->all_gather, &missing);
  Find(library, "ncclGetErrorString", &f->get_error_string, &missing);
  Find(library, "ncclGetLastError", &f->get_last_error, &missing);
  return missing;
}

std::string PathOf(const void* function, const std::string& name) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : name;
}

std::string Needed() { return NcclVersionText(nccl::kLeastVersion); }

}  // namespace

std::string NcclVersionText(int version) {
  // Up to 2.8 a version was 1000 * major + 100 * minor + patch.
  const int major = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / major, ".", version % major / 100, ".", version % 100);
}

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Open(const std::string& name) {
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
  void* library = dlopen(name.c_str(), kFlags | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(name.c_str(), kFlags | RTLD_NODELETE);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no NCCL: ", dlerror(), "; collective=\"nccl\" needs NCCL ", Needed(),
                     " or newer: install a torch with CUDA, which brings it", kOr));
  }
  nccl::Functions functions{};
  const std::string missing = FindAll(library, &functions);
  if (functions.get_version == nullptr || !missing.empty()) {
    int version = 0;
    if (functions.get_version != nullptr) functions.get_version(&version);
    return absl::FailedPreconditionError(
        absl::StrCat(name, " of version ", NcclVersionText(version), " lacks ", missing, "; NCCL ",
                     Needed(), " or newer is needed: install a newer torch", kOr));
  }
  return Over(functions, PathOf(reinterpret_cast<const void*>(functions.get_version), name));
}

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Over(
    const nccl::Functions& functions, const std::string& path) {
  int version = 0;
  const int result = functions.get_version(&version);
  if (result != nccl::kSuccess || version < nccl::kLeastVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL is ", NcclVersionText(version), " (", path, "), and ", Needed(),
                     " or newer is needed, which ends all communicators together: install a newer "
                     "torch or NCCL",
                     kOr));
  }
  BALLAST_LOG(INFO, LogField("version", NcclVersionText(version)), LogField("path", path))
      << "NCCL found";
  return std::shared_ptr<const NcclLibrary>(new NcclLibrary(functions, path, version));
}

absl::StatusOr<nccl::UniqueId> NcclLibrary::NewId() const {
  nccl::UniqueId id{};
  const int result = functions_.get_unique_id(&id);
  if (result != nccl::kSuccess) return ErrorOf("a new id", result);
  return id;
}

absl::Status NcclLibrary::ErrorOf(const std::string& call, int result) const {
  const char* last = functions_.get_last_error(nullptr);
  const std::string text = absl::StrCat(
      "NCCL ", NcclVersionText(version_), " says: ", functions_.get_error_string(result), " (",
      result, ")", last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last);
  switch (result) {
    case nccl::kRemoteError:
    case nccl::kSystemError:
      return absl::UnavailableError(text);
    case nccl::kInvalidArgument:
    case nccl::kInvalidUsage:
      return absl::FailedPreconditionError(absl::StrCat(
          call, ": ", text, "; give each rank a GPU of its own, and all the same job"));
    default:
      return absl::InternalError(absl::StrCat(call, ": ", text, "; restart this trainer"));
  }
}

}  // namespace ballast::collective
