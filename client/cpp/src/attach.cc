#include "client/cpp/src/attach.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ballast/v1/admin.pb.h"
#include "client/cpp/src/away_teller.h"
#include "client/cpp/src/unary_call.h"
#include "common/base/address.h"
#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/convert/channel.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kMaxBackoff{1000};
constexpr milliseconds kPollInterval{100};
constexpr std::chrono::seconds kLogInterval{30};
// A home that has not answered by then waits for the other trainers, or for one of its peers: it is
// asked which, now and then.
constexpr milliseconds kAskAfter{2500};
constexpr milliseconds kAskInterval{5000};
constexpr milliseconds kAskTimeout{500};
// The server's answer that names the missing slots should come before our own deadline.
constexpr milliseconds kServerHeadStart{5000};
constexpr int kMaxRedirects = 4;

absl::Status BadArgument(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument, message);
}

// Worth another try: the server is not there yet, or is going away. `resuming`: another server of
// the job may be, or may not have followed the home into the job's epoch yet.
bool IsTransient(const absl::Status& status, bool resuming) {
  const Reason reason = ReasonOf(status);
  if (resuming && reason == Reason::kFutureEpoch) return true;
  if (status.code() != absl::StatusCode::kUnavailable) return false;
  switch (reason) {
    case Reason::kUnspecified:
    case Reason::kUnreachable:
    case Reason::kShuttingDown:
    case Reason::kRecovering:
      return true;
    case Reason::kServerLost:
    case Reason::kStorageFailed:
      return resuming;
    default:
      return false;
  }
}

// The search for a job's home, with one deadline over all tries.
class HomeSearch {
 public:
  HomeSearch(const JobOptions& options, v1::AttachRequest request)
      : options_(options),
        teller_(options),
        request_(std::move(request)),
        resuming_(MayResume(options)),
        deadline_(SteadyClock::now() + options.attach_timeout),
        next_log_(SteadyClock::now() + kLogInterval) {}

  absl::StatusOr<v1::AttachReply> Run() {
    milliseconds backoff = kFirstBackoff;
    while (true) {
      for (const std::string& endpoint : options_.endpoints) {
        v1::AttachReply reply;
        const absl::Status status = FollowRedirects(endpoint, &reply);
        if (status.ok()) teller_.OnBack(SteadyClock::now());
        if (status.ok()) return reply;
        if (!IsTransient(status, resuming_)) return WithReason(status);
        last_error_ = absl::StrCat(endpoint, ": ", ToText(status.message()));
        NoteAway(status);
      }
      BALLAST_RETURN_IF_ERROR(Sleep(std::min(backoff, Left())));
      if (Left() <= milliseconds(0)) return NobodyAnswered();
      backoff = std::min(backoff * 2, kMaxBackoff);
    }
  }

 private:
  static std::string ToText(absl::string_view text) {
    return std::string(text.data(), text.size());
  }

  milliseconds Left() const {
    return std::chrono::duration_cast<milliseconds>(deadline_ - SteadyClock::now());
  }

  SteadyClock::duration Scaled(milliseconds time) const {
    return std::chrono::duration_cast<SteadyClock::duration>(time * options_.time_scale);
  }

  // Called about ten times a second whatever we wait for.
  absl::Status Poll() {
    if (options_.should_stop && options_.should_stop()) {
      return ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed,
                           "attaching was stopped by the caller");
    }
    WatchCall();
    teller_.TellWhatIsDue(SteadyClock::now());
    if (SteadyClock::now() >= next_log_) {
      next_log_ += kLogInterval;
      if (!teller_.away()) {
        BALLAST_LOG(INFO, LogField("job", options_.job), LogField("slot", options_.slot))
            << "still attaching, " << Left().count() / 1000
            << " s left: waiting for the other trainers";
      }
    }
    return absl::OkStatus();
  }

  // A call under way tells by its connection whether the server is there.
  void WatchCall() {
    if (channel_ == nullptr) return;
    const SteadyClock::time_point now = SteadyClock::now();
    if (channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
      if (!teller_.away()) {
        teller_.OnAway(call_began_, IdOf(address_), address_, "it does not answer");
      }
    } else if (now >= ask_at_) {
      ask_at_ = now + Scaled(kAskInterval);
      AskHome();
    }
  }

  // A home that cannot reach one of its peers makes no job. No answer, no news.
  void AskHome() {
    v1::StatusReply home;
    const absl::Status status =
        CallUnary(channel_, method::kAdminStatus, v1::StatusRequest(), kAskTimeout, nullptr, &home);
    const auto lost = std::find_if(home.peers().begin(), home.peers().end(),
                                   [](const v1::PeerStatus& peer) { return !peer.reachable(); });
    if (!status.ok() || lost == home.peers().end()) return teller_.OnBack(SteadyClock::now());
    teller_.OnAway(call_began_, lost->id(), lost->address(),
                   absl::StrCat("server ", home.id(), " cannot reach it"));
  }

  // After a try that failed: the server that the error names, or the one that was asked.
  void NoteAway(const absl::Status& status) {
    const ErrorFields fields = FieldsOf(status);
    const bool named = fields.server >= 0;
    teller_.OnAway(SteadyClock::now(),
                   named ? static_cast<uint32_t>(fields.server) : IdOf(address_),
                   named ? fields.address : address_, ToText(status.message()));
  }

  uint32_t IdOf(const std::string& address) const {
    const auto known = ids_.find(address);
    return known == ids_.end() ? kServerUnknown : known->second;
  }

  absl::Status Sleep(milliseconds time) {
    for (; time > milliseconds(0); time -= kPollInterval) {
      BALLAST_RETURN_IF_ERROR(Poll());
      std::this_thread::sleep_for(std::min(time, kPollInterval));
    }
    return Poll();
  }

  absl::Status FollowRedirects(std::string address, v1::AttachReply* reply) {
    absl::Status status;
    for (int hop = 0; hop <= kMaxRedirects; ++hop) {
      status = Try(address, reply);
      if (ReasonOf(status) != Reason::kNotHome) return status;
      const ErrorFields home = FieldsOf(status);
      address = home.address;
      if (home.server >= 0) ids_[address] = static_cast<uint32_t>(home.server);
      if (address.empty()) break;
    }
    return status;
  }

  absl::Status Try(const std::string& address, v1::AttachReply* reply) {
    const milliseconds left = std::max(Left(), milliseconds(1));
    request_.set_wait_timeout_ms(static_cast<uint64_t>(left.count()));
    address_ = address;
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                         MakeChannelArgs(options_.time_scale));
    call_began_ = SteadyClock::now();
    ask_at_ = call_began_ + Scaled(kAskAfter);
    const absl::Status status = CallUnary(
        channel_, method::kAttach, request_, left + kServerHeadStart, [this] { return Poll(); },
        reply);
    channel_ = nullptr;
    return status;
  }

  // A deadline of our own carries no reason yet.
  absl::Status WithReason(const absl::Status& status) const {
    if (status.code() != absl::StatusCode::kDeadlineExceeded ||
        ReasonOf(status) != Reason::kUnspecified) {
      return status;
    }
    return ReasonedError(
        absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
        absl::StrCat("job \"", options_.job, "\" was not complete after ",
                     options_.attach_timeout.count(),
                     " ms and its home server did not say who is missing; see its log"),
        Fields());
  }

  absl::Status NobodyAnswered() const {
    return ReasonedError(
        absl::StatusCode::kUnavailable, Reason::kUnreachable,
        absl::StrCat("no state server answered at ", absl::StrJoin(options_.endpoints, ", "),
                     " within ", options_.attach_timeout.count(), " ms (last: ", last_error_,
                     "); check that ", resuming_ ? "every ballastd of the job" : "ballastd",
                     " runs there"),
        Fields());
  }

  ErrorFields Fields() const {
    ErrorFields fields;
    fields.job = options_.job;
    fields.slot = static_cast<int>(options_.slot);
    return fields;
  }

  const JobOptions& options_;
  AwayTeller teller_;
  v1::AttachRequest request_;
  const bool resuming_;
  const SteadyClock::time_point deadline_;
  SteadyClock::time_point next_log_;
  std::map<std::string, uint32_t> ids_;     // of servers that were told of, by address
  std::string address_;                     // of the newest try
  std::shared_ptr<grpc::Channel> channel_;  // null between two tries
  SteadyClock::time_point call_began_;
  SteadyClock::time_point ask_at_;
  std::string last_error_ = "not tried yet";
};

}  // namespace

absl::Status ValidateOptions(const JobOptions& options) {
  if (options.endpoints.empty()) {
    return BadArgument("no endpoints given; name at least one state server as host:port");
  }
  for (const std::string& endpoint : options.endpoints) {
    const absl::Status status = ParseEndpoint(endpoint).status();
    if (!status.ok()) return BadArgument(absl::StrCat("endpoints: ", status.message()));
  }
  if (options.slot >= options.world) {
    return BadArgument(absl::StrCat("slot ", options.slot, " is outside the world of ",
                                    options.world, " trainers (0..world-1)"));
  }
  if (options.attach_timeout <= milliseconds(0)) {
    return BadArgument(absl::StrCat("attach_timeout is ", options.attach_timeout.count(),
                                    " ms; it must be positive"));
  }
  if (options.reconnect_timeout <= milliseconds(0)) {
    return BadArgument(absl::StrCat("reconnect_timeout is ", options.reconnect_timeout.count(),
                                    " ms; it must be positive"));
  }
  if (options.durability < Durability::kPower || options.durability > Durability::kNone) {
    return BadArgument(absl::StrCat("durability is ", static_cast<int>(options.durability),
                                    "; power (1), process (2) and none (3) are known"));
  }
  if (options.resume < Resume::kNever || options.resume > Resume::kMust) {
    return BadArgument(absl::StrCat("resume is ", static_cast<int>(options.resume),
                                    "; never (1), auto (2) and must (3) are known"));
  }
  if (options.resume == Resume::kMust && options.durability == Durability::kNone) {
    return BadArgument(
        "resume is must, but a job of durability none cannot be gone on with; give the durability "
        "that the job was started with");
  }
  if (options.variable_world && options.durability == Durability::kNone) {
    return BadArgument(
        "variable_world needs durability power or process: a job of durability none ends with its "
        "first lost trainer");
  }
  if (options.min_world == 0 || options.min_world > options.world) {
    return BadArgument(absl::StrCat("min_world is ", options.min_world, "; it must be in 1..",
                                    options.world, " (the world)"));
  }
  if (options.min_world > 1 && !options.variable_world) {
    return BadArgument(absl::StrCat("min_world is ", options.min_world,
                                    ", but a world that is not variable is never smaller"));
  }
  if (options.device > Device::kNvme) {
    return BadArgument(absl::StrCat("device is ", static_cast<int>(options.device),
                                    "; auto (0), cpu (1) and nvme (2) are known"));
  }
  if (options.device == Device::kNvme && options.durability == Durability::kNone) {
    return BadArgument(
        "device nvme needs durability power or process: what lives on disk is what survives");
  }
  if (!(options.time_scale > 0) || options.time_scale > 1000) {
    return BadArgument(
        absl::StrCat("time_scale is ", options.time_scale, "; give a number in (0, 1000]"));
  }
  return absl::OkStatus();
}

bool MayResume(const JobOptions& options) {
  return options.resume != Resume::kNever && options.durability != Durability::kNone;
}

absl::StatusOr<std::vector<TensorSpec>> ToTensorSpecs(const std::vector<Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    TensorSpec spec;
    spec.name = tensor.name;
    spec.shape = tensor.shape;
    spec.dtype = static_cast<::ballast::DType>(tensor.dtype);
    spec.group = tensor.group;
    spec.aliases = tensor.aliases;
    if (DTypeBytes(spec.dtype) == 0) {
      return BadArgument(absl::StrCat("tensor \"", tensor.name, "\" has dtype number ",
                                      static_cast<int>(tensor.dtype),
                                      "; fp32 (1), bf16 (2) and fp16 (3) are known"));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::Status CheckJobSpec(const JobSpec& spec) {
  JobSpec offered = spec;
  offered.durability = ::ballast::Durability::kNone;
  offered.variable_world = false;  // Goes with the durability.
  return ValidateJobSpec(offered, JobLimits{});
}

absl::StatusOr<JobSpec> MakeJobSpec(const JobOptions& options, const std::vector<Tensor>& tensors) {
  JobSpec spec;
  spec.name = options.job;
  spec.world = options.world;
  spec.group_count = 1;
  for (const Tensor& tensor : tensors) {
    if (tensor.group != UINT32_MAX) spec.group_count = std::max(spec.group_count, tensor.group + 1);
  }
  BALLAST_ASSIGN_OR_RETURN(spec.tensors, ToTensorSpecs(tensors));
  spec.max_grad_norm = options.max_grad_norm;
  spec.loss_scale = options.loss_scale;
  spec.nonfinite = static_cast<::ballast::NonfinitePolicy>(options.nonfinite);
  spec.max_consecutive_skips = options.max_consecutive_skips;
  spec.tile_elements = options.tile_elements;
  spec.extent_elements = options.extent_elements;
  spec.durability = static_cast<::ballast::Durability>(options.durability);
  spec.variable_world = options.variable_world;
  spec.device = static_cast<::ballast::Device>(options.device);
  BALLAST_RETURN_IF_ERROR(CheckJobSpec(spec));
  return spec;
}

absl::StatusOr<std::vector<void*>> WeightsOf(const std::vector<TensorBuffers>& buffers,
                                             const std::vector<TensorSpec>& tensors,
                                             const std::vector<LayoutTensor>& sizes) {
  if (buffers.size() != tensors.size()) {
    return BadArgument(
        absl::StrCat("got buffers for ", buffers.size(), " tensors, the job has ", tensors.size()));
  }
  std::vector<void*> weights(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    weights[i] = buffers[i].weight;
    if (weights[i] == nullptr && sizes[i].elements > 0) {
      return BadArgument(absl::StrCat("tensor \"", tensors[i].name, "\" has no weight memory"));
    }
  }
  return weights;
}

std::vector<uint32_t> DigestsOf(const std::vector<const char*>& values,
                                const std::vector<LayoutTensor>& sizes) {
  std::vector<uint32_t> digests(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t bytes = sizes[i].elements * DTypeBytes(sizes[i].dtype);
    digests[i] = values[i] == nullptr ? 0 : Crc32c(values[i], bytes);
  }
  return digests;
}

std::vector<uint32_t> DigestsOf(const std::vector<void*>& weights,
                                const std::vector<LayoutTensor>& sizes) {
  std::vector<const char*> values;
  for (const void* const weight : weights) values.push_back(static_cast<const char*>(weight));
  return DigestsOf(values, sizes);
}

absl::StatusOr<v1::AttachReply> AttachToHome(const JobOptions& options, v1::AttachRequest request) {
  return HomeSearch(options, std::move(request)).Run();
}

}  // namespace ballast::client
