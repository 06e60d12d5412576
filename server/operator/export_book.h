// ExportBook: accounts at the home for the disk space of exports, per tenant. An export belongs to
// the user: it has no record, and its directory is removed by hand. So the book is a file next to
// the exports, `.quotas-<owner>`, with a line "<bytes> <tenant> <name>" for each, and an export
// without a directory is dropped when the book is next opened. Files left by a failed removal count
// until a start, or the next export of the same name, removes them. The next export does so only if
// the removal got as far as its rename; otherwise it is refused, as the name exists.
// Comes from: Exporter. Goes to: Exports, Quotas.
// Thread safety: on the thread of BackgroundTasks for exports, and Count before that; every call
// blocks on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/text/qualified_name.h"
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
  // As Exports::Remove, for an abandoned export.
  absl::Status Remove(const QualifiedName& name);
  // After a start: charges existing exports to the quotas. An unreadable book is logged, and its
  // exports do not count.
  void Count();

 private:
  void Read();
  absl::Status Write() const;
  // Gives back the space of exports that users have removed.
  void DropGone();
  // Counts the remaining files of an abandoned export.
  void CountLeft(const QualifiedName& name);
  // Of the tenant "default", whose root is above all others.
  Exports Root() const { return files_->exports(kDefaultTenant); }
  std::string Path() const;

  const ThisServer* const self_;
  const SnapshotFiles* const files_;
  std::map<QualifiedName, uint64_t> bytes_;
};

}  // namespace ballast::server
