// MetaFolder: the files of a server's metadata store. RocksDB writes them to the machine's own file
// system, so they are copied into an image next to the server's other files, and back.
// Comes from: workload.cc, corruptions.cc. Goes to: files under TMPDIR, removed with the object.
// Thread safety: thread-compatible.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/meta/meta_store.h"
#include "tests/fault/damage.h"

namespace ballast::fault {

// Where an image has the files of the metadata store.
inline constexpr char kMetaRoot[] = "/data/meta/";

class MetaFolder {
 public:
  MetaFolder();
  ~MetaFolder();
  MetaFolder(const MetaFolder&) = delete;
  MetaFolder& operator=(const MetaFolder&) = delete;

  // Opens the store on the existing files.
  absl::StatusOr<std::unique_ptr<server::MetaStore>> Open() const;
  // Adds its files, as they are, to `image`.
  void CopyTo(Image* image) const;
  // Makes the folder's files those of `image`.
  void TakeFrom(const Image& image) const;

 private:
  std::string path_;
};

// Whether both images have the same files of the metadata store.
bool SameMeta(const Image& a, const Image& b);

}  // namespace ballast::fault
