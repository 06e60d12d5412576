#include "server/service/peer_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/convert/convert.h"
#include "server/stream/unary_call.h"

namespace ballast::server {
namespace {

using Call = std::shared_ptr<UnaryCall>;
using PlanMethod = void (PeerDoor::*)(JobPlan, std::function<void(absl::Status)>);

void Answer(const Call& call, const absl::Status& status) {
  if (status.ok()) {
    call->Reply(v1::PeerAck());
  } else {
    call->Fail(status);
  }
}

// Reads the message of a call; null: the call is answered, it was bad or this server still starts.
template <typename Message>
std::shared_ptr<PeerDoor> Take(const DirectoryHolder& holder, const Call& call,
                               const Payload& bytes, Message* message) {
  if (!call->Parse(bytes, message)) return nullptr;
  absl::StatusOr<std::shared_ptr<PeerDoor>> door = holder.peers();
  if (door.ok()) return *std::move(door);
  call->Fail(door.status());
  return nullptr;
}

// Whether a server speaks for itself; else the call is answered.
bool SpeaksForItself(const Gate* gate, const Call& call, uint32_t server) {
  const absl::Status status =
      gate == nullptr ? absl::OkStatus() : gate->CheckServer(call->caller(), server);
  if (!status.ok()) call->Fail(status);
  return status.ok();
}

void Hello(const PeerIdentity& self, const Call& call, const Payload& bytes) {
  v1::PeerHello hello;
  if (!call->Parse(bytes, &hello) || !SpeaksForItself(self.gate, call, hello.id())) return;
  const auto protocol = ChooseProtocol(hello.protocol(), absl::StrCat("server ", hello.id()));
  if (!protocol.ok()) return call->Fail(protocol.status());
  v1::PeerHello reply;
  *reply.mutable_protocol() = OwnProtocolRange();
  reply.set_id(self.id);
  reply.set_incarnation(self.incarnation);
  if (self.admin) reply.set_admin(self.admin());
  PeerNumbers* const numbers = self.gate == nullptr ? nullptr : self.gate->numbers();
  if (numbers != nullptr) reply.set_number_hash(numbers->HashFor(hello.id()));
  if (self.sightings != nullptr) self.sightings->Fill(&reply);
  call->Reply(reply);
  if (self.sightings != nullptr) self.sightings->OnRequest(hello);
  if (numbers != nullptr) numbers->Told(hello.id(), hello.number(), hello.held_hash());
}

void TakePlan(const DirectoryHolder& holder, PlanMethod method, const Call& call,
              const Payload& bytes) {
  v1::PeerJob job;
  const auto door = Take(holder, call, bytes, &job);
  if (door == nullptr) return;
  call->SetAuditedJob(JobIdText(job.job()));
  absl::StatusOr<JobPlan> plan = PeerJobFromProto(job);
  if (!plan.ok()) return call->Fail(plan.status());
  ((*door).*method)(*std::move(plan), [call](const absl::Status& status) { Answer(call, status); });
}

void Seal(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerSeal seal;
  const auto door = Take(holder, call, bytes, &seal);
  if (door == nullptr) return;
  call->SetAuditedJob(JobIdText(seal.job()));
  door->Seal({.job = seal.job(), .epoch = seal.epoch(), .world = seal.world()},
             [call](absl::StatusOr<SealAnswer> answer) {
               if (!answer.ok()) return call->Fail(answer.status());
               answer->refusal = call->places().Outward(answer->refusal);
               call->Reply(SealedToProto(*answer));
             });
}

void DropJob(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerDropJob drop;
  const auto door = Take(holder, call, bytes, &drop);
  if (door == nullptr) return;
  call->SetAuditedJob(JobIdText(drop.job()));
  door->DropJob(drop.job(), [call](const absl::Status& status) { Answer(call, status); });
}

void WhichRest(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerJobs message;
  const auto door = Take(holder, call, bytes, &message);
  if (door == nullptr) return;
  door->WhichRest({message.jobs().begin(), message.jobs().end()},
                  [call](const absl::StatusOr<std::vector<uint64_t>>& rest) {
                    if (!rest.ok()) return call->Fail(rest.status());
                    v1::PeerJobs reply;
                    reply.mutable_jobs()->Add(rest->begin(), rest->end());
                    call->Reply(reply);
                  });
}

void CompareJobs(const DirectoryHolder& holder, Gate* gate, const Call& call,
                 const Payload& bytes) {
  v1::PeerRoll message;
  const auto door = Take(holder, call, bytes, &message);
  if (door == nullptr || !SpeaksForItself(gate, call, message.server())) return;
  absl::StatusOr<JobRoll> roll = RollFromProto(message);
  if (!roll.ok()) return call->Fail(roll.status());
  door->CompareJobs(*std::move(roll), [call](const absl::StatusOr<RollAnswer>& answer) {
    if (!answer.ok()) return call->Fail(answer.status());
    call->Reply(RollAnswerToProto(*answer));
  });
}

void TakeVote(const DirectoryHolder& holder, Gate* gate, const Call& call, const Payload& bytes) {
  v1::Prepare prepare;
  if (!call->Parse(bytes, &prepare)) return;
  const absl::Status voter =
      gate == nullptr ? absl::OkStatus() : gate->CheckVoter(call->caller(), prepare.server());
  if (!voter.ok()) return call->Fail(voter);
  const auto jobs = holder.lookup();
  if (!jobs.ok()) return call->Fail(jobs.status());
  absl::StatusOr<Vote> vote = VoteFromProto(prepare);
  if (!vote.ok()) return call->Fail(vote.status());
  const std::shared_ptr<RoundEngine> engine = (*jobs)->Find(prepare.job());
  if (engine == nullptr) {
    return call->Fail(ReasonedError(
        absl::StatusCode::kNotFound, Reason::kUnknownJob,
        absl::StrCat("vote of server ", prepare.server(), " for a job unknown here")));
  }
  engine->PeerVote(prepare.epoch(), prepare.round(), *std::move(vote),
                   [call, prepare](const VoteAnswer& own) {
                     if (!own.ok()) return call->Fail(own.status());
                     v1::VoteReply reply;
                     if (own->has_value()) {
                       v1::Prepare* message = reply.mutable_vote();
                       message->set_job(prepare.job());
                       message->set_epoch(prepare.epoch());
                       message->set_round(prepare.round());
                       ballast::ToProto(**own, message);
                     }
                     call->Reply(reply);
                   });
}

void Snapshot(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerSnapshot message;
  const auto door = Take(holder, call, bytes, &message);
  if (door == nullptr) return;
  call->SetAuditedJob(JobIdText(message.job()));
  if (message.step() == v1::SNAPSHOT_STEP_UNSPECIFIED ||
      !v1::SnapshotStep_IsValid(message.step())) {
    return call->Fail(
        ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                      absl::StrCat("a snapshot has no step ", static_cast<int>(message.step()))));
  }
  const absl::StatusOr<std::string> tenant = TenantFromProto(message.tenant());
  if (!tenant.ok()) return call->Fail(tenant.status());
  const SnapshotCall step{static_cast<SnapshotCall::Step>(message.step()), message.job(),
                          message.snapshot(), message.round(), *tenant};
  door->Snapshot(step, [call](const absl::StatusOr<uint64_t>& round) {
    if (!round.ok()) return call->Fail(round.status());
    v1::PeerSnapshotReply reply;
    reply.set_round(*round);
    call->Reply(reply);
  });
}

void RestoreJob(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerRestoreJob message;
  const auto door = Take(holder, call, bytes, &message);
  if (door == nullptr) return;
  call->SetAuditedJob(JobIdText(message.job().job()));
  absl::StatusOr<JobPlan> plan = PeerJobFromProto(message.job());
  if (!plan.ok()) return call->Fail(plan.status());
  const RestoreOrder order{*std::move(plan), message.snapshot(), message.share()};
  door->RestoreJob(order, [call](const absl::StatusOr<std::string>& copied) {
    if (!copied.ok()) return call->Fail(copied.status());
    v1::PeerRestored reply;
    reply.set_copied(*copied);
    call->Reply(reply);
  });
}

void ExportHere(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerExport message;
  const auto door = Take(holder, call, bytes, &message);
  if (door == nullptr) return;
  const absl::StatusOr<DType> dtype = WeightDType(message.dtype());
  if (!dtype.ok()) return call->Fail(dtype.status());
  const absl::StatusOr<ExportFormat> format = FormatFromProto(message.format());
  if (!format.ok()) return call->Fail(format.status());
  const ExportOptions options{*dtype, message.state(), message.shards(), *format,
                              message.torch_optimizer()};
  const absl::StatusOr<std::string> tenant = TenantFromProto(message.tenant());
  if (!tenant.ok()) return call->Fail(tenant.status());
  const ExportPart part{message.snapshot(), message.name(), options, message.shard(), *tenant};
  door->Export(part, [call](const absl::Status& status) { Answer(call, status); });
}

void ImportJob(const DirectoryHolder& holder, const Call& call, const Payload& bytes) {
  v1::PeerImportJob message;
  const auto door = Take(holder, call, bytes, &message);
  if (door == nullptr) return;
  call->SetAuditedJob(JobIdText(message.job().job()));
  absl::StatusOr<JobPlan> plan = PeerJobFromProto(message.job());
  if (!plan.ok()) return call->Fail(plan.status());
  const ImportOrder order{*std::move(plan), message.from(), message.state()};
  door->ImportJob(order, [call](const absl::Status& status) { Answer(call, status); });
}

}  // namespace

void AddPeerMethods(MethodRegistry* server, const DirectoryHolder* directory,
                    const PeerIdentity& self) {
  server->AddMethod(method::kPeerHello, UnaryCall::Factory([self](auto call, const auto& bytes) {
                      Hello(self, call, bytes);
                    }));
  const auto add = [server, directory](const char* method, auto handler) {
    server->AddMethod(method,
                      UnaryCall::Factory([directory, handler](auto call, const auto& bytes) {
                        handler(*directory, call, bytes);
                      }));
  };
  const auto add_plan = [&add](const char* method, PlanMethod door) {
    add(method, [door](const DirectoryHolder& holder, const Call& call, const auto& bytes) {
      TakePlan(holder, door, call, bytes);
    });
  };
  add_plan(method::kPeerCreateJob, &PeerDoor::CreateJob);
  add_plan(method::kPeerExtendJob, &PeerDoor::ExtendJob);
  add_plan(method::kPeerAdoptEpoch, &PeerDoor::AdoptEpoch);
  add(method::kPeerSeal, Seal);
  add(method::kPeerDropJob, DropJob);
  add(method::kPeerWhichRest, WhichRest);
  add(method::kPeerSnapshot, Snapshot);
  add(method::kPeerRestoreJob, RestoreJob);
  add(method::kPeerExport, ExportHere);
  add(method::kPeerImportJob, ImportJob);
  const auto add_gated = [&add, gate = self.gate](const char* method, auto handler) {
    add(method, [gate, handler](const DirectoryHolder& holder, const Call& call,
                                const auto& bytes) { handler(holder, gate, call, bytes); });
  };
  add_gated(method::kPeerCompareJobs, CompareJobs);
  add_gated(method::kPeerVote, TakeVote);
}

}  // namespace ballast::server
