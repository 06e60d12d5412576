#include "server/security/audit.h"

#include <utility>
#include <vector>

#include "common/base/log.h"

namespace ballast::server {

AuditLog::AuditLog(const Clock* clock, Sink sink) : clock_(clock), sink_(std::move(sink)) {}

void AuditLog::Order(AuditLine line) {
  line.kind = "order";
  MutexLock lock(&mu_);
  sink_(line);
}

void AuditLog::Refused(AuditLine line) {
  line.kind = "refused";
  const std::chrono::nanoseconds now = clock_->Now();
  MutexLock lock(&mu_);
  if (second_.count() < 0 || now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    written_ = 0;
  }
  if (written_ == kRefusalsPerSecond) {
    ++suppressed_;
    return;
  }
  ++written_;
  line.suppressed = std::exchange(suppressed_, 0);
  sink_(line);
}

void WriteAuditLine(const AuditLine& line) {
  std::vector<LogField> fields = {LogField("audit", line.kind)};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) fields.emplace_back(key, value);
  };
  add("identity", line.identity);
  add("peer", line.peer);
  add("method", line.method);
  add("tenant", line.tenant);
  add("job", line.job);
  add("result", line.result);
  if (line.suppressed > 0) fields.emplace_back("suppressed", line.suppressed);
  WriteJsonLine(fields);
}

}  // namespace ballast::server
