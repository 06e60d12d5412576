#include "server/service/control_service.h"

#include <atomic>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/service/refused_trainers.h"
#include "server/stream/unary_call.h"

namespace ballast::server {
namespace {

// How trainers are refused: with an answer, counted, and in the log.
class Refusals {
 public:
  explicit Refusals(ServerMetrics* metrics) : metrics_(metrics), log_(RealClock::Get()) {}

  void Attach(const std::shared_ptr<UnaryCall>& call, const std::string& job,
              const absl::Status& why) {
    Refuse("attach", call, job, why);
  }
  void Extend(const std::shared_ptr<UnaryCall>& call, const std::string& job,
              const absl::Status& why) {
    Refuse("extend", call, job, why);
  }

 private:
  void Refuse(const char* what, const std::shared_ptr<UnaryCall>& call, const std::string& job,
              const absl::Status& why) {
    if (metrics_ != nullptr) metrics_->admissions_refused(ReasonName(ReasonOf(why)))->Add();
    log_.Add(what, job, call->peer(), why);
    call->Fail(why);
  }

  ServerMetrics* const metrics_;  // may be null
  RefusedTrainers log_;
};

void Attach(const DirectoryHolder& holder, const TransportTerms& terms,
            const std::shared_ptr<Refusals>& refusals, const std::shared_ptr<UnaryCall>& call,
            const Payload& bytes) {
  // First, because the rest of another protocol's request may be anything.
  v1::ProtocolRange range;
  if (!call->ParseField(bytes, v1::AttachRequest::kProtocolFieldNumber, &range)) return;
  const absl::StatusOr<uint32_t> protocol = ChooseProtocol(range, "the trainer");
  if (!protocol.ok()) return refusals->Attach(call, "", protocol.status());
  v1::AttachRequest request;
  if (!call->Parse(bytes, &request)) return;
  const auto trainers = holder.Get(&JobApis::trainers);
  const std::string& name = request.spec().name();
  if (!trainers.ok()) return refusals->Attach(call, name, trainers.status());
  absl::StatusOr<AttachCall> attach = AttachFromProto(request);
  if (!attach.ok()) return refusals->Attach(call, name, attach.status());

  attach->caller = call->caller();
  const QualifiedName job = attach->name();
  const uint32_t slot = attach->slot;
  static std::atomic<uint64_t> next_call{1};  // Relaxed: only uniqueness matters.
  const uint64_t id = attach->call = next_call.fetch_add(1, std::memory_order_relaxed);
  (*trainers)->Attach(*std::move(attach), [call, terms, refusals, job, version = *protocol](
                                              const absl::StatusOr<AttachResult>& result) {
    if (result.ok()) {
      call->Reply(AttachToProto(*result, terms, version));
    } else {
      refusals->Attach(call, job.Text(), result.status());
    }
  });
  call->OnCancel(
      [trainers = *trainers, job, slot, id] { trainers->AttachCancelled(job, slot, id); });
}

void Extend(const DirectoryHolder& holder, const std::shared_ptr<Refusals>& refusals,
            const std::shared_ptr<UnaryCall>& call, const Payload& bytes) {
  v1::ExtendRequest request;
  if (!call->Parse(bytes, &request)) return;
  const std::string job = JobIdText(request.job());
  const auto trainers = holder.Get(&JobApis::trainers);
  if (!trainers.ok()) return refusals->Extend(call, job, trainers.status());
  const auto lookup = holder.Get(&JobApis::lookup);
  if (!lookup.ok()) return refusals->Extend(call, job, lookup.status());
  absl::StatusOr<ExtendCall> extend = ExtendFromProto(request);
  if (!extend.ok()) return refusals->Extend(call, job, extend.status());
  extend->caller = call->caller();
  const auto extended = [call, refusals, job,
                         weak = std::weak_ptr(*lookup)](const absl::StatusOr<JobPlan>& plan) {
    if (!plan.ok()) return refusals->Extend(call, job, plan.status());
    const auto jobs = weak.lock();
    const auto engine = jobs == nullptr ? nullptr : jobs->Find(plan->job);
    call->Reply(ExtendToProto(*plan, engine == nullptr ? 0 : engine->window_extents()));
  };
  (*trainers)->Extend(*std::move(extend), extended);
}

void Rendezvous(const DirectoryHolder& holder, const std::shared_ptr<UnaryCall>& call,
                const Payload& bytes) {
  v1::RendezvousRequest request;
  if (!call->Parse(bytes, &request)) return;
  const auto trainers = holder.Get(&JobApis::trainers);
  if (!trainers.ok()) return call->Fail(trainers.status());
  absl::StatusOr<RendezvousCall> asked = RendezvousFromProto(request);
  if (!asked.ok()) return call->Fail(asked.status());
  asked->caller = call->caller();
  asked->call.identity = asked->caller.uri();
  (*trainers)->Rendezvous(
      *std::move(asked), [call](const absl::StatusOr<rendezvous::Reply>& reply) {
        reply.ok() ? call->Reply(RendezvousToProto(*reply)) : call->Fail(reply.status());
      });
}

// `facts`: of this server.
v1::JobStatusReply AboutServer(const ServerFacts& facts) {
  v1::JobStatusReply reply;
  reply.set_server(facts.id);
  for (const PeerState& peer : facts.peers) {
    if (peer.reachable) continue;
    v1::ServerAddress* added = reply.add_away();
    added->set_id(peer.id);
    added->set_address(peer.address);
  }
  return reply;
}

void TellOfJob(const DirectoryHolder& holder, const ServerFacts& facts,
               const std::shared_ptr<UnaryCall>& call, const Payload& bytes) {
  v1::JobStatusRequest request;
  if (!call->Parse(bytes, &request)) return;
  v1::JobStatusReply reply = AboutServer(facts);
  const auto api = holder.Get(&JobApis::jobs);
  if (!api.ok()) return call->Reply(reply);
  (*api)->Status([call, reply, name = request.job()](const std::vector<JobStatus>& jobs) mutable {
    for (const JobStatus& job : jobs) {
      if (call->caller().Own(name) != QualifiedName{job.tenant, job.name}) continue;
      reply.set_state(job.state);
      reply.set_world(job.world);
      for (const SlotStatus& slot : job.slots) {
        if (job.state == "attaching" && slot.state == "absent") reply.add_missing(slot.slot);
      }
    }
    call->Reply(reply);
  });
}

}  // namespace

void AddControlMethods(MethodRegistry* server, const DirectoryHolder* directory,
                       const TransportTerms& terms, std::function<ServerFacts()> facts,
                       ServerMetrics* metrics) {
  const auto refusals = std::make_shared<Refusals>(metrics);
  server->AddMethod(method::kJobStatus,
                    UnaryCall::Factory([directory, facts](auto call, const auto& bytes) {
                      TellOfJob(*directory, facts(), call, bytes);
                    }));
  server->AddMethod(method::kRendezvous,
                    UnaryCall::Factory([directory](auto call, const auto& bytes) {
                      Rendezvous(*directory, call, bytes);
                    }));
  server->AddMethod(method::kAttach,
                    UnaryCall::Factory([directory, terms, refusals](auto call, const auto& bytes) {
                      Attach(*directory, terms, refusals, call, bytes);
                    }));
  server->AddMethod(method::kExtend,
                    UnaryCall::Factory([directory, refusals](auto call, const auto& bytes) {
                      Extend(*directory, refusals, call, bytes);
                    }));
}

}  // namespace ballast::server
