// ballastd: one state server as a process. Parses its command line, runs a Server until SIGTERM or
// SIGINT, and reports the outcome as its exit code. SIGHUP: with --config it reloads the settings
// that need no restart; without, it ends the server, as closing a terminal does. Exit codes: 0
// ended as asked, 1 failed, 2 wrong usage or configuration, 3 a disk refused a write or is
// read-only (start it again), 4 the data directory is incomplete (repair it first). Comes from: the
// operator, ballast-run. Goes to: Server. Thread safety: the main thread.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/io/file.h"
#include "common/system/malloc_arenas.h"
#include "common/system/standard_descriptors.h"
#include "common/threads/thread_executor.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/convert/channel.h"
#include "server/command_line.h"
#include "server/config/environment.h"
#include "server/config/print.h"
#include "server/host/data_dir_lock.h"
#include "server/host/disk_watch.h"
#include "server/host/storage_warnings.h"
#include "server/host/supervision.h"
#include "server/host/temporary_data.h"
#include "server/listen.h"
#include "server/net/descriptors.h"
#include "server/rpc/handshake_watch.h"
#include "server/server.h"

namespace ballast::server {
namespace {

constexpr int kUsageError = 2;
constexpr int kStorageError = 3;
constexpr int kStateLost = 4;
// How often the peers file is polled, and how often the log says that it is missing.
constexpr int kPollMs = 100;
constexpr int kSayEveryPolls = 50;
// How often the signal watcher checks whether the server has started.
constexpr int kStartPollMs = 10;
constexpr int kStartGracePolls = 50;

int Fail(const absl::Status& status, int code) {
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    std::cerr << "ballastd: " << line << "\n";
  }
  if (absl::IsDataLoss(status)) std::cerr << "ballastd: STATE_LOST: see docs/operations.md\n";
  return code;
}

// As Fail, after the configuration has been read: with a JSON log, the last words are one JSON
// record, too.
int FailStart(const absl::Status& status, const config::v1::Log& log, int code) {
  if (log.format() != config::v1::LOG_FORMAT_JSON) return Fail(status, code);
  BALLAST_LOG(ERROR, LogField("exit_code", code))
      << (absl::IsDataLoss(status) ? "STATE_LOST: see docs/operations.md: " : "")
      << status.message();
  return code;
}

// The part of the configuration needed when the server ends.
struct Configured {
  bool valid = false;
  std::string data_dir;
  config::v1::Log log;
};

// The exit code for a server that did not start.
int CodeOf(const absl::Status& status, const Configured& configured) {
  if (!configured.valid) return kUsageError;
  if (absl::IsDataLoss(status)) return kStateLost;
  return !configured.data_dir.empty() && ReadDisk(configured.data_dir).read_only ? kStorageError
                                                                                 : 1;
}

// nohup ignores SIGHUP: the server is meant to outlive the terminal.
bool HangupIsIgnored() {
  struct sigaction action = {};
  sigaction(SIGHUP, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// The signals that this program takes from a queue instead of a handler.
sigset_t OwnSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (!HangupIsIgnored()) sigaddset(&set, SIGHUP);
  return set;
}

// With a file to reload, SIGHUP is a request to do so, even under nohup.
void TakeHangup() {
  signal(SIGHUP, SIG_DFL);
  const sigset_t set = OwnSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// From now on the next signal ends the process immediately, except a hangup that `hangup_reloads`.
void EndAtNextSignal(bool hangup_reloads) {
  sigset_t set = OwnSignals();
  if (hangup_reloads) sigdelset(&set, SIGHUP);
  struct sigaction action = {};
  action.sa_handler = [](int signal) { _exit(128 + signal); };
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    if (sigismember(&set, signal)) sigaction(signal, &action, nullptr);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Returns the signal, or 0 when `timeout_ms` passed first.
int WaitForSignal(int timeout_ms) {
  const sigset_t set = OwnSignals();
  const timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  const int signal = sigtimedwait(&set, nullptr, &timeout);
  return signal > 0 ? signal : 0;
}

// During its lifetime a signal ends the process soon: a start that replays may take long (in
// proportion to its log), and is safe to interrupt. A hangup that `hangup_reloads` waits until the
// server has started.
class EndWhileStarting {
 public:
  explicit EndWhileStarting(bool hangup_reloads) {
    executor_.Post([this, hangup_reloads] {
      while (!started_) {
        const int signal = WaitForSignal(kStartPollMs);
        if (signal == SIGHUP && hangup_reloads) {
          hangup_ = true;
        } else if (signal != 0) {
          return End(signal);
        }
      }
    });
  }
  ~EndWhileStarting() {
    started_ = true;
    executor_.Shutdown();
    if (hangup_) kill(getpid(), SIGHUP);
  }
  EndWhileStarting(const EndWhileStarting&) = delete;
  EndWhileStarting& operator=(const EndWhileStarting&) = delete;

 private:
  // Re-raises the signal if the start is nearly over, so that the server ends in the usual way.
  void End(int signal) {
    for (int polls = 0; polls < kStartGracePolls && !started_; ++polls) {
      if (WaitForSignal(kStartPollMs) != 0) break;
    }
    if (started_) {
      kill(getpid(), signal);
      return;
    }
    BALLAST_LOG(INFO) << "signal " << strsignal(signal) << " before the server serves: ends";
    _exit(0);
  }

  std::atomic<bool> started_{false};
  bool hangup_ = false;  // owned by the executor's thread until it has ended
  ThreadExecutor executor_{"signals", 1};
};

// Restricts weights and records to this user and its group, even if no mask was set. A stricter
// mask is kept.
void KeepFilesFromOthers() {
  constexpr mode_t kOthers = 0027;
  umask(umask(0077) | kOthers);
}

// Where --dev keeps its data.
absl::StatusOr<std::string> TemporaryParent() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (!error) return parent.string();
  return absl::InternalError(
      absl::StrCat("no directory for temporary data: ", error.message(),
                   "; set TMPDIR to one that you may write to, or use --data-dir"));
}

void ApplyLog(const config::v1::Log& log) {
  SetLogFormat(log.format() == config::v1::LOG_FORMAT_JSON ? LogFormat::kJson : LogFormat::kText);
  SetMinLogSeverity(log.level() == config::v1::LOG_LEVEL_ERROR  ? LogSeverity::kError
                    : log.level() == config::v1::LOG_LEVEL_WARN ? LogSeverity::kWarn
                                                                : LogSeverity::kInfo);
}

// Removes the data directories of killed --dev servers next to this one's.
void RemoveStaleData(const std::string& own) {
  const std::string parent = std::filesystem::path(own).parent_path().string();
  for (const std::string& path : RemoveStaleTemporaryData(parent)) {
    BALLAST_LOG(INFO) << "removed " << path << ", left behind by a --dev server that was killed";
  }
}

// A directory used by a server before contains records.
absl::Status CheckOldDataDir(const std::string& path) {
  std::error_code error;
  const bool empty = std::filesystem::is_empty(path + "/meta", error);
  if (!error && !empty) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "storage.data_dir ", path, " has no records of a server (",
      error ? "meta: " + error.message() : "meta is empty", "), and storage.must_exist is set: ",
      "check that the right directory is mounted, or put it back, and start the server again. A ",
      "new server starts once without storage.must_exist"));
}

// Creates the directory, unless it must exist, and locks it for this process.
absl::StatusOr<DataDirLock> OpenDataDir(const config::v1::Storage& storage) {
  const std::string& path = storage.data_dir();
  if (path.empty()) return DataDirLock();
  if (storage.must_exist()) BALLAST_RETURN_IF_ERROR(CheckOldDataDir(path));
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return DataDirLock::Take(path);
  return absl::InvalidArgumentError(
      absl::StrCat("cannot create storage.data_dir ", path, ": ", error.message()));
}

// Rereads the configuration's log settings; null if there is no file to reread.
std::function<FileOutcome()> ReloadLogSettings(const config::LoadOptions& load) {
  if (load.file.empty()) return nullptr;
  return [load] {
    const absl::StatusOr<config::LoadedConfig> loaded = config::Load(load);
    if (loaded.ok()) ApplyLog(loaded->config.log());
    return FileOutcome{"--config", load.file, loaded.status()};
  };
}

// Starts the server once the file exists, which may take long.
absl::Status PollPeers(Server* server, const std::string& peers_file, bool hangup_reloads) {
  std::optional<EndWhileStarting> starting;
  if (access(peers_file.c_str(), F_OK) == 0) starting.emplace(hangup_reloads);
  return server->PollPeers();
}

absl::Status RunUntilSignal(Server* server, const std::string& peers_file,
                            const config::LoadOptions& load) {
  for (int polls = 0;; ++polls) {
    const int signal = WaitForSignal(server->serving() ? 60'000 : kPollMs);
    if (signal == SIGHUP && !load.file.empty()) {
      server->Reload();
    } else if (signal != 0) {
      EndAtNextSignal(!load.file.empty());
      BALLAST_LOG(INFO) << "signal " << strsignal(signal) << ": shutting down";
      return absl::OkStatus();
    }
    if (server->serving()) continue;
    BALLAST_RETURN_IF_ERROR(PollPeers(server, peers_file, !load.file.empty()));
    if (!server->serving() && polls % kSayEveryPolls == 0) {
      BALLAST_LOG(INFO) << "waiting for peers file " << peers_file;
    }
  }
}

// Creates data of --dev without a directory of its own: removed with the result, and set in `load`.
absl::StatusOr<TemporaryData> MakeTemporaryData(const CommandLine& line,
                                                config::LoadOptions* load) {
  const bool wanted = line.dev && load->flags.count("storage.data_dir") == 0;
  if (!wanted) return TemporaryData();
  BALLAST_ASSIGN_OR_RETURN(const std::string parent, TemporaryParent());
  BALLAST_ASSIGN_OR_RETURN(TemporaryData made, TemporaryData::Create(parent));
  load->flags["storage.data_dir"] = made.path();
  return made;
}

// Starts a server and runs it until a signal.
absl::Status Serve(const CommandLine& line, config::LoadedConfig loaded,
                   const SupervisionOptions& supervision, const config::LoadOptions& load) {
  const std::string data_path = loaded.config.storage().data_dir();
  const std::string peers_file = loaded.config.cluster().peers_file();
  // After a failed flush nothing is known about the file. The process ends without another message
  // or write; the supervisor restarts the server, which continues from its durable state.
  const auto storage_failed = [](const absl::Status&) { _exit(kStorageError); };
  std::optional<EndWhileStarting> starting;
  // Temporary data is removed at the end, and has nothing to replay.
  if (!line.dev) starting.emplace(!load.file.empty());
  auto server = Server::Start({std::move(loaded), line.time_scale, line.ready_file, storage_failed,
                               ReloadLogSettings(load), supervision});
  starting.reset();
  if (!server.ok()) return WithDisk(server.status(), data_path);
  if (line.dev) {
    std::cout << "export BALLAST_ENDPOINTS=" << (*server)->address() << std::endl;
  }
  const absl::Status status = RunUntilSignal(server->get(), peers_file, load);
  (*server)->Stop();
  return status;
}

// Prints the parts of the configuration requested by `line`, without starting a server. Returns the
// exit code.
int ShowConfig(const CommandLine& line) {
  const absl::StatusOr<config::LoadedConfig> loaded = config::Load(line.load);
  if (!loaded.ok()) return Fail(loaded.status(), kUsageError);
  if (line.print_config) std::cout << config::Print(*loaded);
  if (line.check_config) std::cout << "the configuration is valid\n";
  return std::cout.flush() ? 0 : 1;
}

// Fills `configured` as soon as the configuration is known.
absl::Status LoadAndServe(const CommandLine& line, const SupervisionOptions& supervision,
                          Configured* configured) {
  config::LoadOptions load = line.load;
  configured->valid = true;
  BALLAST_ASSIGN_OR_RETURN(const TemporaryData temporary, MakeTemporaryData(line, &load));
  absl::StatusOr<config::LoadedConfig> read = config::Load(load);
  configured->valid = read.ok();
  if (!read.ok()) return read.status();
  config::LoadedConfig loaded = *std::move(read);
  configured->log = loaded.config.log();
  configured->data_dir = loaded.config.storage().data_dir();
  ApplyLog(configured->log);
  if (!temporary.path().empty()) RemoveStaleData(temporary.path());
  if (!line.ready_file.empty()) BALLAST_RETURN_IF_ERROR(CheckReadyFile(line.ready_file));
  // Held until the process ends, beyond the end of Server.
  const absl::StatusOr<DataDirLock> data_dir = OpenDataDir(loaded.config.storage());
  if (!data_dir.ok()) return WithDisk(data_dir.status(), configured->data_dir);
  if (KernelUsesBbr()) {
    BALLAST_LOG(WARN) << "the kernel's default congestion control is BBR, which halves loopback "
                         "bandwidth; our own sockets ask for cubic";
  }
  if (!load.file.empty()) TakeHangup();
  return Serve(line, std::move(loaded), supervision, load);
}

// Returns the exit code. A server fails before it serves, or not at all: later a disk ends the
// process.
int Run(const CommandLine& line, const SupervisionOptions& supervision) {
  Configured configured;
  const absl::Status status = LoadAndServe(line, supervision, &configured);
  if (status.ok()) return 0;
  const int code = CodeOf(status, configured);
  SayFailedStart(supervision, status, code);
  return FailStart(status, configured.log, code);
}

// Refuses a command line with wrong usage. Returns the exit code.
int RefuseUsage(const absl::Status& why, const absl::StatusOr<SupervisionOptions>& supervision) {
  if (supervision.ok()) SayFailedStart(*supervision, why, kUsageError);
  return Fail(why, kUsageError);
}

int Main(int argc, char** argv) {
  if (const absl::Status held = HoldStandardDescriptors(); !held.ok()) return Fail(held, 1);
  KeepFilesFromOthers();
  TuneMalloc();
  DisableLockOrderChecks();
  // Failed connections are counted and logged here instead of by gRPC.
  WatchHandshakes(std::getenv("GRPC_VERBOSITY"));
  // libprotobuf's messages about strings that are not UTF-8 would let strangers fill the log.
  google::protobuf::SetLogHandler(nullptr);
  const sigset_t set = OwnSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A write beyond the limit fails with an error.
  RaiseDescriptorLimit();

  const absl::StatusOr<SupervisionOptions> supervision =
      ReadSupervision(config::ProcessEnvironment(), getpid());
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine({argv + 1, argv + argc}, config::ProcessEnvironment());
  if (!line.ok()) return RefuseUsage(line.status(), supervision);
  if (const char* failpoints = std::getenv("BALLAST_FAILPOINTS"); failpoints != nullptr) {
    const absl::Status known = Failpoints::Configure(failpoints);
    if (!known.ok()) return RefuseUsage(known, supervision);
  }
  if (line->help) std::cout << kUsage;
  if (line->version) std::cout << "ballastd " << BALLAST_VERSION << "\n";
  if (line->list_failpoints) {
    for (const std::string& name : Failpoints::Names()) std::cout << name << "\n";
  }
  if (line->pause_ms > 0) WaitForSignal(line->pause_ms);  // A signal ends it, too.
  if (line->pause_ms > 0 || line->help || line->version || line->list_failpoints) return 0;
  if (line->print_config || line->check_config) return ShowConfig(*line);
  if (!supervision.ok()) return Fail(supervision.status(), kUsageError);
  return Run(*line, *supervision);
}

}  // namespace
}  // namespace ballast::server

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) { return ballast::server::Main(argc, argv); }
