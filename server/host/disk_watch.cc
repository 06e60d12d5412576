#include "server/host/disk_watch.h"

#include <sys/statvfs.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"

namespace ballast::server {

DiskBytes ReadDisk(std::string path) {
  struct statvfs disk {};
  while (statvfs(path.c_str(), &disk) != 0) {
    const size_t slash = path.rfind('/');
    if (path.empty() || path == "/" || path == ".") return {};
    path = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  }
  const auto block = static_cast<double>(disk.f_frsize);
  return {static_cast<double>(disk.f_bavail) * block, static_cast<double>(disk.f_blocks) * block,
          (disk.f_flag & ST_RDONLY) != 0};
}

// One directory's disk. Shared by its tasks and the series, so it outlives a late answer.
// Thread-safe.
class DiskWatch::Disk : public std::enable_shared_from_this<Disk> {
 public:
  Disk(Directory directory, const DiskWatchOptions& options, Executor* executor,
       MetricRegistry* registry)
      : directory_(std::move(directory)),
        options_(options),
        executor_(executor),
        registry_(registry) {}

  // Adds the metrics for answers and calls, and asks for the first time.
  void Start() {
    const MetricLabels labels = {{"directory", directory_.label}};
    registry_->AddCallback("ballast_disk_answers", labels,
                           [disk = shared_from_this()] { return disk->Answers() ? 1.0 : 0.0; });
    registry_->AddCallback("ballast_disk_wait_seconds", labels, [disk = shared_from_this()] {
      return std::chrono::duration<double>(disk->Oldest().age).count();
    });
    executor_->Post([disk = shared_from_this()] { disk->AskAgainAndAgain(); });
    executor_->Post([disk = shared_from_this()] { disk->Look(); });
  }

  std::shared_ptr<const Gauge> size() { return {shared_from_this(), &size_}; }

  DiskState Last() {
    return {directory_.label, Answers(), free_.value(), size_.value(), Oldest().age};
  }

  // Age 0: no call is under way.
  CallsUnderWay::Call Oldest() const {
    if (!options_.oldest) return {};
    return options_.oldest(directory_.label).value_or(CallsUnderWay::Call());
  }

  // "the data disk hangs: ..."; empty if it does not.
  std::string Hangs() const {
    const CallsUnderWay::Call call = Oldest();
    if (call.age < kDiskHangs) return "";
    return absl::StrCat("the ", directory_.label, " disk hangs: ", call.what, " of ", call.path,
                        absl::StrFormat(" has not ended for %.0f s. ",
                                        std::chrono::duration<double>(call.age).count()),
                        directory_.waiting,
                        " for it: look at the device and its mount (dmesg, findmnt -T ",
                        directory_.path, ")");
  }

  // Stops asking. True if no question is open any more, within the grace.
  bool Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    const auto end = std::chrono::steady_clock::now() + options_.stop_grace;
    while (asking_) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) return false;
      answered_.WaitFor(&mu_, left);
    }
    return true;
  }

 private:
  bool Answers() {
    MutexLock lock(&mu_);
    return !asking_ || options_.clock->Now() - asked_at_ < options_.patience;
  }

  // Unless an earlier question is still open.
  void Ask() {
    {
      MutexLock lock(&mu_);
      if (stopped_ || asking_) return;
      asking_ = true;
      asked_at_ = options_.clock->Now();
    }
    const DiskBytes bytes = options_.read(directory_.path);
    MutexLock lock(&mu_);
    asking_ = false;
    answered_.NotifyAll();
    if (stopped_) return;  // The registry may be gone.
    free_.Set(bytes.free);
    size_.Set(bytes.size);
    if (!std::exchange(shown_, true)) Show();
  }

  void AskAgainAndAgain() {
    Ask();
    MutexLock lock(&mu_);
    if (stopped_) return;
    executor_->PostAfter(options_.interval,
                         [disk = shared_from_this()] { disk->AskAgainAndAgain(); });
  }

  // Reports that the disk begins to hang, and that it no longer does.
  void Look() {
    const std::string hangs = Hangs();
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (hangs.empty() == hung_) {
      hung_ = !hung_;
      options_.say(hung_ ? hangs
                         : absl::StrCat("the ", directory_.label, " disk ends calls again"));
    }
    executor_->PostAfter(options_.look_interval, [disk = shared_from_this()] { disk->Look(); });
  }

  void Show() {
    const MetricLabels labels = {{"directory", directory_.label}};
    registry_->Add("ballast_disk_free_bytes", labels,
                   std::shared_ptr<const Gauge>(shared_from_this(), &free_));
    registry_->Add("ballast_disk_size_bytes", labels, size());
  }

  const Directory directory_;
  const DiskWatchOptions options_;
  Executor* const executor_;
  MetricRegistry* const registry_;
  Gauge free_;
  Gauge size_;
  Mutex mu_;
  CondVar answered_;
  bool asking_ ABSL_GUARDED_BY(mu_) = false;
  bool hung_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool shown_ ABSL_GUARDED_BY(mu_) = false;
  std::chrono::nanoseconds asked_at_ ABSL_GUARDED_BY(mu_){0};
};

std::unique_ptr<DiskWatch> DiskWatch::Start(const std::vector<Directory>& directories,
                                            DiskWatchOptions options, MetricRegistry* registry) {
  std::unique_ptr<DiskWatch> watch(new DiskWatch());
  std::shared_ptr<const Gauge> nvme = std::make_shared<Gauge>();
  if (!directories.empty()) {
    // A thread for each disk, so that a hung disk does not delay questions to another; and one more
    // that asks no disk.
    watch->executor_ =
        std::make_unique<ThreadExecutor>("disks", static_cast<int>(directories.size()) + 1);
    if (!options.say) options.say = [](const std::string& line) { BALLAST_LOG(ERROR) << line; };
  }
  for (const Directory& directory : directories) {
    watch->disks_.push_back(
        std::make_shared<Disk>(directory, options, watch->executor_.get(), registry));
  }
  if (!watch->disks_.empty()) nvme = watch->disks_.front()->size();
  registry->Add("ballast_tier_capacity_bytes", {{"tier", "nvme"}}, std::move(nvme));
  for (const std::shared_ptr<Disk>& disk : watch->disks_) disk->Start();
  return watch;
}

std::vector<DiskState> DiskWatch::Last() const {
  std::vector<DiskState> all;
  for (const std::shared_ptr<Disk>& disk : disks_) all.push_back(disk->Last());
  return all;
}

absl::Status DiskWatch::Health() const {
  if (disks_.empty()) return absl::OkStatus();
  const std::string hangs = disks_.front()->Hangs();
  return hangs.empty() ? absl::OkStatus() : absl::UnavailableError(hangs);
}

void DiskWatch::Stop() {
  bool idle = true;
  for (const std::shared_ptr<Disk>& disk : disks_) idle = disk->Stop() && idle;
  disks_.clear();
  if (executor_ == nullptr) return;
  if (idle) {
    executor_.reset();
    return;
  }
  // A join would wait for the disk. Everything the thread uses is kept alive, as is the executor.
  static Mutex mu;
  static auto* const left = new std::vector<std::unique_ptr<ThreadExecutor>>();
  MutexLock lock(&mu);
  left->push_back(std::move(executor_));
}

}  // namespace ballast::server
