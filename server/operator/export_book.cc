#include "server/operator/export_book.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace ballast::server {
namespace {

constexpr size_t kBookBytesMax = size_t{64} << 20;

Holding Held(const QualifiedName& name) { return {Holding::Kind::kExport, 0, name.Text()}; }

}  // namespace

std::string ExportBook::Path() const {
  const Exports root = Root();
  return absl::StrCat(root.root(), "/.quotas-", root.owner());
}

absl::Status ExportBook::Begin(const QualifiedName& name, uint64_t bytes, bool state) {
  Exports exports = files_->exports(name.tenant);
  BALLAST_RETURN_IF_ERROR(exports.CheckNew(name.name));
  DropGone();
  Quotas* const quotas = self_->config().quotas.get();
  BALLAST_RETURN_IF_ERROR(quotas->Take(Held(name), name.tenant, {.disk_bytes = bytes}));
  bytes_[name] = bytes;
  absl::Status begun = exports.Begin(name.name, bytes, state);
  if (!begun.ok()) {
    CountLeft(name);
    return begun;
  }
  // A start before this is through removes the directory.
  begun = Write();
  if (!begun.ok()) Remove(name).IgnoreError();  // The first error is the one to tell.
  return begun;
}

absl::Status ExportBook::Remove(const QualifiedName& name) {
  absl::Status removed = files_->exports(name.tenant).Remove(name.name);
  CountLeft(name);
  removed.Update(Write());
  return removed;
}

// What cannot be looked at counts as before.
void ExportBook::CountLeft(const QualifiedName& name) {
  const absl::StatusOr<uint64_t> left = files_->exports(name.tenant).BytesOnDisk(name.name);
  if (!left.ok()) return;
  if (*left == 0) {
    self_->config().quotas->Give(Held(name));
    bytes_.erase(name);
  } else {
    self_->config().quotas->Note(Held(name), name.tenant, {.disk_bytes = *left});
    bytes_[name] = *left;
  }
}

void ExportBook::Count() {
  if (!self_->IsHome() || !files_->keeps()) return;
  Read();
  DropGone();
  for (const auto& [name, bytes] : bytes_) {
    self_->config().quotas->Note(Held(name), name.tenant, {.disk_bytes = bytes});
  }
}

void ExportBook::DropGone() {
  std::erase_if(bytes_, [&](const auto& line) {
    if (files_->exports(line.first.tenant).Exists(line.first.name)) return false;
    self_->config().quotas->Give(Held(line.first));
    return true;
  });
}

void ExportBook::Read() {
  const auto text = ReadWholeFile(Root().fs(), Path(), kBookBytesMax);
  if (absl::IsNotFound(text.status())) return;
  if (!text.ok()) {
    BALLAST_LOG(WARN) << "exports do not count against quotas: " << text.status();
    return;
  }
  for (const absl::string_view row : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(row, ' ');
    uint64_t bytes = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &bytes)) {
      BALLAST_LOG(WARN) << Path() << ": a line that is none is left out";
      continue;
    }
    bytes_[{words[1], words[2]}] = bytes;
  }
}

absl::Status ExportBook::Write() const {
  std::string text;
  for (const auto& [name, bytes] : bytes_) {
    absl::StrAppend(&text, bytes, " ", name.tenant, " ", name.name, "\n");
  }
  return ReplaceFile(Root().fs(), Path(), text);
}

}  // namespace ballast::server
