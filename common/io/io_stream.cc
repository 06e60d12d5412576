#include "common/io/io_stream.h"

#include <atomic>

#include "common/base/status_macros.h"

namespace ballast {
namespace {

// Each finished block makes room for the next one.
class StreamRun {
 public:
  StreamRun(IoEngine* engine, const IoStream& stream, const std::function<double()>& now)
      : engine_(engine), stream_(stream), now_(now) {}

  absl::StatusOr<double> Measure() {
    const double begin = now_();
    until_ = begin + stream_.seconds;
    {
      MutexLock lock(&mu_);
      open_ = stream_.depth;
    }
    for (int lane = 0; lane < stream_.depth; ++lane) Next(lane);
    MutexLock lock(&mu_);
    while (open_ > 0) ended_.Wait(&mu_);
    BALLAST_RETURN_IF_ERROR(status_);
    return static_cast<double>(done_ * stream_.block_bytes) / (now_() - begin);
  }

 private:
  void Next(int lane) {
    const uint64_t number = next_++;
    const bool read =
        stream_.mix == IoMix::kRead || (stream_.mix == IoMix::kMixed && number % 2 == 0);
    const uint64_t blocks = stream_.file_bytes / stream_.block_bytes;
    engine_->Submit({.kind = read ? IoKind::kRead : IoKind::kWrite,
                     .descriptor = stream_.descriptor,
                     .path = stream_.path,
                     .offset = number % blocks * stream_.block_bytes,
                     .data = stream_.memory + static_cast<uint64_t>(lane) * stream_.block_bytes,
                     .bytes = stream_.block_bytes,
                     .done = [this, lane](const absl::Status& status) { OnDone(status, lane); }});
  }

  void OnDone(const absl::Status& status, int lane) {
    ++done_;
    if (status.ok() && now_() < until_) {
      Next(lane);
      return;
    }
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = status;
    if (--open_ == 0) ended_.NotifyAll();  // Under the lock: the waiting one owns all of this.
  }

  IoEngine* const engine_;
  const IoStream& stream_;
  const std::function<double()>& now_;
  double until_ = 0;
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> done_{0};
  Mutex mu_;
  CondVar ended_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<double> MeasureIo(IoEngine* engine, const IoStream& stream,
                                 const std::function<double()>& now) {
  return StreamRun(engine, stream, now).Measure();
}

}  // namespace ballast
