#include "client/cpp/transport/grpc_transport.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <utility>

#include "client/cpp/transport/stream.h"
#include "client/cpp/transport/unary_call.h"
#include "grpcpp/alarm.h"

namespace ballast::client {
namespace {

constexpr std::chrono::microseconds kSpinTime{50};

// The user's side of a stream; what gRPC still works on goes to `orphaned`.
class GrpcLink final : public Link {
 public:
  GrpcLink(std::unique_ptr<GrpcStream> stream, OrphanedOperations* orphaned)
      : stream_(std::move(stream)), orphaned_(orphaned) {}
  ~GrpcLink() override { orphaned_->Take(std::move(stream_)); }

  void Kick() override { stream_->Kick(); }
  void HalfClose() override { stream_->HalfClose(); }
  void Cancel() override { stream_->Cancel(); }
  bool closed() const override { return stream_->ended(); }

 private:
  std::unique_ptr<GrpcStream> stream_;
  OrphanedOperations* const orphaned_;
};

class GrpcCall final : public CallHandle {
 public:
  explicit GrpcCall(OrphanedOperations* orphaned) : orphaned_(orphaned) {}
  ~GrpcCall() override { orphaned_->Take(std::move(call_)); }

  void Hold(std::unique_ptr<AsyncCall> call) { call_ = std::move(call); }
  absl::StatusOr<Payload> Take() const { return call_->Take(); }

 private:
  std::unique_ptr<AsyncCall> call_;
  OrphanedOperations* const orphaned_;
};

// An alarm that can be moved: a cancelled one comes as an event, and is set again there.
class Clockwork final : public QueueOperation, public CompletionTag {
 public:
  Clockwork(std::function<void()> fire, grpc::CompletionQueue* queue)
      : fire_(std::move(fire)), queue_(queue) {}

  void Set(Time due) {
    wanted_ = true;
    due_ = due;
    if (!armed_) return Arm();
    if (due < armed_for_) alarm_.Cancel();
  }

  void Abandon() override {
    fire_ = nullptr;
    wanted_ = false;
    if (armed_) alarm_.Cancel();
  }
  bool ended() const override { return !armed_; }

  void OnEvent(bool) override {
    armed_ = false;
    if (!wanted_) return;
    if (std::chrono::steady_clock::now() < due_) return Arm();
    wanted_ = false;
    fire_();
  }

 private:
  void Arm() {
    armed_ = true;
    armed_for_ = due_;
    const auto wait =
        std::max(due_ - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration(0));
    const auto wait_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    CompletionTag* const tag = this;
    alarm_.Set(
        queue_,
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(wait_ns, GPR_TIMESPAN)),
        tag);
  }

  std::function<void()> fire_;
  grpc::CompletionQueue* const queue_;
  grpc::Alarm alarm_;
  Time due_;
  Time armed_for_;
  bool wanted_ = false;  // fires at due_
  bool armed_ = false;   // an event of the alarm is to come
};

class GrpcTimer final : public Timer {
 public:
  GrpcTimer(std::unique_ptr<Clockwork> clockwork, OrphanedOperations* orphaned)
      : clockwork_(std::move(clockwork)), orphaned_(orphaned) {}
  ~GrpcTimer() override { orphaned_->Take(std::move(clockwork_)); }

  void Set(Time due) override { clockwork_->Set(due); }

 private:
  std::unique_ptr<Clockwork> clockwork_;
  OrphanedOperations* const orphaned_;
};

// A question about a handshake. Asker and answerer share the callback, which is empty once it has
// run or its asker has gone; it is used under the transport's lock.
using Told = std::shared_ptr<std::function<void(std::string)>>;

class HandshakeCall final : public CallHandle {
 public:
  explicit HandshakeCall(Told told) : told_(std::move(told)) {}
  ~HandshakeCall() override { *told_ = nullptr; }

 private:
  const Told told_;
};

}  // namespace

OrphanedOperations::Operations OrphanedOperations::TakeEnded() {
  Operations ended;
  const auto first_ended = std::partition(
      operations_.begin(), operations_.end(),
      [](const std::unique_ptr<QueueOperation>& operation) { return !operation->ended(); });
  std::move(first_ended, operations_.end(), std::back_inserter(ended));
  operations_.erase(first_ended, operations_.end());
  return ended;
}

GrpcTransport::GrpcTransport(Mutex* mu, std::shared_ptr<ChannelFactory> channels, double time_scale)
    : mu_(mu),
      channels_(std::move(channels)),
      time_scale_(time_scale),
      thread_([this] { RunQueue(); }) {}

GrpcTransport::~GrpcTransport() {
  AwaitEnded(Time::max());
  queue_.Shutdown();
  thread_.join();
}

std::unique_ptr<Link> GrpcTransport::Open(const LinkTarget& target, LinkHandler* handler) {
  GrpcStream::Options options;
  // A connection of its own: an older one may hold bytes that the server takes no more.
  options.channel = channels_->Make(target.address, time_scale_);
  options.wait_for_server = target.wait_for_server;
  options.queue = &queue_;
  options.copied_bytes = &copied_bytes_;
  auto stream = std::make_unique<GrpcStream>(std::move(options), handler);
  stream->Start();
  return std::make_unique<GrpcLink>(std::move(stream), &orphaned_);
}

std::unique_ptr<CallHandle> GrpcTransport::Start(const CallTarget& target,
                                                 const google::protobuf::MessageLite& request,
                                                 Answer answer) {
  auto call = std::make_unique<GrpcCall>(&orphaned_);
  auto done = [call = call.get(), answer = std::move(answer)] { answer(call->Take()); };
  call->Hold(std::make_unique<AsyncCall>(channels_->Make(target.address, time_scale_),
                                         target.method, request, target.timeout, &queue_,
                                         std::move(done)));
  return call;
}

// A handshake blocks, so it has a thread of its own, which does not hold the lock meanwhile.
std::unique_ptr<CallHandle> GrpcTransport::Explain(const std::string& address,
                                                   std::function<void(std::string)> told) {
  if (explainer_ == nullptr) explainer_ = std::make_unique<ThreadExecutor>("ballast-ask", 1);
  const auto shared = std::make_shared<std::function<void(std::string)>>(std::move(told));
  explainer_->Post([mu = mu_, channels = channels_, address, shared] {
    std::string why = channels->Explain(address);
    MutexLock lock(mu);
    if (const auto tell = std::exchange(*shared, nullptr)) tell(std::move(why));
  });
  return std::make_unique<HandshakeCall>(shared);
}

std::unique_ptr<Timer> GrpcTransport::MakeTimer(std::function<void()> fire) {
  return std::make_unique<GrpcTimer>(std::make_unique<Clockwork>(std::move(fire), &queue_),
                                     &orphaned_);
}

bool GrpcTransport::AwaitEnded(Time deadline) {
  OrphanedOperations::Operations ended;  // Destroyed without the lock.
  MutexLock lock(mu_);
  while (true) {
    for (std::unique_ptr<QueueOperation>& operation : orphaned_.TakeEnded()) {
      ended.push_back(std::move(operation));
    }
    if (orphaned_.empty()) return true;
    if (deadline == Time::max()) {
      ended_.Wait(mu_);
      continue;
    }
    const auto left = deadline - Now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    ended_.WaitFor(mu_, left);
  }
}

// Waits for the next event of the queue; false when it has shut down and is empty. Looks again and
// again for a moment before it sleeps: within a round the next event is microseconds away, and
// being woken up costs about as much, on both sides (docs/decisions/014).
bool GrpcTransport::NextEvent(void** tag, bool* ok) {
  const Time sleep_at = Now() + kSpinTime;
  do {
    switch (queue_.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::GOT_EVENT:
        return true;
      case grpc::CompletionQueue::SHUTDOWN:
        return false;
      case grpc::CompletionQueue::TIMEOUT:
        break;
    }
  } while (Now() < sleep_at);
  return queue_.Next(tag, ok);
}

void GrpcTransport::RunQueue() {
  SetThreadName("ballast-client");
  void* tag = nullptr;
  bool ok = false;
  while (NextEvent(&tag, &ok)) {
    OrphanedOperations::Operations ended;  // Destroyed without the lock.
    MutexLock lock(mu_);
    static_cast<CompletionTag*>(tag)->OnEvent(ok);
    ended = orphaned_.TakeEnded();
    if (!ended.empty()) ended_.NotifyAll();
  }
}

}  // namespace ballast::client
