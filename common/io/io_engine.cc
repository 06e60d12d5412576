#include "common/io/io_engine.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/file.h"

namespace ballast {
namespace {

constexpr int kDepthMax = 4096;
constexpr size_t kEventsAtATime = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> IoEngine::Create(const IoOptions& options,
                                                           std::unique_ptr<IoBackend> backend) {
  if (options.block_bytes == 0 || options.block_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("blocks of ", options.block_bytes, " bytes; use a multiple of ", kPageBytes));
  }
  if (options.queue_depth < 1 || options.queue_depth > kDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue depth ", options.queue_depth, "; use 1 to ", kDepthMax));
  }
  return std::unique_ptr<IoEngine>(new IoEngine(options, std::move(backend)));
}

IoEngine::IoEngine(const IoOptions& options, std::unique_ptr<IoBackend> backend)
    : options_(options),
      backend_(std::move(backend)),
      schedule_(options.block_bytes),
      thread_("aio", 1) {
  under_way_.resize(options_.queue_depth);
  for (int id = options_.queue_depth; id-- > 0;) free_ids_.push_back(static_cast<uint32_t>(id));
  thread_.Post([this] { Loop(); });
}

IoEngine::~IoEngine() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
  }
  changed_.NotifyAll();
  thread_.Shutdown();
}

void IoEngine::Submit(IoRequest request) {
  {
    MutexLock lock(&mu_);
    BALLAST_CHECK(!ending_);
    schedule_.Add(std::move(request));
    Fill();
  }
  changed_.NotifyAll();
}

absl::Status IoEngine::Run(IoRequest request) {
  Mutex mu;
  CondVar ended;
  std::optional<absl::Status> status;
  request.done = [&](const absl::Status& result) {
    MutexLock lock(&mu);
    status = result;
    ended.NotifyAll();  // Under the lock: the waiting one owns all of this.
  };
  Submit(std::move(request));
  MutexLock lock(&mu);
  while (!status.has_value()) ended.Wait(&mu);
  return *status;
}

size_t IoEngine::pending() const {
  MutexLock lock(&mu_);
  return schedule_.waiting() + under_way_.size() - free_ids_.size();
}

void IoEngine::Fill() {
  while (!free_ids_.empty()) {
    std::optional<IoPiece> piece = schedule_.Next();
    if (!piece.has_value()) break;
    const IoRequest& request = piece->of->request;
    const uint32_t id = free_ids_.back();
    free_ids_.pop_back();
    taken_.push_back({.kind = request.kind,
                      .descriptor = request.descriptor,
                      .offset = request.offset + piece->at,
                      .data = static_cast<char*>(request.data) + piece->at,
                      .bytes = piece->bytes,
                      .id = id});
    under_way_[id] = *std::move(piece);
  }
  absl::Span<const IoBlock> left = taken_;
  while (!left.empty()) {
    const int count = backend_->Submit(left);
    if (count > 0) {
      left.remove_prefix(static_cast<size_t>(count));
    } else if (count == 0 || count == -EAGAIN || count == -EINTR) {
      break;
    } else {
      OnEvent({left.front().id, count});
      left.remove_prefix(1);
    }
  }
  // Blocks that the device did not take wait in front of the others until an event makes room.
  for (size_t i = left.size(); i-- > 0;) {
    schedule_.Return(std::move(under_way_[left[i].id]));
    free_ids_.push_back(left[i].id);
  }
  taken_.clear();
}

void IoEngine::OnEvent(const IoEvent& event) {
  BALLAST_CHECK(event.id < under_way_.size() && under_way_[event.id].of != nullptr);
  std::optional<IoDone> done =
      schedule_.Finish(std::exchange(under_way_[event.id], IoPiece()), event.result);
  free_ids_.push_back(event.id);
  if (done.has_value()) finished_.push_back(*std::move(done));
}

void IoEngine::Loop() {
  std::array<IoEvent, kEventsAtATime> events;
  for (;;) {
    std::vector<IoDone> finished;
    {
      MutexLock lock(&mu_);
      // When nothing is under way but something waits, the device was too busy with others' work.
      constexpr std::chrono::milliseconds kTryAgain{1};
      while (finished_.empty() && free_ids_.size() == under_way_.size()) {
        if (schedule_.waiting() > 0) {
          changed_.WaitFor(&mu_, kTryAgain);
          Fill();
        } else if (ending_) {
          return;
        } else {
          changed_.Wait(&mu_);
        }
      }
      finished = std::exchange(finished_, {});
    }
    for (const IoDone& one : finished) one.done(one.status);
    if (!finished.empty()) continue;
    const int count = backend_->Reap(absl::MakeSpan(events));
    MutexLock lock(&mu_);
    for (int i = 0; i < count; ++i) OnEvent(events[i]);
    Fill();
  }
}

}  // namespace ballast
