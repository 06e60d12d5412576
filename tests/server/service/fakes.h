// Stand-ins for the rooms across the border, which record their calls, and a client that speaks raw
// gRPC. Thread safety: the fakes are used by any thread, RawStream by one.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/rendezvous/rendezvous_errors.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "proto/convert/channel.h"
#include "proto/convert/grpc_status.h"
#include "proto/convert/status_convert.h"
#include "server/directory/job_directory.h"
#include "tests/proto/convert/grpc_frames.h"

namespace ballast::server {

// Long enough for any machine: only a broken test reaches it.
inline constexpr std::chrono::seconds kTestDeadline(60);

class FakeEngine : public RoundEngine,
                   private TrainerCalls,
                   private ChangeCalls,
                   private CaptureCalls {
 public:
  struct Lost {
    uint32_t slot = 0;
    bool own_sink = false;
    std::string why;
  };
  struct SeenFrame {
    FrameHeader header;
    Payload payload;
  };

  TrainerCalls& trainers() override { return *this; }
  ChangeCalls& changes() override { return *this; }
  CaptureCalls& captures() override { return *this; }
  void Start(bool) override {}
  void ExpectSlots() override {}
  void AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                  std::function<void(absl::StatusOr<SlotWelcome>)> done) override {
    Change([&] {
      sink_ = std::move(sink);
      hello_ = hello;
    });
    calls_ += absl::StrCat("attach ", hello.slot, ";");
    done(attach_answer);
  }
  void SlotLost(SlotLoss loss) override {
    Change([&] {
      lost_.push_back({loss.slot, loss.sink != nullptr && loss.sink == sink_.get(), loss.why});
      sink_ = nullptr;
    });
  }
  void Begin(uint32_t, RoundBegin begin) override {
    Change([&] { begins_.push_back(std::move(begin)); });
  }
  void Frame(const FrameHeader& header, Payload payload) override {
    Change([&] {
      frames_.push_back({header, std::move(payload)});
      most_frames_ = std::max(most_frames_, frames_.size());
    });
  }
  void Leave(uint32_t slot, uint64_t incarnation) override {
    Change([&] {
      leaves_.push_back({slot, incarnation});
      sink_ = nullptr;
    });
  }
  void FetchState(StateFetch fetch) override {
    Change([&] { fetches_.push_back({fetch.round, fetch.arrays}); });
  }
  void PeerVote(uint32_t, uint64_t round, Vote vote,
                std::function<void(const VoteAnswer&)> answer) override {
    Change([&] { votes_.push_back({round, std::move(vote)}); });
    const auto of_round = vote_answers.find(round);
    answer(of_round == vote_answers.end() ? vote_answer : of_round->second);
  }
  void VoteRefused(uint64_t, absl::Status) override {}
  void PeerLost(uint32_t, std::string) override {}
  void Extend(Extension extension) override { extension.done(absl::OkStatus()); }
  void Seal(uint32_t, std::function<absl::Status(const JobPlan&)>,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    done(SealAnswer());
  }
  void Adopt(Adoption adoption) override { adoption.done(absl::OkStatus()); }
  void SlotOpen(uint32_t, std::function<void(SeatUse)> done) override { done(SeatUse()); }
  void OnSeatFree(SeatFree) override {}
  void HoldState(Held done) override { done(1); }
  void CaptureState(uint64_t, TakeExtent, Captured done) override { done(CapturedRound()); }
  void ReleaseState() override {}
  void Status(std::function<void(JobStatus)> done) override {
    JobStatus status;
    status.name = "fake";
    done(std::move(status));
  }
  void FailUnopened(absl::Status) override {}
  void Fail(absl::Status) override {}
  void OnEnd(std::function<void(const absl::Status&, uint64_t)>) override {}
  void StateOfSeat(uint32_t, std::function<void(SeatState)> done) override { done({}); }
  void SlotGrows(uint32_t, bool) override {}
  uint64_t job() const override { return 77; }
  uint32_t window_extents() const override { return 16; }

  // Waits until `condition` holds for the recorded calls; false after kTestDeadline.
  bool WaitUntil(const std::function<bool(FakeEngine&)>& condition) {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (!condition(*this)) {
      if (std::chrono::steady_clock::now() > end) return false;
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
    return true;
  }
  bool Holds(const std::function<bool(FakeEngine&)>& condition) {
    MutexLock lock(&mu_);
    return condition(*this);
  }
  std::shared_ptr<SlotSink> sink() {
    MutexLock lock(&mu_);
    return sink_;
  }
  // Lets go of the payloads held so far, outside the lock.
  size_t ReleaseFrames() {
    std::vector<SeenFrame> frames;
    {
      MutexLock lock(&mu_);
      frames.swap(frames_);
    }
    return frames.size();
  }

  absl::StatusOr<SlotWelcome> attach_answer = SlotWelcome{.round = 5};
  VoteAnswer vote_answer = std::optional<Vote>();
  std::map<uint64_t, VoteAnswer> vote_answers;  // by round, instead of vote_answer
  SlotHello hello_;
  // Written under the lock; read them in WaitUntil or when nothing can change them any more.
  std::vector<Lost> lost_;
  std::vector<RoundBegin> begins_;
  std::vector<SeenFrame> frames_;
  size_t most_frames_ = 0;
  std::vector<std::pair<uint32_t, uint64_t>> leaves_;
  std::vector<std::pair<uint64_t, std::vector<uint32_t>>> fetches_;
  std::vector<std::pair<uint64_t, Vote>> votes_;
  std::string calls_;

 private:
  void Change(const std::function<void()>& change) {
    MutexLock lock(&mu_);
    change();
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<SlotSink> sink_;
};

// A directory that is all of its parts.
class FakeDirectory : public JobDirectory,
                      public TrainerApi,
                      public JobLookup,
                      public JobShareApi,
                      public HomeRecordsApi,
                      public SnapshotShareApi,
                      public JobsApi,
                      public SnapshotApi,
                      public RestoreApi,
                      public ExportApi,
                      public ImportApi {
 public:
  // Two tenants have three jobs each, of four.
  FakeDirectory() {
    QuotaTable limits;
    limits.others.jobs = 4;
    quotas_.SetLimits(limits);
    uint64_t job = 0;
    for (const char* const tenant : {"acme", "default"}) {
      quotas_.Note({Holding::Kind::kStored, ++job}, tenant, {.jobs = 3, .disk_bytes = 4096});
    }
  }

  JobApis apis() override {
    return {this, this, this, this, this, this, this, this, this, this, &quotas_};
  }

  absl::Status Recover() override { return absl::OkStatus(); }
  void StartRecovered() override {}
  void Attach(AttachCall call, std::function<void(absl::StatusOr<AttachResult>)> done) override {
    {
      MutexLock lock(&mu_);
      attaches_.push_back(std::move(call));
      pending_.push_back(std::move(done));
      changed_.NotifyAll();
    }
  }
  void AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) override {
    MutexLock lock(&mu_);
    cancelled_.push_back(absl::StrCat(job.Text(), "/", slot, "/", call));
    changed_.NotifyAll();
  }
  void Extend(ExtendCall call, std::function<void(absl::StatusOr<JobPlan>)> done) override {
    JobPlan plan;
    plan.layout_version = call.base_layout_version + 1;
    done(plan);
  }
  void Rendezvous(RendezvousCall call,
                  std::function<void(absl::StatusOr<rendezvous::Reply>)> done) override {
    rendezvous::Reply reply{.over = true, .id = call.call.id + "/" + call.call.tag};
    reply.ranks.push_back({3, true, std::chrono::seconds(2), call.call.doing});
    done(reply);
  }
  std::string heard() {
    MutexLock lock(&mu_);
    return heard_;
  }
  void Heard(DoingReport report) override {
    MutexLock lock(&mu_);
    heard_ = absl::StrCat(report.job, "/", report.rank.slot, "/", report.rank.incarnation, ": ",
                          rendezvous::DoingText(report.doing));
    changed_.NotifyAll();
  }
  void CreateJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    {
      MutexLock lock(&mu_);
      plans_.push_back(std::move(plan));
      changed_.NotifyAll();
    }
    done(create_answer);
  }
  void ExtendJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    CreateJob(std::move(plan), std::move(done));
  }
  void CreateSnapshot(SnapshotRequest, SnapshotApi::Done done) override { done(SnapshotInfo()); }
  void ListSnapshots(SnapshotFilter,
                     std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) override {
    done(std::vector<SnapshotInfo>());
  }
  void VerifySnapshot(SnapshotRequest, SnapshotApi::Done done) override { done(SnapshotInfo()); }
  void DeleteSnapshot(SnapshotRequest, SnapshotApi::Done done) override { done(SnapshotInfo()); }
  void RestoreSnapshot(RestoreCall,
                       std::function<void(absl::StatusOr<RestoredJob>)> done) override {
    done(RestoredJob());
  }
  void Snapshot(SnapshotCall call,
                std::function<void(absl::StatusOr<SnapshotAnswer>)> done) override {
    done(SnapshotAnswer{.round = call.round, .before = {}});
  }
  void RestoreJob(RestoreOrder order,
                  std::function<void(absl::StatusOr<std::string>)> done) override {
    done(order.share ? "shared" : "");
  }
  void Export(ExportCall, std::function<void(absl::StatusOr<ExportInfo>)> done) override {
    done(ExportInfo());
  }
  void Import(ImportCall, std::function<void(absl::StatusOr<ImportInfo>)> done) override {
    done(ImportInfo());
  }
  void ExportShare(ExportPart, std::function<void(absl::Status)> done) override {
    done(absl::OkStatus());
  }
  void ImportJob(ImportOrder, std::function<void(absl::Status)> done) override {
    done(absl::OkStatus());
  }
  void DropJob(uint64_t job, std::function<void(absl::Status)> done) override {
    {
      MutexLock lock(&mu_);
      drops_.push_back(job);
      changed_.NotifyAll();
    }
    done(absl::OkStatus());
  }
  void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) override {
    done(durable_jobs);
  }
  void DeleteJob(DeleteJobCall, std::function<void(absl::Status)> done) override {
    done(absl::OkStatus());
  }
  void RetryJob(QualifiedName, std::function<void(absl::StatusOr<bool>)> done) override {
    done(true);
  }
  void WhichRest(std::vector<uint64_t> jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    std::erase_if(jobs, [](uint64_t job) { return job % 2 != 0; });
    done(jobs);
  }
  void CompareJobs(JobRoll roll, std::function<void(absl::StatusOr<RollAnswer>)> done) override {
    done(RollAnswer{roll.jobs, {roll.server}});
  }
  void Seal(SealCall call, std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    sealed = call;
    done(seal_answer);
  }
  void AdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) override {
    CreateJob(std::move(plan), std::move(done));
  }
  std::shared_ptr<RoundEngine> Find(uint64_t job) const override {
    return job == engine->job() ? engine : nullptr;
  }
  void PeerLost(uint32_t, const std::string&) override {}
  void Status(std::function<void(std::vector<JobStatus>)> done) override {
    JobStatus status;
    status.name = "fake";
    status.state = "attaching";
    status.slots.push_back({1, "pushing", 3, 42});
    status.slots.push_back({2, "absent"});
    done({status});
  }
  void Shutdown(std::function<void()> done) override { done(); }
  ServerLoad Load() const override { return {10, 100, {}}; }

  bool WaitUntil(const std::function<bool(FakeDirectory&)>& condition) {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + kTestDeadline;
    while (!condition(*this)) {
      if (std::chrono::steady_clock::now() > end) return false;
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
    return true;
  }

  std::shared_ptr<FakeEngine> engine = std::make_shared<FakeEngine>();
  absl::Status create_answer;
  DurableJobs durable_jobs;
  SealAnswer seal_answer{9, true};
  SealCall sealed;  // the newest call; read it after its answer
  std::vector<AttachCall> attaches_;
  std::vector<std::function<void(absl::StatusOr<AttachResult>)>> pending_;
  std::vector<std::string> cancelled_;
  std::string heard_;
  std::vector<JobPlan> plans_;
  std::vector<uint64_t> drops_;

 private:
  Mutex mu_;
  CondVar changed_;
  Quotas quotas_;
};

// A call of any method, one operation at a time.
class RawStream {
 public:
  RawStream(const std::string& address, const std::string& method)
      : RawStream(MakeChannel(address, /*time_scale=*/1), method) {}
  // `token`: a bearer token that goes with the call; empty: none.
  RawStream(std::shared_ptr<grpc::Channel> channel, const std::string& method,
            const std::string& token = "", std::chrono::milliseconds deadline = kTestDeadline)
      : server_(std::move(channel)) {
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    context_.set_deadline(std::chrono::system_clock::now() + deadline);
    stream_ = server_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(this);
    Wait();
  }
  ~RawStream() {
    if (!finished_) {
      context_.TryCancel();
      Finish().IgnoreError();
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool Write(const grpc::ByteBuffer& message) {
    stream_->Write(message, this);
    return Wait();
  }
  bool Write(const v1::ClientMessage& message) { return Write(SerializeMessage(message)); }
  bool Read(grpc::ByteBuffer* message) {
    stream_->Read(message, this);
    return Wait();
  }
  // The next message as a `Reply`; fails the test when there is none, or it is no such message.
  template <typename Reply>
  Reply ReadReply() {
    grpc::ByteBuffer bytes;
    Reply reply;
    EXPECT_TRUE(Read(&bytes));
    EXPECT_TRUE(ParseMessage(bytes, 1 << 20, &reply).ok());
    return reply;
  }
  // The next control message or frame; a frame stands in `frame`.
  v1::ServerMessage ReadMessage(DecodedFrame* frame = nullptr) {
    grpc::ByteBuffer bytes;
    if (!Read(&bytes)) return {};
    auto input = DecodeServerMessage(bytes, 64 << 20, 64 << 20);
    if (!input.ok()) return {};
    if (auto* control = absl::get_if<v1::ServerMessage>(&*input)) return *control;
    if (frame != nullptr) *frame = absl::get<DecodedFrame>(*input);
    return {};
  }
  void WritesDone() {
    stream_->WritesDone(this);
    Wait();
  }
  void Cancel() { context_.TryCancel(); }
  absl::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, this);
    Wait();
    finished_ = true;
    return FromGrpc(status);
  }
  // Reads on until the server has ended the call.
  absl::Status Drain() {
    grpc::ByteBuffer ignored;
    while (Read(&ignored)) {
    }
    return Finish();
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub server_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
};

// A frame whose checksum is right.
inline grpc::ByteBuffer GoodFrame(FrameHeader header, const std::string& payload) {
  header.length_bytes = static_cast<uint32_t>(payload.size());
  header.crc32c = Crc32c(payload.data(), payload.size(), IdentityCrc(header));
  const grpc::Slice slice(payload);
  return MakeFrame(header, absl::MakeConstSpan(&slice, 1));
}

}  // namespace ballast::server
