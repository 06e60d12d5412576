// ExportBook: what the exports of this server, the home, take of their tenants' disk. An export is
// the user's: it has no record, and its directory is removed by hand. So the book is a file beside
// the exports, `.quotas-<owner>`, with a line "<bytes> <tenant> <name>" for each, and an export
// whose directory is gone is dropped when the book is next opened. What a removal that failed has
// left of an export counts until a start removes it, or the next export of its name does: that only
// if the removal got as far as its rename, else the name is refused as one that is there.
// Comes from: ExportDesk. Goes to: Exports, Quotas.
// Thread safety: on the thread of LongWork for exports, and Count before that; every call blocks on
// the disk.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/base/qualified_name.h"
#include "server/jobs/this_server.h"
#include "server/operator/snapshot_files.h"

namespace ballast::server {

class ExportBook {
 public:
  // Both outlive the object.
  ExportBook(const ThisServer* self, const SnapshotFiles* files) : self_(self), files_(files) {}

  // As Exports::Begin, for the tenant; `bytes`: of all files that it will have; `state`: with
  // optimizer state. Errors: OVER_QUOTA, too. Nothing is left then.
  absl::Status Begin(const QualifiedName& name, uint64_t bytes, bool state);
  // As Exports::Remove, of an export that was given up.
  absl::Status Remove(const QualifiedName& name);
  // After a start: enters what is there in the quotas. A book that cannot be read is logged, and
  // its exports do not count.
  void Count();

 private:
  void Read();
  absl::Status Write() const;
  // Gives back what users have removed.
  void DropGone();
  // Counts what is on the disk of an export that was given up.
  void CountLeft(const QualifiedName& name);
  // Of the tenant "default", whose root is above all others.
  Exports Root() const { return files_->exports(kDefaultTenant); }
  std::string Path() const;

  const ThisServer* const self_;
  const SnapshotFiles* const files_;
  std::map<QualifiedName, uint64_t> bytes_;
};

}  // namespace ballast::server
