#include "server/service/health_service.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"
#include "server/stream/unary_call.h"

namespace ballast::server {
namespace {

// The services that this port has. All of them need the jobs that a start reads back.
constexpr const char* kServices[] = {"", "ballast.v1.Admin", "ballast.v1.Control",
                                     "ballast.v1.Data", "ballast.v1.Peer"};

bool Known(const std::string& service) {
  for (const char* const known : kServices) {
    if (service == known) return true;
  }
  return false;
}

}  // namespace

class HealthWatch : public StreamHandler, public std::enable_shared_from_this<HealthWatch> {
 public:
  HealthWatch(Health* health, std::shared_ptr<MessageStream> call)
      : health_(health), call_(std::move(call)) {}

  void OnMessage(Payload message) override {
    v1::HealthCheckRequest request;
    const absl::Status status = ParseMessage(message, std::numeric_limits<int>::max(), &request);
    if (!status.ok()) return call_->Finish(status);
    {
      MutexLock lock(&mu_);
      service_ = request.service();
      asked_ = true;
    }
    health_->Add(shared_from_this());
    OnChange();
  }
  // Only one message is read, so this comes in its place.
  void OnReadsDone() override {
    call_->Finish(ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                                "the call ended without a request"));
  }
  std::optional<Outgoing> NextMessage() override {
    MutexLock lock(&mu_);
    if (!asked_) return std::nullopt;
    const Health::Status now = health_->Of(service_);
    if (sent_ == now) return std::nullopt;
    sent_ = now;
    v1::HealthCheckResponse response;
    response.set_status(now);
    return Outgoing{response.SerializeAsString(), Payload()};
  }
  void OnDone(bool) override {}

  // The health has changed, or is asked for.
  void OnChange() {
    call_->Kick();
    if (!health_->ended()) return;
    call_->Finish(ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown,
                                "this server ends; watch it again once it has started"));
  }

 private:
  Health* const health_;
  const std::shared_ptr<MessageStream> call_;
  Mutex mu_;
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  std::string service_ ABSL_GUARDED_BY(mu_);
  absl::optional<Health::Status> sent_ ABSL_GUARDED_BY(mu_);
};

void Health::Serve() { Change(Phase::kServing); }
void Health::End() { Change(Phase::kEnded); }

bool Health::ended() const {
  MutexLock lock(&mu_);
  return phase_ == Phase::kEnded;
}

Health::Status Health::Of(const std::string& service) const {
  if (!Known(service)) return v1::HealthCheckResponse::SERVICE_UNKNOWN;
  MutexLock lock(&mu_);
  return phase_ == Phase::kServing ? v1::HealthCheckResponse::SERVING
                                   : v1::HealthCheckResponse::NOT_SERVING;
}

void Health::Add(const std::shared_ptr<HealthWatch>& watch) {
  MutexLock lock(&mu_);
  std::erase_if(watches_, [](const std::weak_ptr<HealthWatch>& old) { return old.expired(); });
  watches_.push_back(watch);
}

void Health::Change(Phase phase) {
  std::vector<std::weak_ptr<HealthWatch>> watches;
  {
    MutexLock lock(&mu_);
    if (phase_ == Phase::kEnded) return;
    phase_ = phase;
    watches = watches_;
  }
  for (const std::weak_ptr<HealthWatch>& weak : watches) {
    if (const auto watch = weak.lock()) watch->OnChange();
  }
}

void AddHealthMethods(MethodRegistry* server, Health* health) {
  const auto check = [health](const std::shared_ptr<UnaryCall>& call, const Payload& bytes) {
    v1::HealthCheckRequest request;
    if (!call->Parse(bytes, &request)) return;
    v1::HealthCheckResponse response;
    response.set_status(health->Of(request.service()));
    if (response.status() != v1::HealthCheckResponse::SERVICE_UNKNOWN) {
      return call->Reply(response);
    }
    call->Fail(absl::NotFoundError(
        "this server has no such service; ask for \"\" or for one of ballast.v1.Admin, "
        "ballast.v1.Control, ballast.v1.Data, ballast.v1.Peer"));
  };
  server->AddMethod(method::kHealthCheck, UnaryCall::Factory(check));
  server->AddMethod(
      method::kHealthWatch,
      [health](std::shared_ptr<MessageStream> call) {
        auto watch = std::make_shared<HealthWatch>(health, call);
        call->Read();
        return watch;
      },
      MethodType::kServerStream);
}

}  // namespace ballast::server
