// BorrowedImages: the images of a forked job, some of whose extents are still in the files of the
// snapshot that it was forked from (image_base.h). An extent without a flushed version of its own
// has the borrowed one, which is read from there; every write goes to the job's own images. Once
// each extent has a version of its own that survives, the borrowed files are removed: `base` first,
// so that a crash leaves at most names that nothing needs.
// Comes from: JobStorage::Open. Goes to: two kinds of ImageFile.
// Thread safety: as ImageFile; mu_ guards the table of extents, and is not held over I/O.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "server/durability/images/image_file.h"

namespace ballast::server {

// The images of the job in `directory`: `own`, opened there with `options` and `shapes`, wrapped by
// the borrowed ones; `own` itself where nothing is borrowed, or not any more. Finishes a removal
// that a crash interrupted. `fs` outlives the result. Errors: DATA_LOSS naming the file, when
// `base` or a file it names is missing, damaged or another job's while an extent needs it, and
// nothing is changed then; FAILED_PRECONDITION for a newer format; those of ImageFile::Open.
absl::StatusOr<std::unique_ptr<ImageFile>> OpenBorrowed(FileSystem* fs,
                                                        const std::string& directory,
                                                        const ImageOptions& options,
                                                        const std::vector<ImageShape>& shapes,
                                                        std::unique_ptr<ImageFile> own);

}  // namespace ballast::server
