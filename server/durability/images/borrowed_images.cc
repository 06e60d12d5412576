#include "server/durability/images/borrowed_images.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/faults/failpoint.h"
#include "common/text/names.h"
#include "server/durability/images/image_base.h"

namespace ballast::server {
namespace {

constexpr char kPartPrefix[] = "base-";

// `base` first: it alone says that the parts are needed.
absl::Status RemoveBorrowed(FileSystem* fs, const std::string& directory) {
  BALLAST_FAILPOINT_RETURN("fork.before_return");
  const absl::Status removed = fs->Remove(ImageBasePath(directory));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  BALLAST_RETURN_IF_ERROR(fs->SyncDirectory(directory));
  BALLAST_FAILPOINT_RETURN("fork.after_return");
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->List(directory));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kPartPrefix)) continue;
    BALLAST_RETURN_IF_ERROR(fs->Remove(absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

class BorrowedImages : public ImageFile {
 public:
  BorrowedImages(FileSystem* fs, std::string directory, uint64_t round,
                 std::unique_ptr<ImageFile> own)
      : fs_(fs), directory_(std::move(directory)), round_(round), own_(std::move(own)) {}

  // Before anything else is called. A version that an earlier process may have written last counts
  // as the job's own only next to another one, which was flushed before.
  void Borrow(uint32_t extent, const std::shared_ptr<ImageFile>& part) {
    MutexLock lock(&mu_);
    const std::vector<uint64_t> versions = part->Versions(extent);
    if (own_->Versions(extent).size() > 1 || versions != std::vector<uint64_t>{round_}) return;
    extents_[extent].part = part;
    ++needed_;
  }
  // Whether every extent has a version of its own.
  bool empty() const {
    MutexLock lock(&mu_);
    return needed_ == 0;
  }
  std::unique_ptr<ImageFile> TakeOwn() { return std::move(own_); }

  std::vector<uint64_t> Versions(uint32_t extent) const override {
    MutexLock lock(&mu_);
    std::vector<uint64_t> versions = own_->Versions(extent);
    if (IsLent(extent)) versions.push_back(round_);  // All others are newer.
    return versions;
  }

  void Forget(uint32_t extent) override {
    MutexLock lock(&mu_);
    own_->Forget(extent);
    const auto found = extents_.find(extent);
    if (found == extents_.end()) return;
    found->second.part = nullptr;
    found->second.holds = 0;
  }

  uint64_t Flushed(uint32_t extent) const override {
    MutexLock lock(&mu_);
    const auto found = extents_.find(extent);
    if (found != extents_.end() && found->second.holds > 0) return round_;
    const uint64_t own = own_->Flushed(extent);
    return own == 0 && IsLent(extent) ? round_ : own;
  }

  bool NeedsSync(uint32_t extent) const override { return own_->NeedsSync(extent); }

  absl::StatusOr<uint64_t> Hold(uint32_t extent) override {
    MutexLock lock(&mu_);
    const auto found = extents_.find(extent);
    const bool held = found != extents_.end() && found->second.holds > 0;
    if (held || (own_->Flushed(extent) == 0 && IsLent(extent))) {
      if (!IsLent(extent)) {
        return absl::NotFoundError(absl::StrCat("the version of extent ", extent,
                                                " that is held in ", directory_, " is damaged"));
      }
      ++found->second.holds;
      return round_;
    }
    return own_->Hold(extent);
  }

  void LetGo(uint32_t extent) override {
    MutexLock lock(&mu_);
    const auto found = extents_.find(extent);
    if (found == extents_.end() || found->second.holds == 0) return own_->LetGo(extent);
    // The next Sync closes the parts that nothing needs.
    --found->second.holds;
  }

  std::optional<uint64_t> Held(uint32_t extent) const override {
    MutexLock lock(&mu_);
    const auto found = extents_.find(extent);
    if (found == extents_.end() || found->second.holds == 0) return own_->Held(extent);
    return IsLent(extent) ? std::optional(round_) : std::nullopt;
  }

  using ImageFile::Write;
  absl::Status Write(uint32_t extent, uint64_t version, const void* data,
                     absl::Span<const uint32_t> chunk_crcs) override {
    {
      MutexLock lock(&mu_);
      if (IsLent(extent) && version <= round_) {
        return absl::InternalError(absl::StrCat("extent ", extent, " has borrowed version ", round_,
                                                "; version ", version, " is not newer"));
      }
    }
    BALLAST_RETURN_IF_ERROR(own_->Write(extent, version, data, chunk_crcs));
    MutexLock lock(&mu_);
    const auto found = extents_.find(extent);
    if (found != extents_.end()) found->second.written = true;
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    std::vector<uint32_t> covered;
    {
      MutexLock lock(&mu_);
      for (const auto& [extent, borrowed] : extents_) {
        if (borrowed.written) covered.push_back(extent);
      }
    }
    BALLAST_RETURN_IF_ERROR(own_->Sync());
    if (!Return(covered)) return absl::OkStatus();
    // The state does not depend on it; the next start tries again.
    const absl::Status removed = RemoveBorrowed(fs_, directory_);
    if (!removed.ok()) BALLAST_LOG(WARN) << "left over: " << removed;
    return absl::OkStatus();
  }

  absl::Status Read(uint32_t extent, uint64_t version, void* to) override {
    std::shared_ptr<ImageFile> part;
    {
      MutexLock lock(&mu_);
      if (version == round_ && IsLent(extent)) part = extents_.at(extent).part;
    }
    if (part == nullptr) return own_->Read(extent, version, to);
    const absl::Status read = part->Read(extent, version, to);
    if (!absl::IsDataLoss(read)) return read;
    MutexLock lock(&mu_);
    const auto found = extents_.find(extent);
    if (found != extents_.end()) found->second.part = nullptr;
    return read;
  }

 private:
  struct Loan {
    std::shared_ptr<ImageFile> part;  // null: forgotten, or damaged
    bool needed = true;               // no version of its own survives for sure
    bool written = false;             // by this process
    uint32_t holds = 0;               // of the borrowed version
  };

  bool IsLent(uint32_t extent) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = extents_.find(extent);
    return found != extents_.end() && found->second.part != nullptr;
  }

  // Extents with durable versions of their own need no other, unless held. True once: when the
  // borrowed files can be removed.
  bool Return(const std::vector<uint32_t>& survive) {
    MutexLock lock(&mu_);
    for (const uint32_t extent : survive) {
      const auto found = extents_.find(extent);
      if (found != extents_.end() && std::exchange(found->second.needed, false)) --needed_;
    }
    std::erase_if(extents_, [](const auto& entry) {
      return !entry.second.needed && entry.second.holds == 0;
    });
    return needed_ == 0 && extents_.empty() && !std::exchange(returned_, true);
  }

  FileSystem* const fs_;
  const std::string directory_;
  const uint64_t round_;
  std::unique_ptr<ImageFile> own_;

  mutable Mutex mu_;
  std::map<uint32_t, Loan> extents_ ABSL_GUARDED_BY(mu_);
  size_t needed_ ABSL_GUARDED_BY(mu_) = 0;
  bool returned_ ABSL_GUARDED_BY(mu_) = false;
};

absl::Status Lost(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why));
}

absl::StatusOr<ImageBase> ReadBase(FileSystem* fs, const std::string& directory,
                                   const ImageOptions& options) {
  const std::string path = ImageBasePath(directory);
  BALLAST_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(fs, path, kImageBaseBytesMax));
  absl::StatusOr<ImageBase> base = DecodeImageBase(bytes);
  if (absl::IsDataLoss(base.status())) return Lost(path, base.status().message());
  if (!base.ok()) {
    return absl::Status(base.status().code(), absl::StrCat(path, ": ", base.status().message()));
  }
  if (base->job == options.job && base->server == options.server &&
      base->optimizer == options.optimizer && base->formula_id == options.formula_id &&
      base->tile_elements == options.tile_elements) {
    return base;
  }
  return Lost(path, absl::StrCat("it was made for job ", JobIdText(base->job), ", server ",
                                 base->server, ", not for job ", JobIdText(options.job),
                                 ", server ", options.server, "; put the right file there"));
}

// There is no `base`: nothing is borrowed, or nothing is needed any more, or it was lost.
absl::Status CheckNothingNeeded(FileSystem* fs, const std::string& directory,
                                const std::vector<ImageShape>& shapes, const ImageFile& own) {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->List(directory));
  const bool left = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::StartsWith(name, kPartPrefix);
  });
  if (!left) return absl::OkStatus();
  for (const ImageShape& shape : shapes) {
    if (!own.Versions(shape.extent).empty()) continue;
    return Lost(ImageBasePath(directory),
                absl::StrCat("it is missing, and extent ", shape.extent,
                             " has no image but those that it speaks of"));
  }
  return RemoveBorrowed(fs, directory);
}

// Opens a part and looks up the versions to borrow from it.
absl::Status BorrowPart(FileSystem* fs, const std::string& directory, const ImageBase& base,
                        const ImageBasePart& from, const std::map<uint32_t, ImageShape>& wanted,
                        bool direct, BorrowedImages* to) {
  const std::string path = ImageBasePartPath(directory, from.server);
  auto opened =
      ImageFile::Open(fs, path, ImageBasePartOptions(base, from.server, direct), from.shapes);
  if (absl::IsNotFound(opened.status())) return Lost(path, opened.status().message());
  BALLAST_RETURN_IF_ERROR(opened.status());
  const std::shared_ptr<ImageFile> part = *std::move(opened);
  for (const ImageShape& shape : from.shapes) {
    const auto found = wanted.find(shape.extent);
    if (found != wanted.end() && found->second == shape) to->Borrow(shape.extent, part);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageFile>> OpenBorrowed(FileSystem* fs,
                                                        const std::string& directory,
                                                        const ImageOptions& options,
                                                        const std::vector<ImageShape>& shapes,
                                                        std::unique_ptr<ImageFile> own) {
  const absl::StatusOr<ImageBase> base = ReadBase(fs, directory, options);
  if (absl::IsNotFound(base.status())) {
    BALLAST_RETURN_IF_ERROR(CheckNothingNeeded(fs, directory, shapes, *own));
    return own;
  }
  BALLAST_RETURN_IF_ERROR(base.status());
  std::map<uint32_t, ImageShape> wanted;
  for (const ImageShape& shape : shapes) {
    if (own->Versions(shape.extent).size() < 2) wanted[shape.extent] = shape;
  }
  ImageFile* const images = own.get();
  auto borrowed = std::make_unique<BorrowedImages>(fs, directory, base->round, std::move(own));
  for (const ImageBasePart& part : base->parts) {
    BALLAST_RETURN_IF_ERROR(
        BorrowPart(fs, directory, *base, part, wanted, options.direct, borrowed.get()));
  }
  for (const auto& [extent, shape] : wanted) {
    if (!images->Versions(extent).empty() || !borrowed->Versions(extent).empty()) continue;
    return Lost(ImageBasePath(directory),
                absl::StrCat("extent ", extent,
                             " is neither in the images nor in the files that it ", "speaks of"));
  }
  if (!borrowed->empty()) return borrowed;
  BALLAST_RETURN_IF_ERROR(RemoveBorrowed(fs, directory));
  return borrowed->TakeOwn();
}

}  // namespace ballast::server
