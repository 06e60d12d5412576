// Importer: a job that begins in an export. Every server fills its share of the new job's images
// from the safetensors files. The files may come from anywhere, so all of them are checked.
// Comes from: the Admin service at the home, the Peer service elsewhere. Goes to: JobMaker,
// ShareMaker. Thread safety: ImportApi from any thread; owned by the directory's strand.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"
#include "server/operator/job_maker.h"
#include "server/operator/share_maker.h"

namespace ballast::server {

class Importer final : public ImportApi {
 public:
  using Done = std::function<void(absl::StatusOr<ImportInfo>)>;
  using ShareDone = std::function<void(absl::Status)>;

  // Both outlive the object. `isa`: of the conversions.
  Importer(const DirectoryParts& parts, JobMaker* maker, ShareMaker* shares, simd::Isa isa)
      : parts_(parts), maker_(maker), shares_(shares), isa_(isa) {}

  void Import(ImportCall call, Done done) override;
  // On the strand, begins at once.
  void ImportJob(ImportOrder order, ShareDone done) override;

 private:
  // An order ready to be given, and its description for operators.
  struct Ready {
    ImportOrder order;
    ImportInfo info;
  };
  absl::StatusOr<Ready> Prepare(const ImportCall& call) const;
  void MakeAtAll(const Ready& ready, const Done& done);
  absl::Status MakeFiles(const ImportOrder& order, const CancelToken& cancel);

  const DirectoryParts parts_;
  JobMaker* const maker_;
  ShareMaker* const shares_;
  const simd::Isa isa_;
};

}  // namespace ballast::server
