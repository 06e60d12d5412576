#include "tests/fault/meta_files.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "server/meta/rocksdb_store.h"

namespace ballast::fault {
namespace {

namespace fs = std::filesystem;

Image MetaPart(const Image& image) {
  Image part;
  for (const auto& [path, content] : image) {
    if (absl::StartsWith(path, kMetaRoot)) part[path] = content;
  }
  return part;
}

}  // namespace

MetaFolder::MetaFolder() {
  std::string pattern = (fs::temp_directory_path() / "ballast-fault-XXXXXX").string();
  BALLAST_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

MetaFolder::~MetaFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<server::MetaStore>> MetaFolder::Open() const {
  server::RocksDbMetaStoreOptions options;
  options.directory = path_;
  return server::OpenRocksDbMetaStore(options);
}

void MetaFolder::CopyTo(Image* image) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    std::ifstream file(entry.path(), std::ios::binary);
    (*image)[kMetaRoot + entry.path().filename().string()] =
        std::string(std::istreambuf_iterator<char>(file), {});
  }
}

void MetaFolder::TakeFrom(const Image& image) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) fs::remove(entry.path());
  for (const auto& [path, content] : MetaPart(image)) {
    std::ofstream(path_ + path.substr(path.rfind('/')), std::ios::binary) << content;
  }
}

bool SameMeta(const Image& a, const Image& b) { return MetaPart(a) == MetaPart(b); }

}  // namespace ballast::fault
