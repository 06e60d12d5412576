#include "server/net/listener_probe.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/system/socket_address.h"
#include "common/text/units.h"
#include "server/net/first_bytes.h"

namespace ballast::server {
namespace {

constexpr int kBeatsInPatience = 5;
// After so many times the patience without a task the executor hangs.
constexpr int kHungAfter = 30;
// The shortest record of TLS that could hold a handshake; its content is none. A server answers
// with an alert, or closes.
constexpr absl::string_view kNoHandshake("\x16\x03\x01\x00\x04\x01\x00\x00\x00", 9);

std::string HostToProbe(const std::string& host) {
  if (host == "localhost" || host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

}  // namespace

std::shared_ptr<ListenerProbe> ListenerProbe::Start(const ProbeTarget& target,
                                                    std::chrono::nanoseconds patience,
                                                    const Clock* clock, Executor* executor,
                                                    MetricRegistry* registry) {
  ProbeTarget probed = target;
  probed.host = HostToProbe(target.host);
  if (!IsIpAddress(probed.host)) return nullptr;
  const std::shared_ptr<ListenerProbe> probe(
      new ListenerProbe(std::move(probed), patience, clock, executor));
  probe->accepts_->Set(1);  // The port was bound just now.
  registry->Add("ballast_listener_accepts", {}, std::shared_ptr<const Gauge>(probe->accepts_));
  {
    MutexLock lock(&probe->mu_);
    probe->Connect();
  }
  probe->Later();
  return probe;
}

ListenerProbe::ListenerProbe(ProbeTarget target, std::chrono::nanoseconds patience,
                             const Clock* clock, Executor* executor)
    : target_(std::move(target)),
      patience_(patience),
      clock_(clock),
      executor_(executor),
      beat_at_ns_(clock->Now().count()) {}

ListenerProbe::~ListenerProbe() { Stop(); }

void ListenerProbe::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

absl::Status ListenerProbe::Health() const {
  const std::chrono::nanoseconds silent =
      clock_->Now() - std::chrono::nanoseconds(beat_at_ns_.load(std::memory_order_relaxed));
  if (silent > kHungAfter * patience_) {
    return absl::UnavailableError(
        absl::StrCat("the executor has run no task for ", FormatDuration(silent)));
  }
  if (accepts()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "port ", target_.port, " has not answered a new connection for ", FormatDuration(patience_)));
}

void ListenerProbe::Later() {
  executor_->PostAfter(patience_ / kBeatsInPatience, [weak = weak_from_this()] {
    if (const auto probe = weak.lock()) probe->Beat();
  });
}

void ListenerProbe::Connect() {
  if (socket_ >= 0) close(socket_);
  socket_ = BeginConnect(target_.host, target_.port);
  said_ = false;
  opened_at_ = clock_->Now();
}

ListenerProbe::Answer ListenerProbe::Look() {
  if (socket_ < 0) return Answer::kNo;
  const absl::string_view words = target_.tls ? kNoHandshake : kHttp2Preface;
  // The connection may not stand yet; then the next beat says it.
  if (!said_) {
    said_ = send(socket_, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
    if (!said_) return AnswerOf(errno);
  }
  char first = 0;
  return recv(socket_, &first, 1, MSG_DONTWAIT) >= 0 ? Answer::kYes : AnswerOf(errno);
}

ListenerProbe::Answer ListenerProbe::AnswerOf(int error) {
  if (error == EAGAIN || error == EINTR || error == ENOTCONN) return Answer::kNotYet;
  return error == ECONNRESET || error == EPIPE ? Answer::kYes : Answer::kNo;
}

void ListenerProbe::Beat() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    const std::chrono::nanoseconds now = clock_->Now();
    beat_at_ns_.store(now.count(), std::memory_order_relaxed);
    const Answer answer = Look();
    const bool late = now - opened_at_ >= patience_;
    if (answer == Answer::kYes) accepts_->Set(1);
    if (answer == Answer::kNo || (answer == Answer::kNotYet && late)) accepts_->Set(0);
    beats_.fetch_add(1, std::memory_order_relaxed);
    if (answer != Answer::kNotYet || late) Connect();
  }
  Later();
}

}  // namespace ballast::server
