#include "tests/sim/nodes/peers.h"

#include <algorithm>
#include <utility>

#include "ballast/v1/peer.pb.h"
#include "common/base/reason.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/methods.h"
#include "server/convert/peer_convert.h"

namespace ballast::sim {
namespace {

constexpr Tick kCallAgain = 50 * kMillisecond;
// Elsewhere a day, and the end of a peer's process ends the call.
constexpr Tick kWholeState = 10 * kSecond;

bool MayPass(const absl::Status& status) {
  const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return (away && ReasonOf(status) == Reason::kUnspecified) || server::IsStillStarting(status);
}

}  // namespace

// --- Calls --------------------------------------------------------------------------------------

template <typename Message>
void SimPeers::Call(uint32_t server, const Options& options, const Message& message,
                    UnaryDone done) {
  if (!process_->alive()) return;  // It ended inside the disk.
  const uint64_t number = ++newest_;
  calls_[number] = {server, options, Payload::FromString(message.SerializeAsString()),
                    std::move(done)};
  Try(number);
}

void SimPeers::Try(uint64_t number) {
  const UnderWay& call = calls_.at(number);
  const auto& servers = context_.plan->servers;
  const auto to = std::lower_bound(servers.begin(), servers.end(), call.server) - servers.begin();
  context_.network->Call(
      process_->node(), static_cast<uint32_t>(to), call.options.method, call.request,
      [this, number](const absl::StatusOr<Payload>& answer) { OnAnswer(number, answer); },
      call.options.timeout);
}

void SimPeers::OnAnswer(uint64_t number, const absl::StatusOr<Payload>& answer) {
  const auto call = calls_.find(number);
  if (call->second.options.until_answered && MayPass(answer.status())) {
    return process_->Later(kCallAgain, [this, number] { Try(number); });
  }
  const UnaryDone done = std::move(call->second.done);
  calls_.erase(call);
  done(answer);
}

template <typename Reply, typename T>
UnaryDone SimPeers::Parsed(std::function<void(absl::StatusOr<T>)> done) {
  return [done = std::move(done)](const absl::StatusOr<Payload>& answer) {
    Reply reply;
    const absl::Status status =
        answer.ok() ? ParseMessage(*answer, kMaxMessageBytes, &reply) : answer.status();
    status.ok() ? done(server::FromProto(reply)) : done(status);
  };
}

UnaryDone SimPeers::StatusOnly(std::function<void(absl::Status)> done) {
  return [done = std::move(done)](const absl::StatusOr<Payload>& answer) { done(answer.status()); };
}

// --- The methods --------------------------------------------------------------------------------

void SimPeers::CreateJob(uint32_t server, const server::JobPlan& plan,
                         std::function<void(absl::Status)> done) {
  Call(server, {method::kPeerCreateJob, true}, server::ToProto(plan), StatusOnly(std::move(done)));
}
void SimPeers::ExtendJob(uint32_t server, const server::JobPlan& plan,
                         std::function<void(absl::Status)> done) {
  Call(server, {method::kPeerExtendJob, true}, server::ToProto(plan), StatusOnly(std::move(done)));
}
void SimPeers::DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) {
  Call(server, {method::kPeerDropJob}, server::DropToProto(job), StatusOnly(std::move(done)));
}
void SimPeers::WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) {
  Call(home, {method::kPeerWhichRest}, server::ToProto(jobs),
       Parsed<v1::PeerJobs>(std::move(done)));
}
void SimPeers::CompareJobs(uint32_t home, const server::JobRoll& roll,
                           std::function<void(absl::StatusOr<server::RollAnswer>)> done) {
  Call(home, {method::kPeerCompareJobs}, server::ToProto(roll),
       Parsed<v1::PeerRollReply>(std::move(done)));
}
void SimPeers::Seal(uint32_t server, const server::SealCall& call,
                    std::function<void(absl::StatusOr<server::SealAnswer>)> done) {
  Call(server, {method::kPeerSeal, true}, server::ToProto(call),
       Parsed<v1::PeerSealed>(std::move(done)));
}
void SimPeers::AdoptEpoch(uint32_t server, const server::JobPlan& plan,
                          std::function<void(absl::Status)> done) {
  Call(server, {method::kPeerAdoptEpoch, true}, server::ToProto(plan), StatusOnly(std::move(done)));
}
void SimPeers::Snapshot(uint32_t server, const server::SnapshotCall& call,
                        std::function<void(absl::StatusOr<server::SnapshotAnswer>)> done) {
  Call(server, {method::kPeerSnapshot, false, kWholeState}, server::ToProto(call),
       Parsed<v1::PeerSnapshotReply>(std::move(done)));
}
void SimPeers::RestoreJob(uint32_t server, const server::RestoreOrder& order,
                          std::function<void(absl::StatusOr<std::string>)> done) {
  Call(server, {method::kPeerRestoreJob, false, kWholeState}, server::ToProto(order),
       Parsed<v1::PeerRestored>(std::move(done)));
}
void SimPeers::ExportShare(uint32_t server, const server::ExportPart& part,
                           std::function<void(absl::Status)> done) {
  Call(server, {method::kPeerExport, false, kWholeState}, server::ToProto(part),
       StatusOnly(std::move(done)));
}
void SimPeers::ImportJob(uint32_t server, const server::ImportOrder& order,
                         std::function<void(absl::Status)> done) {
  Call(server, {method::kPeerImportJob, false, kWholeState}, server::ToProto(order),
       StatusOnly(std::move(done)));
}

}  // namespace ballast::sim
