// Starting, watching and ending a ballastd; see server_process.h.
// Thread safety: one thread.
#include "bench/parts/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/parts/harness.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"

namespace ballast::bench {
namespace {

constexpr std::chrono::seconds kStartTimeout{20};
constexpr std::chrono::milliseconds kPollInterval{5};

int PortOf(const std::string& address) {
  int port = 0;
  const size_t colon = address.rfind(':');
  return colon != std::string::npos && absl::SimpleAtoi(address.substr(colon + 1), &port) ? port
                                                                                          : 0;
}

// The string value of `key` in a flat JSON object.
std::string JsonString(const std::string& json, const std::string& key) {
  const std::string start = absl::StrCat("\"", key, "\": \"");
  const size_t at = json.find(start);
  if (at == std::string::npos) return "";
  const size_t begin = at + start.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Port of one end of the TCP connection `fd`; 0 when it is none.
int EndPort(int fd, decltype(&getsockname) end) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (end(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

std::vector<int> OpenFiles(pid_t pid) {
  std::vector<int> fds;
  std::error_code ignored;
  const std::string path = absl::StrCat("/proc/", pid, "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    int fd = -1;
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd)) fds.push_back(fd);
  }
  return fds;
}

}  // namespace

std::vector<std::string> OwnCongestionControl(int port) {
  std::set<std::string> names;
  for (const int fd : OpenFiles(getpid())) {
    if (EndPort(fd, &getpeername) == port) names.insert(CongestionControlOf(fd));
  }
  return {names.begin(), names.end()};
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    const std::string& binary, const std::vector<std::string>& arguments, bool keep_log) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "ballast-bench-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return SystemError("cannot create " + directory);
  std::unique_ptr<ServerProcess> server(new ServerProcess(directory, binary, arguments, keep_log));
  BALLAST_RETURN_IF_ERROR(server->Launch());
  BALLAST_RETURN_IF_ERROR(server->AwaitReady());
  return server;
}

absl::Status ServerProcess::Launch() {
  std::vector<std::string> words = {binary_, "--dev", "--ready-file=" + directory_ + "/ready",
                                    keep_log_ ? "--set=log.level=info" : "--set=log.level=warn"};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string log_path = directory_ + "/log";
  pid_ = fork();
  if (pid_ < 0) return SystemError("fork");
  if (pid_ > 0) return absl::OkStatus();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int log = keep_log_ ? open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
  if (log >= 0) dup2(log, STDERR_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  execv(binary_.c_str(), argv.data());
  _exit(127);
}

void ServerProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

absl::Status ServerProcess::Restart() {
  arguments_.push_back("--listen=" + std::exchange(address_, ""));
  std::error_code ignored;
  std::filesystem::remove(directory_ + "/ready", ignored);
  BALLAST_RETURN_IF_ERROR(Launch());
  const absl::Status ready = AwaitReady();
  arguments_.pop_back();
  return ready;
}

std::string ServerProcess::Log() const { return ReadFile(directory_ + "/log"); }

absl::Status ServerProcess::AwaitReady() {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (address_.empty()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::InternalError("the state server ended before it listened");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::InternalError("the state server does not listen after 20 s");
    }
    const std::string ready = ReadFile(directory_ + "/ready");
    address_ = JsonString(ready, "address");
    admin_ = JsonString(ready, "admin");
    if (address_.empty()) std::this_thread::sleep_for(kPollInterval);
  }
  return absl::OkStatus();
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

absl::StatusOr<double> ServerProcess::CpuSeconds() const {
  clockid_t clock = 0;
  timespec time = {};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    return absl::InternalError("cannot read the state server's CPU time");
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

absl::StatusOr<uint64_t> ServerProcess::MinorFaults() const {
  const std::string text = ReadFile(absl::StrCat("/proc/", pid_, "/stat"));
  // After the name in parentheses: state, ppid, pgrp, session, tty, tpgid, flags, minflt.
  const size_t name_end = text.rfind(')');
  uint64_t faults = 0;
  if (name_end != std::string::npos) {
    const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
    if (fields.size() > 7 && absl::SimpleAtoi(fields[7], &faults)) return faults;
  }
  return absl::InternalError("cannot read the state server's page faults");
}

absl::StatusOr<uint64_t> ServerProcess::DiskReadBytes() const {
  const std::string text = ReadFile(absl::StrCat("/proc/", pid_, "/io"));
  for (const auto line : absl::StrSplit(text, '\n')) {
    uint64_t bytes = 0;
    if (absl::StartsWith(line, "read_bytes: ") && absl::SimpleAtoi(line.substr(12), &bytes)) {
      return bytes;
    }
  }
  return absl::InternalError("cannot read what the state server has read");
}

absl::StatusOr<double> ServerProcess::Metric(const std::string& family) const {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(PortOf(admin_)));
  constexpr char kRequest[] = "GET /metrics HTTP/1.0\r\n\r\n";
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd, kRequest, sizeof(kRequest) - 1, MSG_NOSIGNAL) < 0) {
    return SystemError("cannot reach the admin port " + admin_);
  }
  std::string page;
  char part[4096];
  for (ssize_t got = 0; (got = recv(fd, part, sizeof(part), 0)) > 0;) {
    page.append(part, static_cast<size_t>(got));
  }
  close(fd);
  double sum = 0;
  for (const auto line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, family + "{") && !absl::StartsWith(line, family + " ")) continue;
    double value = 0;
    const std::string text(line);
    if (absl::SimpleAtod(text.substr(text.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

absl::StatusOr<std::vector<std::string>> ServerProcess::CongestionControl() const {
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (handle < 0) return SystemError("pidfd_open");
  std::set<std::string> names;
  for (const int remote : OpenFiles(pid_)) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, handle, remote, 0));
    if (fd < 0) continue;
    const bool accepted =
        EndPort(fd, &getsockname) == PortOf(address_) && EndPort(fd, &getpeername) != 0;
    if (accepted) names.insert(CongestionControlOf(fd));
    close(fd);
  }
  close(handle);
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace ballast::bench
