// A call with one request and one answer, over a MessageStream.
// Comes from: the transport. Goes to: control_service, peer_service, admin_service.
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "google/protobuf/message_lite.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

class UnaryCall : public StreamHandler, public std::enable_shared_from_this<UnaryCall> {
 public:
  // Parses `request` and arranges that Reply or Fail is called, now or later. Must not block.
  using Handler = std::function<void(std::shared_ptr<UnaryCall> call, const Payload& request)>;

  // For MethodRegistry::AddMethod.
  static StreamFactory Factory(Handler handler);

  UnaryCall(std::shared_ptr<MessageStream> call, Handler handler);

  // Answers and ends the call. The first answer counts. `status` is not OK and travels with its
  // ErrorDetail.
  void Reply(const google::protobuf::MessageLite& message);
  void Fail(const absl::Status& status);

  // As MessageStream's.
  const Caller& caller() const { return call_->caller(); }
  const std::string& peer() const { return call_->peer(); }
  const DirectoryNames& directory_names() const { return call_->directory_names(); }
  void SetAuditedJob(std::string job) { call_->SetAuditedJob(std::move(job)); }

  // `callback` runs once if the call ends before it was answered; at once if it already has.
  void OnCancel(std::function<void()> callback);

  // Parses into `message`, once; on failure answers and returns false: BAD_FRAME for an invalid
  // message, or one too large for this method or in memory; OVER_BUDGET while too much else is
  // being parsed.
  bool Parse(const Payload& bytes, google::protobuf::MessageLite* message);
  // Parses the field `number` of `bytes` alone; on failure as Parse.
  bool ParseField(const Payload& bytes, int number, google::protobuf::MessageLite* field);

  void OnMessage(Payload message) override;
  void OnReadsDone() override;
  std::optional<Outgoing> NextMessage() override;
  void OnDone(bool cancelled) override;

 private:
  bool TakeAnswer();
  absl::Status TryParse(const Payload& bytes, google::protobuf::MessageLite* message);

  const std::shared_ptr<MessageStream> call_;
  Handler handler_;            // Emptied by the request.
  ParseBudget::Hold parsing_;  // Until the handler returns.
  Mutex mu_;
  std::optional<Outgoing> reply_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mu_);
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ballast::server
