#include "server/service/peer_service.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/convert/peer_convert.h"
#include "server/stream/unary_call.h"

namespace ballast::server {
namespace {

using Call = std::shared_ptr<UnaryCall>;

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

void TakeVote(const DirectoryHolder& holder, Gate* gate, const Call& call, const Payload& bytes) {
  v1::Prepare prepare;
  if (!call->Parse(bytes, &prepare)) return;
  const absl::Status voter =
      gate == nullptr ? absl::OkStatus() : gate->CheckVoter(call->caller(), prepare.server());
  if (!voter.ok()) return call->Fail(voter);
  const auto jobs = holder.Get(&JobApis::lookup);
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

// Messages that name the server that sends them: whether they name it truly; else the call is
// answered.
template <typename Message>
bool NamesItsSender(const Gate*, const Call&, const Message&) {
  return true;
}
bool NamesItsSender(const Gate* gate, const Call& call, const v1::PeerRoll& roll) {
  return SpeaksForItself(gate, call, roll.server());
}

// The job that a message is about, for the audit log.
template <typename Message>
void Audit(const Call& call, const Message& message) {
  if constexpr (requires { JobIdText(message.job()); }) {
    call->SetAuditedJob(JobIdText(message.job()));
  } else if constexpr (requires { JobIdText(message.job().job()); }) {
    call->SetAuditedJob(JobIdText(message.job().job()));
  }
}

// Others read this server's directories by their settings.
template <typename T>
void HideDirectories(const Call&, T*) {}
void HideDirectories(const Call& call, SealAnswer* answer) {
  answer->refusal = call->directory_names().Outward(answer->refusal);
}

v1::PeerRestored ToReply(const std::string& copied) { return CopiedToProto(copied); }
template <typename T>
auto ToReply(const T& answer) {
  return ToProto(answer);
}

void Answer(const Call& call, const absl::Status& status) {
  status.ok() ? call->Reply(v1::PeerAck()) : call->Fail(status);
}
template <typename T>
void Answer(const Call& call, absl::StatusOr<T> answer) {
  if (!answer.ok()) return call->Fail(answer.status());
  HideDirectories(call, &*answer);
  call->Reply(ToReply(*answer));
}

class PeerMethods {
 public:
  PeerMethods(MethodRegistry* server, const DirectoryHolder* directory, Gate* gate)
      : server_(server), directory_(directory), gate_(gate) {}

  // The method `name`: FromProto of its message goes to `method`, and the answer back.
  template <typename Message, typename Api, typename Value, typename Result>
  void Add(const char* name, Api* JobApis::*api,
           void (Api::*method)(Value, std::function<void(Result)>)) {
    AddHandler(name, [api, method](const DirectoryHolder& directory, Gate* gate, const Call& call,
                                   const Payload& bytes) {
      Message message;
      if (!call->Parse(bytes, &message)) return;
      const auto part = directory.Get(api);
      if (!part.ok()) return call->Fail(part.status());
      if (!NamesItsSender(gate, call, message)) return;
      Audit(call, message);
      absl::StatusOr<Value> value = FromProto(message);
      if (!value.ok()) return call->Fail(value.status());
      ((**part).*method)(*std::move(value), [call](const Result& result) { Answer(call, result); });
    });
  }

  template <typename Handler>
  void AddHandler(const char* name, Handler handler) {
    server_->AddMethod(name, UnaryCall::Factory([directory = directory_, gate = gate_, handler](
                                                    auto call, const auto& bytes) {
                         handler(*directory, gate, call, bytes);
                       }));
  }

 private:
  MethodRegistry* const server_;
  const DirectoryHolder* const directory_;
  Gate* const gate_;
};

}  // namespace

void AddPeerMethods(MethodRegistry* server, const DirectoryHolder* directory,
                    const PeerIdentity& self) {
  server->AddMethod(method::kPeerHello, UnaryCall::Factory([self](auto call, const auto& bytes) {
                      Hello(self, call, bytes);
                    }));
  PeerMethods m(server, directory, self.gate);
  m.AddHandler(method::kPeerVote, TakeVote);
  m.Add<v1::PeerJob>(method::kPeerCreateJob, &JobApis::shares, &JobShareApi::CreateJob);
  m.Add<v1::PeerJob>(method::kPeerExtendJob, &JobApis::shares, &JobShareApi::ExtendJob);
  m.Add<v1::PeerJob>(method::kPeerAdoptEpoch, &JobApis::shares, &JobShareApi::AdoptEpoch);
  m.Add<v1::PeerSeal>(method::kPeerSeal, &JobApis::shares, &JobShareApi::Seal);
  m.Add<v1::PeerDropJob>(method::kPeerDropJob, &JobApis::shares, &JobShareApi::DropJob);
  m.Add<v1::PeerJobs>(method::kPeerWhichRest, &JobApis::records, &HomeRecordsApi::WhichRest);
  m.Add<v1::PeerRoll>(method::kPeerCompareJobs, &JobApis::records, &HomeRecordsApi::CompareJobs);
  m.Add<v1::PeerSnapshot>(method::kPeerSnapshot, &JobApis::snapshot_shares,
                          &SnapshotShareApi::Snapshot);
  m.Add<v1::PeerRestoreJob>(method::kPeerRestoreJob, &JobApis::restores, &RestoreApi::RestoreJob);
  m.Add<v1::PeerExport>(method::kPeerExport, &JobApis::exports, &ExportApi::ExportShare);
  m.Add<v1::PeerImportJob>(method::kPeerImportJob, &JobApis::imports, &ImportApi::ImportJob);
}

}  // namespace ballast::server
