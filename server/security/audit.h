// The audit log of a server with security: the orders of callers with their results, and the
// refused calls. Each is one line of JSON on stderr, regardless of the format of other lines:
//
//   {"time":"...","audit":"order","identity":"spiffe://...","peer":"ipv4:...","method":"...",
//    "tenant":"...","job":"...","result":"OK"}
//
// A line has no values, no tokens and no text of a caller but the job's name. Refusals are at most
// kRefusalsPerSecond lines a second; the next line after a pause has the number of those left out
// (suppressed).
// Comes from: GenericServer. Goes to: stderr. Thread safety: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/security/caller.h"

namespace ballast::server {

struct AuditLine {
  std::string kind;      // order | refused
  std::string identity;  // of the caller; empty when it has none
  std::string peer;      // address
  std::string method;
  std::string tenant;  // of the caller; empty for servers and admins
  std::string job;     // name, or number of orders between servers; empty: the call names none
  std::string result;  // name of the status code
  uint64_t suppressed = 0;
};

class AuditLog {
 public:
  static constexpr int kRefusalsPerSecond = 10;
  using Sink = std::function<void(const AuditLine&)>;

  // `clock` outlives it. `sink` gets the lines, one at a time; WriteAuditLine outside of tests.
  AuditLog(const Clock* clock, Sink sink);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Order(AuditLine line);
  void Refused(AuditLine line);

 private:
  const Clock* const clock_;
  const Sink sink_;

  Mutex mu_;
  std::chrono::nanoseconds second_ ABSL_GUARDED_BY(mu_){-1};  // its first moment
  int written_ ABSL_GUARDED_BY(mu_) = 0;                      // refusals in it
  uint64_t suppressed_ ABSL_GUARDED_BY(mu_) = 0;
};

void WriteAuditLine(const AuditLine& line);

}  // namespace ballast::server
