// Directories of durable jobs in one process, a disk each, that can be stopped and started again,
// and a link between them that can be made to fail or to keep a call.
// Comes from: the tests in this folder. Goes to: JobDirectory.
// Thread safety: one test's thread; the link is called on the directories' strands.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reason.h"
#include "common/base/sync.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/convert/plan_convert.h"
#include "server/directory/job_directory.h"
#include "tests/server/answer.h"
#include "tests/server/directory/durable_plans.h"
#include "tests/server/engine/engine_cluster.h"

namespace ballast::server::testing {

using std::string_literals::operator""s;
using AttachAnswer = Answer<absl::StatusOr<AttachResult>>;

// Credit of a trainer for frames on the way to a server.
constexpr uint64_t kCredit = 4096;

class DurableDirectories : public PeerLink, public VoteSink {
 public:
  struct Options {
    std::chrono::milliseconds takeover_wait = std::chrono::hours(1);
    std::chrono::milliseconds return_wait{0};
    std::chrono::milliseconds job_ttl = std::chrono::hours(1);
    std::chrono::milliseconds lease = std::chrono::hours(1);
    std::vector<uint64_t> memory_bytes = {};  // by server; 1 GiB for servers not listed
    uint64_t machine_bytes = 0;               // of each server; 0: no more than its budget
    bool snapshots = false;                   // each server keeps them, and exports, on its disk
    bool shared = false;                      // and these are all on the disk of server 0
    std::vector<uint32_t> members = {};       // that cluster.peers has at first; all
    std::vector<QuotaTable> quotas = {};      // likewise; no limits
  };
  // The link's answer to a call ("create", "seal", "adopt", "drop", "rest", "rest answer", ...) to
  // a server: OK lets it through, an error is its answer. Called on any thread.
  using Rule = std::function<absl::Status(const std::string& call, uint32_t server)>;

  explicit DurableDirectories(uint32_t servers) : DurableDirectories(servers, Options()) {}
  DurableDirectories(uint32_t servers, const Options& options)
      : options_(options), nodes_(servers) {
    for (uint32_t id = 0; id < servers; ++id) nodes_[id].disk = std::make_unique<DurableDisk>();
    std::vector<uint32_t> members = options.members;
    for (uint32_t id = 0; id < servers && options.members.empty(); ++id) members.push_back(id);
    SetMembers(members);
    for (const uint32_t id : members) {
      Start(id);
      EXPECT_TRUE(nodes_[id].disk->SyncDirectory("/").ok());
    }
  }
  ~DurableDirectories() override {
    SetRule([](const std::string&, uint32_t) { return absl::CancelledError("the end"); });
    for (uint32_t id = 0; id < nodes_.size(); ++id) Stop(id);
    BuryThoseThatLiveOn();
  }

  // --- The servers
  std::shared_ptr<JobDirectory> At(uint32_t id) {
    MutexLock lock(&mu_);
    return nodes_[id].directory;
  }
  // Of the server's present life.
  std::shared_ptr<Quotas> QuotasOf(uint32_t id) { return nodes_[id].quotas; }
  DurableDisk* Disk(uint32_t id) { return nodes_[id].disk.get(); }
  // The snapshots that a server with Options::snapshots keeps.
  DirectorySnapshots KeptBy(uint32_t id) {
    DirectorySnapshots kept;
    if (!options_.snapshots) return kept;
    DurableDisk* const disk = Disk(options_.shared ? 0 : id);
    kept.store = std::make_unique<SnapshotStore>(Snapshots(disk, id));
    kept.exports = std::make_unique<Exports>(ExportsOn(disk));
    kept.codec = MakePlanCodec();
    return kept;
  }
  static SnapshotStore Snapshots(FileSystem* disk, uint32_t id) {
    return SnapshotStore(disk, "/data/snapshots", id, "owner");
  }
  static Exports ExportsOn(FileSystem* disk) { return Exports(disk, "/data/exports", "owner"); }
  WorkerPool* Workers(uint32_t id) { return nodes_[id].workers.get(); }
  ServerMetrics* Metrics(uint32_t id) { return nodes_[id].metrics.get(); }
  // Whether server `id` exports series of the job `run`. They outlive its restarts.
  bool HasSeries(uint32_t id, const std::string& run) const {
    for (const MetricFamily& family : nodes_[id].metrics->registry().Collect()) {
      for (const MetricSample& sample : family.samples) {
        if (std::count(sample.labels.begin(), sample.labels.end(), std::pair{"run"s, run}) > 0) {
          return true;
        }
      }
    }
    return false;
  }
  std::shared_ptr<RoundEngine> Engine(uint32_t id, uint64_t job) {
    return At(id)->apis().lookup->Find(job);
  }
  // A stream of the job at server `id`, of a trainer that holds no weights; fails the test without.
  std::shared_ptr<RecordingSink> OpenStream(uint32_t id, uint64_t job, const SlotHello& hello) {
    auto sink = std::make_shared<RecordingSink>(16);  // more extents than the jobs here have
    Answer<absl::StatusOr<SlotWelcome>> welcome;
    Engine(id, job)->trainers().AttachSlot(hello, sink, welcome.Setter());
    EXPECT_TRUE(welcome.Get().ok()) << welcome.Get().status();
    return sink;
  }
  // The job's record as a restarted server would read it; fails the test without one.
  JobPlan Record(uint32_t id, uint64_t job) {
    const auto plan = MakeStore(Disk(id), id)->Find(job);
    EXPECT_TRUE(plan.ok()) << "server " << id << ": " << plan.status();
    return plan.value_or(JobPlan());
  }

  // The process ends and its host loses power.
  void Stop(uint32_t id) {
    Kill(id);
    nodes_[id].disk->Crash(kLoseAll);
  }
  // The process ends.
  void Kill(uint32_t id) {
    std::shared_ptr<JobDirectory> directory;
    {
      MutexLock lock(&mu_);
      directory.swap(nodes_[id].directory);
    }
    if (nodes_[id].executor == nullptr) return;
    lives_.push_back(directory);
    directory.reset();
    nodes_[id].executor->Shutdown();
    nodes_[id].workers.reset();
    // Answers of other servers may come late, and find nobody.
    ended_.push_back(std::move(nodes_[id].executor));
  }
  void Start(uint32_t id) {
    Node& node = nodes_[id];
    node.executor = std::make_unique<ThreadExecutor>("test", 2);
    node.workers = std::make_unique<ThreadWorkerPool>(1);
    DirectoryConfig config;
    config.servers = Addresses();
    config.self = id;
    config.incarnation = ++incarnation_;
    const std::vector<uint64_t>& memory = options_.memory_bytes;
    config.memory_budget_bytes = id < memory.size() ? memory[id] : uint64_t{1} << 30;
    config.machine_memory_bytes = options_.machine_bytes;
    node.quotas = std::make_shared<Quotas>(id);
    if (id < options_.quotas.size()) node.quotas->SetLimits(options_.quotas[id]);
    config.quotas = node.quotas;
    config.credit_bytes = kCredit;
    config.takeover_wait = options_.takeover_wait;
    config.job_ttl = options_.job_ttl;
    config.engine.chunk_bytes = kChunk;
    config.engine.checkpoint_rounds = 1;
    config.engine.open_timeout = std::chrono::hours(1);
    config.engine.return_wait = options_.return_wait;
    config.engine.lease = options_.lease;
    EngineDeps deps{.executor = node.executor.get(),
                    .workers = node.workers.get(),
                    .clock = RealClock::Get(),
                    .isa = simd::DetectIsa(),
                    .votes = this};
    deps.metrics = node.metrics.get();
    deps.storage_failed = [](const absl::Status&) {};  // A server whose disk is gone.
    auto directory =
        JobDirectory::Create(config, deps, this, MakeStore(node.disk.get(), id), KeptBy(id));
    const absl::Status recovered = directory->Recover();
    EXPECT_TRUE(recovered.ok()) << recovered;
    {
      MutexLock lock(&mu_);
      node.directory = directory;
    }
    directory->StartRecovered();
  }
  void Restart(uint32_t id) {
    Stop(id);
    Start(id);
  }
  // What cluster.peers of servers that start from now on has.
  void SetMembers(std::vector<uint32_t> ids) { members_ = std::move(ids); }
  std::vector<ServerAddress> Addresses() const {
    std::vector<ServerAddress> servers;
    for (const uint32_t id : members_) {
      servers.push_back({id, "127.0.0.1:" + std::to_string(9000 + id)});
    }
    return servers;
  }
  // All of them end, and those of a cluster of `ids` start.
  void RestartAs(const std::vector<uint32_t>& ids) {
    for (uint32_t id = 0; id < nodes_.size(); ++id) {
      if (nodes_[id].executor != nullptr) Stop(id);
    }
    SetMembers(ids);
    for (const uint32_t id : ids) Start(id);
  }
  // Of servers that start from now on: their budgets, by id, and what their machines have.
  void SetMemory(std::vector<uint64_t> budgets, uint64_t machine_bytes) {
    options_.memory_bytes = std::move(budgets);
    options_.machine_bytes = machine_bytes;
  }
  // Of servers that start from now on.
  void SetQuotas(std::vector<QuotaTable> quotas) { options_.quotas = std::move(quotas); }
  void SetLease(std::chrono::milliseconds lease) { options_.lease = lease; }
  // Returns when every timer of server `id` that was due within `time` has run.
  void PassTime(uint32_t id, std::chrono::nanoseconds time) {
    Answer<bool> passed;
    nodes_[id].executor->PostAfter(time, [set = passed.Setter()] { set(true); });
    passed.Get();
  }

  // --- The link
  void SetRule(Rule rule) {
    MutexLock lock(&mu_);
    rule_ = std::move(rule);
  }
  // From now on calls of this name to `server` are kept until Release lets the oldest through.
  void Keep(const std::string& call, uint32_t server) {
    MutexLock lock(&mu_);
    keep_ = {call, server};
  }
  void KeepNoMore() {
    MutexLock lock(&mu_);
    keep_ = {};
  }
  void Release() {
    std::function<void()> call;
    {
      MutexLock lock(&mu_);
      while (kept_.empty()) changed_.Wait(&mu_);
      call = std::move(kept_.front());
      kept_.pop_front();
    }
    call();
  }
  void WaitForKept(size_t calls) {
    MutexLock lock(&mu_);
    while (kept_.size() < calls) changed_.Wait(&mu_);
  }
  // Calls that reached their server.
  int Calls(const std::string& call, uint32_t server) {
    MutexLock lock(&mu_);
    return calls_[{call, server}];
  }

  void CreateJob(uint32_t server, const JobPlan& plan,
                 std::function<void(absl::Status)> done) override {
    Call("create", server, done,
         [=](JobDirectory* to) { to->apis().shares->CreateJob(plan, done); });
  }
  void ExtendJob(uint32_t server, const JobPlan& plan,
                 std::function<void(absl::Status)> done) override {
    Call("extend", server, done,
         [=](JobDirectory* to) { to->apis().shares->ExtendJob(plan, done); });
  }
  void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) override {
    Call("drop", server, done, [=](JobDirectory* to) { to->apis().shares->DropJob(job, done); });
  }
  void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    const auto answer = [=, this](const absl::StatusOr<std::vector<uint64_t>>& rest) {
      Call("rest answer", home, done, [=](JobDirectory*) { done(rest); });
    };
    Call("rest", home, done,
         [=](JobDirectory* to) { to->apis().records->WhichRest(jobs, answer); });
  }
  void CompareJobs(uint32_t home, const JobRoll& roll,
                   std::function<void(absl::StatusOr<RollAnswer>)> done) override {
    Call("roll", home, done,
         [=](JobDirectory* to) { to->apis().records->CompareJobs(roll, done); });
  }
  void Seal(uint32_t server, const SealCall& call,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    Call("seal", server, done, [=](JobDirectory* to) { to->apis().shares->Seal(call, done); });
  }
  void AdoptEpoch(uint32_t server, const JobPlan& plan,
                  std::function<void(absl::Status)> done) override {
    Call("adopt", server, done,
         [=](JobDirectory* to) { to->apis().shares->AdoptEpoch(plan, done); });
  }
  void Snapshot(uint32_t server, const SnapshotCall& call,
                std::function<void(absl::StatusOr<SnapshotAnswer>)> done) override {
    Call("snapshot", server, done,
         [=](JobDirectory* to) { to->apis().snapshot_shares->Snapshot(call, done); });
  }
  void RestoreJob(uint32_t server, const RestoreOrder& order,
                  std::function<void(absl::StatusOr<std::string>)> done) override {
    Call("restore", server, done,
         [=](JobDirectory* to) { to->apis().restores->RestoreJob(order, done); });
  }
  void ExportShare(uint32_t server, const ExportPart& part,
                   std::function<void(absl::Status)> done) override {
    Call("export", server, done,
         [=](JobDirectory* to) { to->apis().exports->ExportShare(part, done); });
  }
  void ImportJob(uint32_t server, const ImportOrder& order,
                 std::function<void(absl::Status)> done) override {
    Call("import", server, done,
         [=](JobDirectory* to) { to->apis().imports->ImportJob(order, done); });
  }
  void SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to,
                const Vote& vote) override {
    const std::shared_ptr<JobDirectory> directory = At(to);
    const auto engine = directory == nullptr ? nullptr : directory->apis().lookup->Find(job);
    if (engine == nullptr) return;
    engine->PeerVote(epoch, round, vote, [=, this](const VoteAnswer& own) {
      const std::shared_ptr<JobDirectory> asker = At(vote.server);
      const auto asking = asker == nullptr ? nullptr : asker->apis().lookup->Find(job);
      if (asking == nullptr) return;
      if (!own.ok()) return asking->VoteRefused(round, own.status());
      if (own->has_value()) asking->PeerVote(epoch, round, **own, [](const VoteAnswer&) {});
    });
  }
  void DropVotes(uint64_t) override {}

 private:
  struct Node {
    std::unique_ptr<DurableDisk> disk;
    std::unique_ptr<ServerMetrics> metrics = std::make_unique<ServerMetrics>(BuildInfo());
    std::unique_ptr<Executor> executor;
    std::unique_ptr<WorkerPool> workers;
    std::shared_ptr<JobDirectory> directory;
    std::shared_ptr<Quotas> quotas;
  };

  // An epoch that is being adopted holds its directory until the log has flushed. The thread of
  // such a log still posts to its executor, so these stay until the test program ends.
  void BuryThoseThatLiveOn() {
    static auto* const buried = new std::deque<std::pair<std::unique_ptr<Executor>, Node>>();
    static auto* const mu = new Mutex();
    const auto gone = [](const auto& life) { return life.expired(); };
    if (std::all_of(lives_.begin(), lives_.end(), gone)) return;
    MutexLock lock(mu);
    for (auto& executor : ended_) buried->emplace_back(std::move(executor), Node());
    for (Node& node : nodes_) buried->emplace_back(nullptr, std::move(node));
  }

  void Call(const std::string& name, uint32_t server,
            const std::function<void(absl::Status)>& refuse,
            const std::function<void(JobDirectory*)>& send) {
    Rule rule;
    {
      MutexLock lock(&mu_);
      if (keep_ == std::pair{name, server}) {
        kept_.push_back([=, this] { Send(name, server, refuse, send); });
        changed_.NotifyAll();
        return;
      }
      rule = rule_;
    }
    const absl::Status ruled = rule ? rule(name, server) : absl::OkStatus();
    if (ruled.ok()) {
      Send(name, server, refuse, send);
    } else {
      refuse(ruled);
    }
  }
  void Send(const std::string& name, uint32_t server,
            const std::function<void(absl::Status)>& refuse,
            const std::function<void(JobDirectory*)>& send) {
    const std::shared_ptr<JobDirectory> directory = At(server);
    if (directory == nullptr) {
      refuse(absl::UnavailableError("the server is down"));
      return;
    }
    {
      MutexLock lock(&mu_);
      ++calls_[{name, server}];
    }
    send(directory.get());
  }

  Options options_;
  uint64_t incarnation_ = 0;  // of the newest process
  std::vector<uint32_t> members_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<Executor>> ended_;
  std::vector<std::weak_ptr<JobDirectory>> lives_;  // that have ended
  std::vector<Node> nodes_;
  Rule rule_ ABSL_GUARDED_BY(mu_);
  std::pair<std::string, uint32_t> keep_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> kept_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, uint32_t>, int> calls_ ABSL_GUARDED_BY(mu_);
};

// A call that asks for `slot` of a durable job of two trainers.
inline AttachCall SeatCall(uint32_t slot, uint64_t incarnation, Resume resume = Resume::kAuto) {
  AttachCall call;
  call.spec = DurablePlan().spec;
  call.spec.name = "job";
  call.slot = slot;
  call.incarnation = incarnation;
  call.init = InitMode::kEqual;
  call.tensor_crc32c = {1, 2};
  call.resume = resume;
  return call;
}

}  // namespace ballast::server::testing
