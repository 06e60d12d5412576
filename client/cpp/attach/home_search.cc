#include "client/cpp/attach/home_search.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ballast/v1/admin.pb.h"
#include "client/cpp/attach/outage_reporter.h"
#include "client/cpp/job/attach.h"
#include "client/cpp/session/retry.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;
using Time = std::chrono::steady_clock::time_point;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kMaxBackoff{1000};
constexpr std::chrono::seconds kLogInterval{30};
// Without an answer by then, the home waits for the other trainers or for one of its peers: it is
// asked which, from time to time.
constexpr milliseconds kAskAfter{2500};
constexpr milliseconds kAskInterval{5000};
constexpr milliseconds kAskTimeout{500};
// This many tries without an answer rule out a starting server.
constexpr int kTriesToExplain = 3;
// The server's answer that names the missing slots should come before our own deadline.
constexpr milliseconds kServerHeadStart{5000};

// Worth another try: the server is away, or another one without which the home makes no job.
// `resuming`: another server of the job may have no disk at the moment, or may not have followed
// the home into the job's epoch yet.
bool IsTransient(const absl::Status& status, bool resuming) {
  if (IsAway(status)) return true;
  const Reason reason = ReasonOf(status);
  const bool unavailable = status.code() == absl::StatusCode::kUnavailable;
  if (unavailable && reason == Reason::kServerLost) return true;
  return resuming &&
         (reason == Reason::kFutureEpoch || (unavailable && reason == Reason::kStorageFailed));
}

// The search for a job's home, with one deadline over all tries.
class HomeSearch {
 public:
  HomeSearch(const JobOptions& options, HomeSearchDeps deps, v1::AttachRequest request)
      : options_(options),
        deps_(std::move(deps)),
        outage_(options),
        request_(std::move(request)),
        resuming_(MayResume(options)),
        deadline_(deps_.now() + options.attach_timeout),
        next_log_(deps_.now() + kLogInterval) {}

  absl::StatusOr<v1::AttachReply> Run() {
    milliseconds backoff = kFirstBackoff;
    while (true) {
      for (const std::string& endpoint : options_.endpoints) {
        v1::AttachReply reply;
        const absl::Status status = FollowRedirects(endpoint, &reply);
        if (status.ok()) outage_.OnBack(deps_.now());
        if (status.ok()) return reply;
        if (!IsTransient(status, resuming_)) return WithReason(status);
        last_error_ = absl::StrCat(endpoint, ": ", ToText(status.message()));
        NoteAway(status);
        Explain(status);
      }
      BALLAST_RETURN_IF_ERROR(SleepPolling(
          std::min(backoff, Left()), [this] { return Poll(); }, deps_.sleep));
      if (Left() <= milliseconds(0)) return NoAnswer();
      backoff = std::min(backoff * 2, kMaxBackoff);
    }
  }

 private:
  static std::string ToText(absl::string_view text) {
    return std::string(text.data(), text.size());
  }

  milliseconds Left() const {
    return std::chrono::duration_cast<milliseconds>(deadline_ - deps_.now());
  }

  Time::duration Scaled(milliseconds time) const {
    return std::chrono::duration_cast<Time::duration>(time * options_.time_scale);
  }

  // Called about ten times a second whatever we wait for.
  absl::Status Poll() {
    if (options_.should_stop && options_.should_stop()) {
      return ReasonedError(absl::StatusCode::kCancelled, Reason::kClosed,
                           "attaching was stopped by the caller");
    }
    WatchCall();
    outage_.ReportIfDue(deps_.now());
    if (deps_.now() >= next_log_) {
      next_log_ += kLogInterval;
      if (!outage_.away()) {
        BALLAST_LOG(INFO, LogField("job", options_.job), LogField("slot", options_.slot))
            << "still attaching, " << Left().count() / 1000
            << " s left: waiting for the other trainers";
      }
    }
    return absl::OkStatus();
  }

  // The connection of a running call shows whether the server is reachable.
  void WatchCall() {
    if (connection_ == nullptr) return;
    const Time now = deps_.now();
    if (!connection_->ready()) {
      if (!outage_.away()) {
        outage_.OnAway(call_began_, IdOf(address_), address_, "it does not answer");
      }
    } else if (now >= ask_at_) {
      ask_at_ = now + Scaled(kAskInterval);
      AskHome();
    }
  }

  // A home that cannot reach one of its peers makes no job. No answer, no news.
  void AskHome() {
    v1::JobStatusRequest request;
    request.set_job(options_.job);
    v1::JobStatusReply home;
    const absl::Status status =
        connection_->Call(method::kJobStatus, request, kAskTimeout, nullptr, &home);
    if (status.code() == absl::StatusCode::kUnimplemented) return AskOlderHome();
    if (!status.ok() || home.away().empty()) return outage_.OnBack(deps_.now());
    TellAway(home.server(), home.away(0).id(), home.away(0).address());
  }

  // A server before Control.JobStatus.
  void AskOlderHome() {
    v1::StatusReply home;
    const absl::Status status =
        connection_->Call(method::kAdminStatus, v1::StatusRequest(), kAskTimeout, nullptr, &home);
    const auto lost = std::find_if(home.peers().begin(), home.peers().end(),
                                   [](const v1::PeerStatus& peer) { return !peer.reachable(); });
    if (!status.ok() || lost == home.peers().end()) return outage_.OnBack(deps_.now());
    TellAway(home.id(), lost->id(), lost->address());
  }

  void TellAway(uint32_t home, uint32_t lost, const std::string& address) {
    outage_.OnAway(call_began_, lost, address, absl::StrCat("server ", home, " cannot reach it"));
  }

  // After a failed try: notes the server named by the error, or else the server asked.
  void NoteAway(const absl::Status& status) {
    const ErrorFields fields = FieldsOf(status);
    const bool named = fields.server >= 0;
    outage_.OnAway(deps_.now(), named ? static_cast<uint32_t>(fields.server) : IdOf(address_),
                   named ? fields.address : address_, ToText(status.message()));
  }

  // gRPC reports a refused handshake as a closed socket. This logs the handshake's own error, once.
  void Explain(const absl::Status& status) {
    if (ReasonOf(status) != Reason::kUnspecified || ++silent_tries_ < kTriesToExplain) return;
    if (!explanation_.empty()) return;
    explanation_ = deps_.explain(address_);
    if (explanation_.empty()) {
      silent_tries_ = 0;  // Asked again after some more.
      return;
    }
    explanation_ = absl::StrCat(address_, ": ", explanation_);
    BALLAST_LOG(WARN, LogField("job", options_.job), LogField("slot", options_.slot))
        << "cannot attach yet: " << explanation_;
  }

  uint32_t IdOf(const std::string& address) const {
    const auto known = ids_.find(address);
    return known == ids_.end() ? kServerUnknown : known->second;
  }

  absl::Status FollowRedirects(std::string address, v1::AttachReply* reply) {
    absl::Status status;
    for (int hop = 0; hop <= kMaxRedirects; ++hop) {
      status = Try(address, reply);
      if (ReasonOf(status) != Reason::kNotHome) return status;
      const ErrorFields home = FieldsOf(status);
      address = home.address;
      if (home.server >= 0) ids_[address] = static_cast<uint32_t>(home.server);
      if (address.empty()) break;
    }
    return status;
  }

  absl::Status Try(const std::string& address, v1::AttachReply* reply) {
    const milliseconds left = std::max(Left(), milliseconds(1));
    request_.set_wait_timeout_ms(static_cast<uint64_t>(left.count()));
    address_ = address;
    connection_ = deps_.connect(address);
    call_began_ = deps_.now();
    ask_at_ = call_began_ + Scaled(kAskAfter);
    const absl::Status status = connection_->Call(
        method::kAttach, request_, left + kServerHeadStart, [this] { return Poll(); }, reply);
    connection_ = nullptr;
    return status;
  }

  // A deadline of our own carries no reason yet.
  absl::Status WithReason(const absl::Status& status) const {
    if (status.code() != absl::StatusCode::kDeadlineExceeded ||
        ReasonOf(status) != Reason::kUnspecified) {
      return status;
    }
    return ReasonedError(
        absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
        absl::StrCat("job \"", options_.job, "\" was not complete after ",
                     options_.attach_timeout.count(),
                     " ms and its home server did not say who is missing; see its log"),
        Fields());
  }

  absl::Status NoAnswer() const {
    return ReasonedError(
        absl::StatusCode::kUnavailable, Reason::kUnreachable,
        absl::StrCat("no state server answered at ", absl::StrJoin(options_.endpoints, ", "),
                     " within ", options_.attach_timeout.count(), " ms (last: ",
                     explanation_.empty() ? last_error_ : explanation_, "); check that ",
                     resuming_ ? "every ballastd of the job" : "ballastd", " runs there"),
        Fields());
  }

  ErrorFields Fields() const {
    ErrorFields fields;
    fields.job = options_.job;
    fields.slot = static_cast<int>(options_.slot);
    return fields;
  }

  const JobOptions& options_;
  const HomeSearchDeps deps_;
  OutageReporter outage_;
  v1::AttachRequest request_;
  const bool resuming_;
  const Time deadline_;
  Time next_log_;
  std::map<std::string, uint32_t> ids_;         // of servers known from redirects, by address
  std::string address_;                         // of the newest try
  std::unique_ptr<HomeConnection> connection_;  // null between two tries
  Time call_began_;
  Time ask_at_;
  std::string last_error_ = "not tried yet";
  int silent_tries_ = 0;     // that ended without an answer of a server
  std::string explanation_;  // of a handshake; empty: none yet
};

}  // namespace

absl::StatusOr<v1::AttachReply> AttachToHome(const JobOptions& options, HomeSearchDeps deps,
                                             v1::AttachRequest request) {
  return HomeSearch(options, std::move(deps), std::move(request)).Run();
}

}  // namespace ballast::client
