#include "client/collective/nccl_collective.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/collective/lost.h"
#include "common/base/status_macros.h"

namespace ballast::collective {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kLongestPause = std::chrono::milliseconds(1);
constexpr nanoseconds kBetweenLooks = std::chrono::milliseconds(50);
constexpr char kInit[] = "the init of the communicator";

int NumberOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return nccl::kFloat32;
    case DType::kBF16:
      return nccl::kBfloat16;
    case DType::kF16:
      return nccl::kFloat16;
  }
  return -1;
}

absl::Status CheckConfig(const NcclConfig& config) {
  if (config.rank >= config.world) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", config.rank, " of a communicator of ",
                                                   config.world, "; ranks count from 0"));
  }
  if (config.timeout < std::chrono::milliseconds(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a communicator with a timeout of ", config.timeout.count(), " ns; give at least 1 ms"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCollective>> NcclCollective::Create(
    std::shared_ptr<NcclComms> comms, device::Device* device, device::Stream stream,
    const nccl::UniqueId& id, NcclConfig config) {
  BALLAST_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<NcclCollective> made(
      new NcclCollective(std::move(comms), device, stream, std::move(config)));
  BALLAST_ASSIGN_OR_RETURN(made->done_, device->NewEvent());
  const nanoseconds began = made->config_.clock->Now();
  absl::Status status = made->Begin(id);
  if (!status.ok()) return made->Fail(kInit, began, std::move(status));
  return made;
}

absl::Status NcclCollective::Begin(const nccl::UniqueId& id) {
  // A communicator takes the thread's GPU.
  BALLAST_RETURN_IF_ERROR(device_->Handle(stream_).status());
  BALLAST_ASSIGN_OR_RETURN(
      comm_, comms_->Begin(id, static_cast<int>(config_.rank), static_cast<int>(config_.world)));
  return Await(kInit, config_.clock->Now() + config_.timeout, [this] { return Settled(kInit); });
}

NcclCollective::~NcclCollective() {
  if (comm_ != nullptr) comms_->End(comm_);
}

absl::Status NcclCollective::ReduceScatter(BucketId id, DType dtype, const void* bucket,
                                           void* share, size_t count) {
  const nccl::Functions& nccl = comms_->library().functions();
  if (DTypeBytes(dtype) == 0) {
    const std::string where = InBucket("reduce-scatter", id);
    return Fail(where, config_.clock->Now(),
                absl::InvalidArgumentError(absl::StrCat(where, ": no dtype")));
  }
  return Call(InBucket("reduce-scatter", id), [&](nccl::Comm comm, void* stream) {
    return nccl.reduce_scatter(bucket, share, count, NumberOf(dtype), nccl::kSum, comm, stream);
  });
}

absl::Status NcclCollective::AllGather(BucketId id, const void* share, void* bucket, size_t bytes) {
  const nccl::Functions& nccl = comms_->library().functions();
  return Call(InBucket("all-gather", id), [&](nccl::Comm comm, void* stream) {
    return nccl.all_gather(share, bucket, bytes, nccl::kUint8, comm, stream);
  });
}

void NcclCollective::Abort(absl::Status why) {
  MutexLock lock(&mutex_);
  if (stale_.ok()) stale_ = std::move(why);
  aborted_.NotifyAll();
}

absl::Status NcclCollective::Call(const std::string& where, const QueueFn& queue) {
  {
    MutexLock lock(&mutex_);
    BALLAST_RETURN_IF_ERROR(stale_);
  }
  const nanoseconds began = config_.clock->Now();
  absl::Status status = Work(where, queue);
  return status.ok() ? status : Fail(where, began, std::move(status));
}

absl::Status NcclCollective::Work(const std::string& where, const QueueFn& queue) {
  const nanoseconds deadline = config_.clock->Now() + config_.timeout;
  BALLAST_ASSIGN_OR_RETURN(void* const stream, device_->Handle(stream_));
  BALLAST_RETURN_IF_ERROR(
      Checked(where, comm_->Run([&](nccl::Comm comm) { return queue(comm, stream); })));
  // The call may be under way still; only then is its work on the stream.
  BALLAST_RETURN_IF_ERROR(Await(where, deadline, [&] { return Settled(where); }));
  BALLAST_RETURN_IF_ERROR(device_->Record(stream_, done_));
  return Await(where, deadline, [&]() -> absl::StatusOr<bool> {
    BALLAST_ASSIGN_OR_RETURN(const bool settled, Settled(where));
    BALLAST_ASSIGN_OR_RETURN(const bool reached, device_->Reached(done_));
    return settled && reached;
  });
}

absl::Status NcclCollective::Await(const std::string& where, nanoseconds deadline,
                                   const std::function<absl::StatusOr<bool>()>& done) {
  const nanoseconds began = config_.clock->Now();
  nanoseconds looked = began;
  for (;;) {
    BALLAST_ASSIGN_OR_RETURN(const bool is_done, done());
    if (is_done) return absl::OkStatus();
    const nanoseconds now = config_.clock->Now();
    if (now >= deadline) return Late({}, config_.epoch, config_.timeout, where);
    if (config_.look && now - looked >= kBetweenLooks) {
      if (absl::Status status = config_.look(); !status.ok()) Abort(std::move(status));
      looked = now;
    }
    // Short waits are looked at often.
    BALLAST_RETURN_IF_ERROR(Pause(std::min(kLongestPause, (now - began) / 8)));
  }
}

absl::StatusOr<bool> NcclCollective::Settled(const std::string& where) {
  int state = nccl::kSuccess;
  BALLAST_RETURN_IF_ERROR(Checked(where, comm_->Run([&](nccl::Comm comm) {
    return comms_->library().functions().comm_get_async_error(comm, &state);
  })));
  BALLAST_RETURN_IF_ERROR(Checked(where, state));
  return state == nccl::kSuccess;
}

absl::Status NcclCollective::Checked(const std::string& where, absl::StatusOr<int> result) const {
  BALLAST_RETURN_IF_ERROR(result.status());
  if (*result == nccl::kSuccess || *result == nccl::kInProgress) return absl::OkStatus();
  return comms_->library().ErrorOf(where, *result);
}

absl::Status NcclCollective::Pause(nanoseconds pause) {
  MutexLock lock(&mutex_);
  if (stale_.ok() && pause > nanoseconds::zero()) aborted_.WaitFor(&mutex_, pause);
  return stale_;
}

absl::Status NcclCollective::Fail(const std::string& where, nanoseconds began, absl::Status error) {
  // First: the others' kernels wait for this rank's, too. Unless another has done so already: then
  // the others are newer, and two of them would end each other for ever.
  const bool alive = comm_ == nullptr || comm_->Run([](nccl::Comm) { return nccl::kSuccess; }).ok();
  if (alive)
    comms_->AbortAll(absl::AbortedError(
        absl::StrCat("another communicator of this process failed (", error.message(),
                     "), and all were aborted together; take the step again")));
  if (absl::IsUnavailable(error)) {
    const std::vector<uint32_t> ranks =
        config_.roll_call ? config_.roll_call(where) : std::vector<uint32_t>{};
    const bool late = config_.clock->Now() - began >= config_.timeout;
    error = late ? Late(ranks, config_.epoch, config_.timeout, where)
                 : Gone(ranks, config_.epoch, where, std::string(error.message()));
  }
  MutexLock lock(&mutex_);
  if (stale_.ok()) stale_ = std::move(error);
  return stale_;
}

}  // namespace ballast::collective
