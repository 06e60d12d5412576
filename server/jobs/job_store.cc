#include "server/jobs/job_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/io/sync_path.h"
#include "common/text/names.h"
#include "server/recovery/recovery.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

constexpr char kMaking[] = "making";
constexpr char kGone[] = ".gone";
constexpr char kOrdered[] = ".ordered";
constexpr char kOrderedTemporary[] = ".ordered.tmp";  // ReplaceFile's
constexpr char kLayout[] = "layout-";

Holding Stored(uint64_t job) { return {Holding::Kind::kStored, job}; }
Holding Growth(uint64_t job) { return {Holding::Kind::kGrowth, job}; }
constexpr size_t kNameBytes = 16;  // of a job's directory

absl::Status Lost(const std::string& directory, absl::string_view what) {
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(directory, ": ", what,
                   ". Nothing was changed: put back the data directory as a whole, or give this "
                   "job up by giving its directory the name ",
                   directory, kGone, ", and start again"));
}

}  // namespace

std::string JobStore::Directory(uint64_t job) const {
  return absl::StrCat(root_, "/", JobIdText(job));
}

absl::StatusOr<JobPlan> JobStore::FindNamed(const QualifiedName& name) const {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t job, records_.IdOf(name));
  if (job != 0) return records_.Find(job);
  return absl::NotFoundError(absl::StrCat("there is no job \"", name.Text(), "\""));
}

absl::StatusOr<std::vector<JobPlan>> JobStore::All() const {
  BALLAST_ASSIGN_OR_RETURN(const auto names, records_.Names());
  std::vector<JobPlan> plans;
  for (const auto& [name, job] : names) {
    BALLAST_ASSIGN_OR_RETURN(JobPlan plan, records_.Find(job));
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::string JobStore::FilesOf(const JobPlan& plan) const {
  const std::string directory = Directory(plan.job);
  if (plan.layout_version == 1) return directory;
  return absl::StrCat(directory, "/", kLayout, plan.layout_version);
}

absl::StatusOr<std::vector<JobStore::Found>> JobStore::Load() {
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(root_));
  BALLAST_RETURN_IF_ERROR(SyncPathTo(fs_, root_));
  BALLAST_ASSIGN_OR_RETURN(const std::set<uint64_t> jobs, FinishRemovals());
  std::vector<Found> found;
  for (const uint64_t job : jobs) {
    BALLAST_ASSIGN_OR_RETURN(std::optional<Found> one, LoadOne(job));
    if (one.has_value()) found.push_back(*std::move(one));
  }
  BALLAST_RETURN_IF_ERROR(AddWithoutDirectory(&found));
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.plan.job < b.plan.job; });
  for (const Found& one : found) {
    quotas_->Note(Stored(one.plan.job), one.plan.tenant, AmountsOf(one.plan));
    if (one.files.ok()) DropOutgrown(one.plan);
  }
  return found;
}

absl::StatusOr<std::set<uint64_t>> JobStore::FinishRemovals() {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->List(root_));
  std::set<uint64_t> jobs, gone;
  for (const std::string& name : names) {
    const std::string id = name.substr(0, kNameBytes);
    uint64_t job = 0;
    if (id.size() != kNameBytes || !absl::SimpleHexAtoi(id, &job) || job == 0) continue;
    if (name == id) jobs.insert(job);
    if (name == id + kGone) gone.insert(job);
    if (name == id + kOrderedTemporary) {  // The server ended before the mark was one.
      BALLAST_RETURN_IF_ERROR(fs_->Remove(absl::StrCat(root_, "/", name)));
    }
  }
  for (const uint64_t job : gone) {
    if (jobs.count(job) == 0) BALLAST_RETURN_IF_ERROR(records_.Remove(job));
    // Leftover files keep no other job from running.
    const absl::Status removed = fs_->RemoveAll(Directory(job) + kGone);
    if (!removed.ok()) BALLAST_LOG(WARN) << "left over: " << removed;
  }
  return jobs;
}

absl::StatusOr<std::optional<JobStore::Found>> JobStore::LoadOne(uint64_t job) {
  const std::string directory = Directory(job);
  const absl::StatusOr<std::vector<std::string>> files = fs_->List(directory);
  const bool marked =
      files.ok() && std::find(files->begin(), files->end(), kMaking) != files->end();
  absl::StatusOr<JobPlan> plan = records_.Find(job);
  if (absl::IsNotFound(plan.status())) {
    BALLAST_RETURN_IF_ERROR(files.status());
    if (!files->empty() && !marked) {
      return Lost(directory, "the metadata store has no record of this job");
    }
    BALLAST_LOG(WARN) << "clearing away " << directory << ", which was left half made";
    BALLAST_RETURN_IF_ERROR(Discard(directory));
    return std::optional<Found>();
  }
  if (absl::IsDataLoss(plan.status())) return Lost(directory, plan.status().message());
  BALLAST_RETURN_IF_ERROR(plan.status());
  absl::Status whole = files.status();
  // A crash kept the mark; with it the job would be taken for half made should its record be lost.
  if (marked) {
    whole = fs_->Remove(absl::StrCat(directory, "/", kMaking));
    if (whole.ok()) whole = fs_->SyncDirectory(directory);
  }
  return std::optional<Found>(Found{*std::move(plan), std::move(whole)});
}

// A directory is made before its record and goes before it, so a record without one lost it.
absl::Status JobStore::AddWithoutDirectory(std::vector<Found>* found) const {
  std::set<uint64_t> loaded;
  for (const Found& one : *found) loaded.insert(one.plan.job);
  BALLAST_ASSIGN_OR_RETURN(const auto names, records_.Names());
  for (const auto& [name, job] : names) {
    if (loaded.count(job) != 0) continue;
    BALLAST_ASSIGN_OR_RETURN(JobPlan plan, records_.Find(job));
    found->push_back({std::move(plan),
                      absl::DataLossError(absl::StrCat(Directory(job), ": the directory of job ",
                                                       Quoted(name), " is missing"))});
  }
  return absl::OkStatus();
}

uint64_t JobStore::DiskBytes(const JobPlan& plan, uint32_t server) const {
  const absl::StatusOr<Layout> layout = LayoutOfSpec(plan.spec);
  if (!layout.ok()) return 0;  // Impossible for an accepted plan.
  return JobStorage::DiskBytes(SizesOf(plan, *layout, server));
}

StorageOptions JobStore::SizesOf(const JobPlan& plan, const Layout& layout, uint32_t server) const {
  return StorageOptionsOf(plan, layout, server, checkpoint_rounds_);
}

StorageOptions JobStore::OptionsOf(const JobPlan& plan, const Layout& layout) const {
  StorageOptions options = SizesOf(plan, layout, self_);
  options.log_secret = new_secret_();
  return options;
}

Amounts JobStore::AmountsOf(const JobPlan& plan) const {
  return {.jobs = 1, .disk_bytes = DiskBytes(plan, self_)};
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Create(const JobPlan& plan,
                                                             const Fill& fill) {
  BALLAST_RETURN_IF_ERROR(records_.CheckFits(plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const std::string directory = Directory(plan.job);
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(directory));
  auto made = CreateMarked(plan, layout, directory, fill);
  if (!made.ok()) Remove(plan.job).IgnoreError();  // The first error is the one to tell.
  return made;
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::CreateMarked(const JobPlan& plan,
                                                                   const Layout& layout,
                                                                   const std::string& directory,
                                                                   const Fill& fill) {
  BALLAST_RETURN_IF_ERROR(quotas_->Take(Stored(plan.job), plan.tenant, AmountsOf(plan)));
  const std::string mark = absl::StrCat(directory, "/", kMaking);
  BALLAST_RETURN_IF_ERROR(fs_->Open(mark, {.mode = OpenMode::kCreate}).status());
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(directory));
  BALLAST_FAILPOINT_RETURN("job.before_create");
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStorage> storage,
                           JobStorage::Create(fs_, FilesOf(plan), OptionsOf(plan, layout)));
  if (fill != nullptr) BALLAST_RETURN_IF_ERROR(fill(storage.get()));
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(directory));
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(root_));
  BALLAST_RETURN_IF_ERROR(records_.Create(plan));
  BALLAST_RETURN_IF_ERROR(fs_->Remove(mark));
  BALLAST_FAILPOINT("job.after_create");
  return storage;
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Grow(const JobPlan& plan) {
  BALLAST_RETURN_IF_ERROR(records_.CheckFits(plan));
  const Amounts amounts{.disk_bytes = DiskBytes(plan, self_)};
  BALLAST_RETURN_IF_ERROR(quotas_->Take(Growth(plan.job), plan.tenant, amounts));
  auto made = GrowFiles(plan);
  if (!made.ok()) quotas_->Give(Growth(plan.job));
  return made;
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::GrowFiles(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const std::string files = FilesOf(plan);
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(files));
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(files));
  auto made = JobStorage::Create(fs_, files, OptionsOf(plan, layout));
  absl::Status status = made.status();
  if (status.ok()) status = fs_->SyncDirectory(Directory(plan.job));
  if (status.ok()) return made;
  fs_->RemoveAll(files).IgnoreError();  // The first error is the one to tell.
  return status;
}

void JobStore::DropOutgrown(const JobPlan& plan) {
  const std::string directory = Directory(plan.job);
  const std::string files = FilesOf(plan);
  const absl::StatusOr<std::vector<std::string>> names = fs_->List(directory);
  absl::Status status = names.status();
  for (size_t i = 0; status.ok() && i < names->size(); ++i) {
    const std::string path = absl::StrCat(directory, "/", (*names)[i]);
    if (absl::StartsWith((*names)[i], kLayout)) {
      if (path != files) status = fs_->RemoveAll(path);
    } else if (plan.layout_version > 1) {
      status = fs_->Remove(path);
    }
  }
  if (!status.ok()) {
    BALLAST_LOG(WARN, LogField("run", plan.spec.name)) << "left over: " << status;
    return;
  }
  quotas_->Give(Growth(plan.job));
  quotas_->Note(Stored(plan.job), plan.tenant, AmountsOf(plan));
}

// Removing many files is not one step, giving their directory another name is. Files that an
// earlier removal has moved stay until the record is gone: without them the record counts as lost.
absl::Status JobStore::MoveAway(const std::string& directory) {
  const std::string gone = directory + kGone;
  const absl::Status listed = fs_->List(directory).status();
  // One that may not be read can still be given another name.
  const bool there = listed.ok() || absl::IsPermissionDenied(listed);
  if (!there && !absl::IsNotFound(listed)) return listed;
  if (there) {
    BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(gone));
    BALLAST_FAILPOINT("job.before_remove");
    BALLAST_RETURN_IF_ERROR(fs_->Rename(directory, gone));
  }
  const absl::Status synced = fs_->SyncDirectory(root_);
  // The record stays for now, and needs its files.
  if (!synced.ok() && there) fs_->Rename(gone, directory).IgnoreError();
  if (synced.ok()) BALLAST_FAILPOINT("job.after_remove");
  return synced;
}

// For a job without a record.
absl::Status JobStore::Discard(const std::string& directory) {
  BALLAST_RETURN_IF_ERROR(MoveAway(directory));
  return fs_->RemoveAll(directory + kGone);
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Open(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  auto opened = JobStorage::Open(fs_, FilesOf(plan), OptionsOf(plan, layout));
  if (!opened.ok()) return StateLostIn(plan, self_, opened.status());
  return opened;
}

absl::Status JobStore::Remove(uint64_t job) {
  const std::string directory = Directory(job);
  BALLAST_RETURN_IF_ERROR(MoveAway(directory));
  BALLAST_RETURN_IF_ERROR(records_.Remove(job));
  const absl::Status removed = fs_->RemoveAll(directory + kGone);
  if (!removed.ok() && !absl::IsPermissionDenied(removed)) return removed;
  if (!removed.ok()) BALLAST_LOG(WARN) << "left over, to be removed by hand: " << removed;
  quotas_->Give(Growth(job));
  quotas_->Give(Stored(job));
  return absl::OkStatus();
}

// --- At the home of jobs that continue from elsewhere
// ----------------------------------------------

std::string JobStore::OrderedPath(uint64_t job) const {
  return absl::StrCat(Directory(job), kOrdered);
}

absl::Status JobStore::MarkOrdered(uint64_t job) {
  const absl::Status marked = ReplaceFile(fs_, OrderedPath(job), "");
  if (marked.ok()) return marked;
  // The name may be there. No order follows, so it must not outlive this.
  ClearOrdered(job).IgnoreError();  // The first error is the one to tell.
  fs_->SyncDirectory(root_).IgnoreError();
  return marked;
}

absl::Status JobStore::ClearOrdered(uint64_t job) {
  const absl::Status removed = fs_->Remove(OrderedPath(job));
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

bool JobStore::IsOrdered(uint64_t job) const {
  const absl::StatusOr<std::vector<std::string>> names = fs_->List(root_);
  return names.ok() && std::count(names->begin(), names->end(), JobIdText(job) + kOrdered) != 0;
}

absl::StatusOr<std::vector<uint64_t>> JobStore::OrderedOnly() {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->List(root_));
  std::vector<uint64_t> jobs;
  for (const std::string& name : names) {
    uint64_t job = 0;
    const std::string id = name.substr(0, kNameBytes);
    if (name != id + kOrdered || !absl::SimpleHexAtoi(id, &job) || job == 0) continue;
    const absl::Status found = records_.Find(job).status();
    if (absl::IsNotFound(found)) {
      jobs.push_back(job);
    } else {
      BALLAST_RETURN_IF_ERROR(found);
      BALLAST_RETURN_IF_ERROR(ClearOrdered(job));
    }
  }
  return jobs;
}

}  // namespace ballast::server
