#include "client/cpp/transport/handshake_diagnosis.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::client {
namespace {

// This many tries without an answer rule out a starting server.
constexpr int kTriesToAsk = 3;

}  // namespace

std::string HandshakeDiagnosis::OnClosed(const absl::Status& status) {
  if (status.ok()) return "closed the stream";
  const bool unreached = status.code() == absl::StatusCode::kUnavailable &&
                         !status.GetPayload(kErrorDetailTypeUrl).has_value();
  if (unreached && ++silent_tries_ >= kTriesToAsk) {
    silent_tries_ = 0;
    Ask();
  }
  if (!unreached || cause_.empty()) return absl::StrCat("is gone: ", status.message());
  return absl::StrCat("is gone: ", cause_);
}

std::string HandshakeDiagnosis::Silent() const {
  return cause_.empty() ? "is not responding" : absl::StrCat("is not responding: ", cause_);
}

void HandshakeDiagnosis::OnSilence() {
  if (!asked_) Ask();
}

void HandshakeDiagnosis::OnBack() {
  asked_ = false;
  silent_tries_ = 0;
  question_.reset();
  cause_.clear();
}

void HandshakeDiagnosis::Ask() {
  if (question_ != nullptr) return;
  asked_ = true;
  question_ = transport_->Explain(address_, [this](std::string why) {
    cause_ = std::move(why);
    question_.reset();
  });
}

}  // namespace ballast::client
