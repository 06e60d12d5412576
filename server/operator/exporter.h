// Exporter: a job's weights and optimizer state as safetensors files, or as a universal
// checkpoint. Every server writes a shard of whole tensors out of a snapshot, whichever servers
// took it. For an export of the present state the home takes a snapshot for the duration of the
// export. An export is complete once its last file exists. The home writes it after all shards, so
// a reader never takes an interrupted export for a complete one.
// Comes from: the Admin service at the home, the Peer service elsewhere. Goes to: Exports,
// WriteExport. Thread safety: ExportApi from any thread; owned by the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"
#include "server/operator/export_book.h"
#include "server/operator/snapshotter.h"

namespace ballast::server {

class Exporter final : public ExportApi {
 public:
  using Done = std::function<void(absl::StatusOr<ExportInfo>)>;

  // `snapshots` outlives the object. `isa`: of the conversions.
  Exporter(const DirectoryParts& parts, Snapshotter* snapshots, simd::Isa isa)
      : parts_(parts), snapshots_(snapshots), isa_(isa), book_(parts.self, parts.files) {}

  void Export(ExportCall call, Done done) override;
  // On the strand, begins at once.
  void ExportShare(ExportPart part, std::function<void(absl::Status)> done) override;

  // After a start: enters the exports of this server in the quotas. Blocks on the disk.
  void Count() { book_.Count(); }

 private:
  // An export being written, at the home.
  struct Writing {
    ExportCall call;
    SnapshotManifest manifest;
    JobSpec spec;
    std::vector<uint64_t> tensor_step;
    std::vector<ExportShard> shards;
    ExportInfo info;
    Done done;
  };
  using WritingRef = std::shared_ptr<Writing>;

  // Of the present state, and of an existing snapshot.
  void ExportPresent(const ExportCall& call, const Done& done);
  // Of the snapshot `id`; 0: of the one that the call names.
  void ExportSnapshot(const ExportCall& call, uint64_t id, const Done& done);
  ExportOptions OptionsOf(const ExportCall& call) const;
  // Whether an export of the present state fits, with the snapshot that it takes.
  absl::Status CheckRoom(const ExportCall& call, const JobPlan& plan) const;
  absl::StatusOr<WritingRef> Begin(const ExportCall& call, uint64_t id);
  void WriteAtAll(const WritingRef& writing);
  void WriteAt(uint32_t server, const ExportPart& part, const std::shared_ptr<WhenAll>& answers);
  // Whole, or gone.
  void End(const WritingRef& writing, const absl::Status& written);
  // What Commit will write.
  static absl::StatusOr<uint64_t> LastBytes(const Writing& writing);
  static UniversalMoment MomentOf(const Writing& writing);
  absl::Status Commit(const Writing& writing) const;
  absl::Status EndFiles(const Writing& writing, const absl::Status& written);
  absl::Status WriteFiles(const ExportPart& part, const CancelToken& cancel);
  absl::Status WriteShard(const ExportPart& part, const SnapshotManifest& manifest,
                          const JobPlan& plan, const ExportShard& shard, const CancelToken& cancel);

  const DirectoryParts parts_;
  Snapshotter* const snapshots_;
  const simd::Isa isa_;
  ExportBook book_;
};

}  // namespace ballast::server
