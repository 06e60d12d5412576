// One gRPC call of any method as a MessageStream: the only place that knows gRPC's rules for
// operations, tags and lifetimes. Unary calls and streams go through the same class.
// Comes from: GenericServer. Goes to: a StreamHandler per call (trainer_stream.h, unary_call.h).
// Thread safety: as message_stream.h; a call's handler is called on one thread only, the poller of
// the call's completion queue.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/security/caller.h"
#include "grpcpp/alarm.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/rpc/call_metrics.h"
#include "server/security/gate.h"
#include "server/stream/message_stream.h"

namespace ballast::server {

// A tag of our completion queues.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void OnEvent(bool ok) = 0;
};

// Whether a status says that the caller may not make the call.
inline bool IsRefusal(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAUTHENTICATED || code == grpc::StatusCode::PERMISSION_DENIED;
}

// Shared by the calls of one server while it runs.
struct CallEnvironment {
  grpc::AsyncGenericService* service = nullptr;
  grpc::ServerCompletionQueue* queue = nullptr;
  const Clock* clock = RealClock::Get();
  ParseBudget* parsing = nullptr;
  const DirectoryNames* directory_names = nullptr;
  // A call has come in; returns its handler, or null to refuse an unknown method.
  std::function<std::shared_ptr<StreamHandler>(std::shared_ptr<class GenericCall>)> accept;
  // An accepted call is over; `code` is the status that its client has got, or a refusal
  // (IsRefusal) that it did not wait for. May be null.
  std::function<void(const class GenericCall& call, grpc::StatusCode code)> ended;
  // The last tag of a call, accepted or not, has come back from the queue.
  std::function<void()> released;
};

class GenericCall final : public MessageStream, public std::enable_shared_from_this<GenericCall> {
 public:
  // Waits for the next call on the queue of `environment`, which outlives it. From then on the call
  // owns itself until its last operation has come back.
  static void Accept(const CallEnvironment* environment);

  void Read() override;
  void Kick() override;
  void Finish(const absl::Status& status) override;
  void Cancel() override;
  // As Finish, with exactly this status, which need not have a detail.
  void EndWith(const grpc::Status& status);

  // Its metrics, see CallTimer. Called while the call is accepted.
  void CountIn(CallMetrics* metrics) { timer_.Begin(metrics, environment_->clock->Now()); }

  // The transport's facts about the other side.
  CallerFacts caller_facts();
  // Called before the handler is made.
  void SetCaller(Caller caller) { facts_.caller = std::move(caller); }
  // On the poller's thread.
  const std::string& audited_job() const { return facts_.audited_job; }

 private:
  enum class Op { kAccept, kDone, kRead, kWake, kWrite, kFinish };
  // Holds the call while an operation is under way.
  class OpTag : public CompletionTag {
   public:
    explicit OpTag(Op op) : op_(op) {}
    void OnEvent(bool ok) override;
    std::shared_ptr<GenericCall> call;

   private:
    const Op op_;
  };

  explicit GenericCall(const CallEnvironment* environment);

  // Marks the operation of `tag` as under way.
  void* Begin(OpTag* tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Complete(Op op, bool ok);
  void OnAccepted(bool ok);
  void OnOver();
  // The status that the client has got.
  grpc::StatusCode EndedWith(bool cancelled) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnRead(bool ok);
  // Sends messages until one is under way or none is left.
  void Pump();
  bool SendOrStop(const std::optional<Outgoing>& message);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseIfOver();

  const CallEnvironment* const environment_;
  // Touched on the poller's thread only.
  std::shared_ptr<StreamHandler> handler_;
  CallTimer timer_;

  Mutex mu_;
  // Both are gone once the call is released: gRPC's server may end before this object.
  std::unique_ptr<grpc::GenericServerContext> context_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::GenericServerAsyncReaderWriter> stream_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer incoming_ ABSL_GUARDED_BY(mu_);
  grpc::Status final_status_ ABSL_GUARDED_BY(mu_);
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;  // operations whose tag has not come back
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // no operation may start any more
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool sending_ ABSL_GUARDED_BY(mu_) = false;  // from the wake-up to the last message
  bool kicked_ ABSL_GUARDED_BY(mu_) = false;   // while sending
  bool broken_ ABSL_GUARDED_BY(mu_) = false;   // a write failed
  bool finish_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;

  OpTag accept_tag_{Op::kAccept};
  OpTag done_tag_{Op::kDone};
  OpTag read_tag_{Op::kRead};
  OpTag wake_tag_{Op::kWake};
  OpTag write_tag_{Op::kWrite};
  OpTag finish_tag_{Op::kFinish};
};

}  // namespace ballast::server
