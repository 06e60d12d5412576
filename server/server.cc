#include "server/server.h"

#include <chrono>
#include <ctime>
#include <future>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/metrics/metrics.h"
#include "common/metrics/process.h"
#include "common/text/address.h"
#include "common/text/units.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "proto/convert/methods.h"
#include "server/admin/admin_server.h"
#include "server/build_facts.h"
#include "server/directory/job_directory.h"
#include "server/host/idle_trim.h"
#include "server/host/memory_budget.h"
#include "server/host/supervision.h"
#include "server/host_metrics.h"
#include "server/listen.h"
#include "server/net/listener_probe.h"
#include "server/own_facts.h"
#include "server/peer/peer_client.h"
#include "server/rpc/generic_server.h"
#include "server/server_security.h"
#include "server/server_storage.h"
#include "server/service/admin_service.h"
#include "server/service/control_service.h"
#include "server/service/directory_holder.h"
#include "server/service/health_service.h"
#include "server/service/peer_service.h"
#include "server/service/trainer_stream.h"
#include "server/setting_place.h"
#include "server/settings.h"
#include "server/simd/isa.h"
#include "server/snapshot_times.h"
#include "server/status_pages.h"
#include "server/straggler_log.h"

namespace ballast::server {
namespace {

using config::v1::ServerConfig;

constexpr char kWaitsForPeers[] = "waits for its peers file";
// How long the gRPC port may take to answer a new connection.
constexpr std::chrono::nanoseconds kProbePatience = std::chrono::seconds(10);
constexpr std::chrono::nanoseconds kInsecureInterval = std::chrono::hours(1);
// How long the streams may take to deliver SHUTTING_DOWN.
constexpr std::chrono::milliseconds kStopGrace(1500);
// How long the connections then stay open. Closing one while a trainer still pushes into it
// discards unread data, including SHUTTING_DOWN.
constexpr std::chrono::milliseconds kStopLinger(200);

uint64_t NewIncarnation() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

// Weights are sent while later extents are stepped only if the network's threads need not wait for
// a worker's time slice; see docs/decisions/014.
constexpr int kWorkerNiceness = 10;

// Watches that observe the server from outside its calls.
struct Watches {
  std::unique_ptr<DiskWatch> disks;
  std::shared_ptr<IdleTrim> trim;
  std::shared_ptr<ListenerProbe> probe;  // null if the listener has no IP address
};

class ServerImpl : public Server {
 public:
  explicit ServerImpl(ServerOptions options)
      : options_(std::move(options)),
        config_(options_.loaded.config),
        settings_(config_, options_.time_scale),
        incarnation_(NewIncarnation()),
        storage_(config_, incarnation_, options_.storage_failed),
        directory_(StillStarting({config_.cluster().id(), ""}, kWaitsForPeers)),
        pages_(&directory_, &options_.loaded, [this] { return facts_.Fresh(); }),
        facts_(settings_.Scaled(OwnFacts::kHelloCounts.count())) {}
  ~ServerImpl() override { Stop(); }

  absl::Status Open();

  absl::Status PollPeers() override;
  bool serving() const override { return peers_ != nullptr; }
  const std::string& address() const override { return address_; }
  const std::string& admin_address() const override { return admin_address_; }
  std::vector<FileOutcome> Reload() override {
    return security_->Reload(options_.reload_log_settings);
  }
  void Stop() override;

 private:
  void FillStreamDeps();
  void AddMethods();
  absl::Status Listen();
  absl::Status ProbeListener();
  absl::Status OpenAdmin();
  absl::Status Serve(const std::vector<config::Peer>& peers);
  EngineDeps MakeEngineDeps();
  // From here on votes and reports of lost peers reach the jobs.
  void StartPeers();
  void WatchStragglers();
  // Warns now and every hour if strangers can reach a port that asks for no certificate.
  void WarnOfInsecureNetwork();

  const ServerOptions options_;
  const ServerConfig& config_;
  const Settings settings_;
  const uint64_t incarnation_;
  simd::Isa isa_ = simd::Isa::kScalar;
  std::string address_;
  std::string admin_address_;
  MemoryBudgets budgets_;
  bool stopped_ = false;

  // In order of construction; each member may use those above it.
  std::unique_ptr<ServerMetrics> metrics_;
  Watches watches_;
  std::shared_ptr<Supervision> supervision_;  // Outlives the executor's last task.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<ThreadWorkerPool> workers_;
  std::unique_ptr<ServerSecurity> security_;
  ServerStorage storage_;  // Holds the jobs' files, so it precedes the holders of jobs.
  DirectoryHolder directory_;
  const StatusPages pages_;
  TrainerStreamDeps stream_deps_;
  OwnFacts facts_;
  std::shared_ptr<PeerClient> peers_;
  StragglerLog stragglers_;
  Health health_;
  GenericServer grpc_;
  std::unique_ptr<AdminServer> admin_;
};

absl::Status ServerImpl::Open() {
  for (const std::string& warning : options_.loaded.warnings) BALLAST_LOG(WARN) << warning;
  BALLAST_ASSIGN_OR_RETURN(isa_, simd::ChooseIsa(config_.isa()));
  budgets_ = BudgetsOf(config_, ReadMachineMemory());
  metrics_ =
      std::make_unique<ServerMetrics>(BuildInfo{BALLAST_VERSION, Revision(), simd::IsaName(isa_)});
  executor_ = std::make_unique<ThreadExecutor>(
      "round", static_cast<int>(config_.rounds().executor_threads()));
  supervision_ = Supervision::Start(options_.supervision, executor_.get());
  workers_ =
      std::make_unique<ThreadWorkerPool>(settings_.WorkerThreads(), "worker", kWorkerNiceness);
  watches_.disks = AddHostMetrics(metrics_.get(), config_, workers_.get(), storage_.calls());
  facts_.Watch(watches_.disks.get(), metrics_.get(), &config_);
  BALLAST_ASSIGN_OR_RETURN(security_,
                           ServerSecurity::Open(options_.loaded, metrics_.get(), executor_.get()));
  facts_.SetFaults([this] { return security_->faults(); });
  FillStreamDeps();
  BALLAST_RETURN_IF_ERROR(Listen());
  BALLAST_RETURN_IF_ERROR(ProbeListener());
  if (config_.admin().enabled()) BALLAST_RETURN_IF_ERROR(OpenAdmin());
  WarnOfInsecureNetwork();
  BALLAST_LOG(INFO, LogField("server", config_.cluster().id()), LogField("address", address_),
              LogField("admin", admin_address_), LogField("isa", simd::IsaName(isa_)),
              LogField("revision", Revision()), LogField("cluster", config_.cluster().name()),
              LogField("memory_budget", FormatBytes(budgets_.all_bytes)),
              LogField("state_budget", FormatBytes(budgets_.state_bytes)))
      << "ballastd " << BALLAST_VERSION << " listens";
  if (config_.cluster().peers_file().empty()) {
    BALLAST_RETURN_IF_ERROR(
        Serve({config_.cluster().peers().begin(), config_.cluster().peers().end()}));
  }
  if (!options_.ready_file.empty()) {
    BALLAST_RETURN_IF_ERROR(
        WriteReadyFile(options_.ready_file, {config_.cluster().id(), address_, admin_address_}));
  }
  if (serving()) supervision_->Serving();
  return absl::OkStatus();
}

void ServerImpl::FillStreamDeps() {
  stream_deps_.directory = &directory_;
  stream_deps_.executor = executor_.get();
  stream_deps_.clock = RealClock::Get();
  stream_deps_.metrics = metrics_.get();
  stream_deps_.gate = security_->gate();
  stream_deps_.config = settings_.Stream();
}

void ServerImpl::AddMethods() {
  AddControlMethods(
      &grpc_, &directory_, settings_.Terms(), [this] { return facts_.Get(); }, metrics_.get());
  AddPeerMethods(&grpc_, &directory_,
                 {config_.cluster().id(), incarnation_, security_->gate(),
                  [this] { return facts_.Admin(); }, facts_.sightings()});
  AddAdminMethods(&grpc_, &directory_, [this] { return facts_.Fresh(); });
  AddReloadMethod(&grpc_, executor_.get(), [this] { return Reload(); });
  AddHealthMethods(&grpc_, &health_);
  grpc_.AddMethod(method::kExchange, TrainerStream::Factory(&stream_deps_),
                  MethodType::kBidiStream);
}

absl::Status ServerImpl::Listen() {
  AddMethods();
  GenericServerOptions options = settings_.Port(budgets_);
  options.credentials = security_->ServerCredentials();
  options.metrics = metrics_.get();
  options.gate = security_->gate();
  options.audit = security_->audit();
  BALLAST_RETURN_IF_ERROR(grpc_.Start(options));
  BALLAST_ASSIGN_OR_RETURN(
      address_,
      ToldAddress(config_.listen().address(), config_.listen().advertise_address(), grpc_.port()));
  directory_.WaitFor(StillStarting({config_.cluster().id(), address_}, kWaitsForPeers));
  ServerFacts facts;
  facts.id = config_.cluster().id();
  facts.version = BALLAST_VERSION;
  facts.address = address_;
  facts.isa = simd::IsaName(isa_);
  facts.instead = "waiting for peers";
  facts_.Set(std::move(facts));
  return absl::OkStatus();
}

absl::Status ServerImpl::ProbeListener() {
  IdleTrimOptions trim;
  trim.resident = [] { return static_cast<uint64_t>(ResidentBytes()); };
  trim.trim = [this] { grpc_.arenas()->GiveBack(); };
  watches_.trim = IdleTrim::Start(std::move(trim), executor_.get());
  BALLAST_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config_.listen().address()));
  ProbeTarget target;
  target.host = listen.host;
  target.port = grpc_.port();
  target.tls = security_->secured();
  watches_.probe = ListenerProbe::Start(target, settings_.Scaled(kProbePatience.count()),
                                        RealClock::Get(), executor_.get(), &metrics_->registry());
  return absl::OkStatus();
}

absl::Status ServerImpl::OpenAdmin() {
  BALLAST_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config_.admin().address()));
  AdminServerOptions options;
  options.host = listen.host == "localhost" ? "127.0.0.1" : listen.host;
  options.port = listen.port;
  if (const std::string& file = config_.admin().token_file(); !file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(file);
    const FileSetting setting{"admin.token_file", file};
    if (!token.ok()) return WithPlace(token.status(), options_.loaded, {setting});
    options.token = *std::move(token);
  }
  AdminPages pages;
  pages.metrics = &metrics_->registry();
  pages.alive = [this] {
    return watches_.probe == nullptr ? absl::OkStatus() : watches_.probe->Health();
  };
  pages.ready = [this] {
    if (health_.ended()) return absl::UnavailableError("this server ends");
    BALLAST_RETURN_IF_ERROR(directory_.Get().status());
    return watches_.disks->Health();
  };
  pages.status = [this](bool json) { return pages_.Status(json); };
  pages.status_html = [this] { return pages_.StatusForBrowsers(); };
  pages.config = [this](bool json) { return pages_.Config(json); };
  BALLAST_ASSIGN_OR_RETURN(admin_, AdminServer::Start(options, std::move(pages)));
  admin_address_ = JoinHostPort(listen.host, admin_->port());
  facts_.SetAdmin(ToldAdminAddress(admin_address_, address_));
  return absl::OkStatus();
}

absl::Status ServerImpl::PollPeers() {
  if (serving()) return absl::OkStatus();
  const auto peers = config::ReadPeersFile(config_.cluster().peers_file());
  if (absl::IsNotFound(peers.status())) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(peers.status());
  BALLAST_RETURN_IF_ERROR(config::ValidatePeers(config_, *peers));
  BALLAST_RETURN_IF_ERROR(Serve(*peers));
  supervision_->Serving();
  return absl::OkStatus();
}

EngineDeps ServerImpl::MakeEngineDeps() {
  EngineDeps deps;
  deps.executor = executor_.get();
  deps.workers = workers_.get();
  deps.clock = RealClock::Get();
  deps.isa = isa_;
  deps.votes = peers_.get();
  deps.metrics = metrics_.get();
  deps.storage_failed = options_.storage_failed;
  deps.recovered_extents = supervision_->replayed_extents();
  return deps;
}

void ServerImpl::StartPeers() {
  peers_->Start(
      [this](uint32_t server, const std::string& why) {
        if (const auto jobs = directory_.Get(); jobs.ok()) (*jobs)->PeerLost(server, why);
      },
      [this](uint64_t job, uint32_t epoch, uint64_t round, const absl::StatusOr<Vote>& vote) {
        const auto jobs = directory_.Get(&JobApis::lookup);
        const auto engine = jobs.ok() ? (*jobs)->Find(job) : nullptr;
        if (engine == nullptr) return;
        if (vote.ok()) {
          engine->PeerVote(epoch, round, *vote, [](const VoteAnswer&) {});
        } else {
          engine->VoteRefused(round, vote.status());
        }
      });
}

absl::Status ServerImpl::Serve(const std::vector<config::Peer>& peers) {
  directory_.WaitFor(StillStarting({config_.cluster().id(), address_}, "reads its jobs from disk"));
  facts_.SetInstead("replaying");
  supervision_->Replaying();
  const std::vector<ServerAddress> servers = settings_.Servers(peers, address_);
  PeerLinkConfig link = settings_.PeerLink(servers, incarnation_);
  security_->JoinCluster(&link);
  link.sightings = facts_.sightings();
  link.sightings->SetServers(config_.cluster().id(), servers);
  peers_ = PeerClient::Create(
      link, executor_.get(), RealClock::Get(),
      std::make_unique<GrpcPeerTransport>(settings_.PeerCalls(), security_->ChannelCredentials(),
                                          grpc_.queue()));
  AddPeerMetrics(&metrics_->registry(), link, peers_);
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStore> store, storage_.OpenJobs(address_));
  BALLAST_ASSIGN_OR_RETURN(DirectorySnapshots snapshots, storage_.OpenSnapshots(servers.size()));
  DirectoryConfig jobs = settings_.Directory(servers, budgets_, incarnation_);
  jobs.quotas = security_->quotas();
  const std::shared_ptr<JobDirectory> directory = JobDirectory::Create(
      jobs, MakeEngineDeps(), peers_.get(), std::move(store), std::move(snapshots));
  StartPeers();
  BALLAST_RETURN_IF_ERROR(directory->Recover());
  facts_.SetInstead("");
  directory_.Set(directory);
  directory->StartRecovered();
  MarkSnapshots(directory->apis().snapshots, metrics_.get());
  facts_.SetPeers(peers_);
  WatchStragglers();
  health_.Serve();
  metrics_->serving()->Set(1);
  BALLAST_LOG(INFO, LogField("server", config_.cluster().id()), LogField("servers", servers.size()))
      << "serving jobs";
  return absl::OkStatus();
}

void ServerImpl::WarnOfInsecureNetwork() {
  const std::string warning = OpenNetworkWarning(config_, address_);
  if (warning.empty()) return;
  BALLAST_LOG(WARN) << warning;
  executor_->PostAfter(kInsecureInterval, [this] { WarnOfInsecureNetwork(); });
}

void ServerImpl::WatchStragglers() {
  executor_->PostAfter(settings_.Scaled(config_.timing().straggler_log_interval()), [this] {
    const auto api = directory_.Get(&JobApis::jobs);
    if (!api.ok()) return;
    (*api)->Status([this](const std::vector<JobStatus>& jobs) {
      for (const std::string& line : stragglers_.Lines(jobs)) BALLAST_LOG(INFO) << line;
    });
    WatchStragglers();
  });
}

void ServerImpl::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (metrics_ != nullptr) metrics_->serving()->Set(0);
  facts_.SetInstead("ending");
  health_.End();
  if (supervision_ != nullptr) supervision_->Stopping();
  if (watches_.probe != nullptr) watches_.probe->Stop();
  const absl::StatusOr<std::shared_ptr<JobDirectory>> directory = directory_.Get();
  if (directory.ok()) {
    const bool had_jobs = (*directory)->apis().jobs->Load().memory_used_bytes > 0;
    const auto ended = std::make_shared<std::promise<void>>();
    std::future<void> future = ended->get_future();
    (*directory)->Shutdown([ended] { ended->set_value(); });
    future.wait_for(kStopGrace);
    if (had_jobs) std::this_thread::sleep_for(kStopLinger);
  }
  // The callbacks of the peers' calls arrive through the queues of grpc_.
  if (peers_ != nullptr) peers_->Stop();
  grpc_.Shutdown(kStopGrace);
  if (admin_ != nullptr) admin_->Stop();
  directory_.Set(nullptr);
  if (executor_ != nullptr) executor_->Shutdown();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  auto server = std::make_unique<ServerImpl>(std::move(options));
  BALLAST_RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace ballast::server
