#include "server/exchange/torch_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/exchange/torch_pickle.h"
#include "zlib.h"

namespace ballast::server {
namespace {

// Alignment of tensors in the archive, as in torch's writer, so that the file can be mapped.
constexpr uint32_t kAlignment = 64;

uint64_t ElementsOf(const std::vector<int64_t>& shape) {
  uint64_t elements = 1;
  for (const int64_t size : shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

StoredZip TensorZip(const std::vector<int64_t>& shape) {
  TorchPickle pickle;
  pickle.BeginDict();
  pickle.Text("param");
  pickle.Tensor(shape, 0);
  pickle.Text("cat_dim");
  pickle.Int(0);
  pickle.EndDict();
  return StoredZip({{"archive/data.pkl", pickle.Finish()},
                    {"archive/byteorder", "little"},
                    {"archive/version", "3\n"}},
                   "archive/data/0", ElementsOf(shape) * sizeof(float), kAlignment);
}

uint32_t CrcOf(const char* data, uint64_t bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(data), bytes));
}

}  // namespace

std::string EncodeTorchFile(const std::string& pickle, const std::vector<float>& records) {
  std::vector<StoredZip::Entry> entries = {{"archive/data.pkl", pickle},
                                           {"archive/byteorder", "little"}};
  for (size_t i = 0; i < records.size(); ++i) {
    const char* const bytes = reinterpret_cast<const char*>(&records[i]);
    entries.push_back({absl::StrCat("archive/data/", i), std::string(bytes, sizeof(float))});
  }
  const std::string version = "3\n";
  StoredZip zip(entries, "archive/version", version.size(), kAlignment);
  zip.SetLastCrc(CrcOf(version.data(), version.size()));
  return zip.Head() + version + zip.Tail();
}

uint64_t TorchTensorFile::FileBytes(const std::vector<int64_t>& shape) {
  return TensorZip(shape).archive_bytes();
}

absl::StatusOr<std::unique_ptr<TorchTensorFile>> TorchTensorFile::Create(
    FileSystem* fs, const std::string& path, const std::vector<int64_t>& shape) {
  std::unique_ptr<TorchTensorFile> file(
      new TorchTensorFile(fs, path, TensorZip(shape), ElementsOf(shape)));
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<File> made,
                           fs->Open(path, {.mode = OpenMode::kCreateNew}));
  BALLAST_RETURN_IF_ERROR(made->Allocate(file->zip_.archive_bytes()));
  return file;
}

absl::StatusOr<bool> TorchTensorFile::Write(uint64_t begin, const char* values, uint64_t count) {
  const uint64_t bytes = count * sizeof(float);
  const Piece piece{begin * sizeof(float), bytes, CrcOf(values, bytes)};
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           fs_->Open(path_, {.mode = OpenMode::kWrite}));
  BALLAST_RETURN_IF_ERROR(
      file->WriteAt(zip_.data_offset() + piece.begin, {ConstBytes{values, bytes}}));
  {
    MutexLock lock(&mu_);
    pieces_.push_back(piece);
  }
  return left_.fetch_sub(count) == count;
}

uint32_t TorchTensorFile::Crc() {
  MutexLock lock(&mu_);
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  uint64_t crc = 0;
  for (const Piece& piece : pieces_) {
    crc = crc32_combine(crc, piece.crc, static_cast<z_off_t>(piece.bytes));
  }
  return static_cast<uint32_t>(crc);
}

absl::Status TorchTensorFile::Finish() {
  if (left_.load() != 0) {
    return absl::InternalError(
        absl::StrCat(path_, ": ", left_.load(), " of ", elements_, " values were not written"));
  }
  zip_.SetLastCrc(Crc());
  const std::string head = zip_.Head();
  const std::string tail = zip_.Tail();
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           fs_->Open(path_, {.mode = OpenMode::kWrite}));
  BALLAST_RETURN_IF_ERROR(file->WriteAt(0, {ConstBytes{head.data(), head.size()}}));
  BALLAST_RETURN_IF_ERROR(file->WriteAt(zip_.data_offset() + elements_ * sizeof(float),
                                        {ConstBytes{tail.data(), tail.size()}}));
  return file->Sync();
}

}  // namespace ballast::server
