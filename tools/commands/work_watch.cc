#include "tools/commands/work_watch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/convert/methods.h"
#include "tools/ctl/admin_call.h"

namespace ballast::tools {
namespace {

constexpr std::chrono::milliseconds kEvery(500);
constexpr double kLineEveryS = 5;  // where no terminal overwrites the line

double NowS() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string HumanBytes(double bytes) {
  const std::array<const char*, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f %s", bytes, units[unit])
                   : absl::StrFormat("%.2f %s", bytes, units[unit]);
}

std::string HumanRate(double bytes, double seconds) {
  return absl::StrFormat("%.0f MB/s", bytes / 1e6 / std::max(seconds, 1e-3));
}

WorkWatch::WorkWatch(std::string endpoint, std::function<bool(const v1::Work&)> is_ours)
    : is_ours_(std::move(is_ours)),
      terminal_(isatty(STDERR_FILENO) == 1),
      endpoints_({std::move(endpoint)}) {
  thread_.Post([this] { Run(); });
}

WorkWatch::~WorkWatch() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  change_.NotifyAll();
  thread_.Shutdown();
  if (on_line_) std::cerr << "\n";
}

void WorkWatch::Run() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (!stop_) change_.WaitFor(&mu_, kEvery);
      if (stop_) return;
    }
    const Sum sum = Look();
    if (sum.total != 0) Say(sum);
  }
}

WorkWatch::Sum WorkWatch::Look() {
  Sum sum;
  std::set<uint32_t> servers;  // that have answered: one may be known by several addresses
  const std::set<std::string> asked = endpoints_;
  for (const std::string& endpoint : asked) {
    const auto reply =
        Ask<v1::StatusReply>(endpoint, method::kAdminStatus, v1::StatusRequest(), kTimeoutS);
    if (!reply.ok()) continue;
    for (const v1::PeerStatus& peer : reply->peers()) endpoints_.insert(peer.address());
    if (!servers.insert(reply->id()).second) continue;
    for (const v1::Work& work : reply->works()) {
      if (!is_ours_(work)) continue;
      sum.kind = work.kind();
      sum.done += work.done_bytes();
      sum.total += work.total_bytes();
    }
  }
  return sum;
}

void WorkWatch::Say(const Sum& sum) {
  const double now = NowS();
  if (kind_ != sum.kind) {
    if (on_line_) std::cerr << "\n";
    on_line_ = false;
    kind_ = sum.kind;
    began_s_ = now - std::chrono::duration<double>(kEvery).count();
    told_s_ = 0;
  }
  if (!terminal_ && now - told_s_ < kLineEveryS) return;
  told_s_ = now;
  const auto done = static_cast<double>(sum.done);
  const auto total = static_cast<double>(sum.total);
  const std::string text =
      absl::StrFormat("%s: %s of %s (%.0f %%), %s", sum.kind, HumanBytes(done), HumanBytes(total),
                      100 * done / total, HumanRate(done, now - began_s_));
  std::cerr << (terminal_ ? absl::StrCat("\r\x1b[K", text) : absl::StrCat(text, "\n"))
            << std::flush;
  on_line_ = terminal_;
}

}  // namespace ballast::tools
