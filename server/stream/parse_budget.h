// ParseBudget: bounds the memory of all requests being parsed, by the estimate of ScanWire. A grant
// counts until the request's handler has returned.
// Comes from: GenericServer. Goes to: UnaryCall. Thread safety: thread-safe.
#pragma once

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"

namespace ballast::server {

class ParseBudget {
 public:
  // Returns its bytes on destruction.
  class Hold {
   public:
    Hold() = default;
    Hold(ParseBudget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
    ~Hold() { Release(); }
    Hold(Hold&& other) noexcept;
    Hold& operator=(Hold&& other) noexcept;

   private:
    void Release();

    ParseBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  // One request may always be parsed, however large.
  explicit ParseBudget(size_t bytes_max) : bytes_max_(bytes_max) {}
  ParseBudget(const ParseBudget&) = delete;
  ParseBudget& operator=(const ParseBudget&) = delete;

  // Errors: RESOURCE_EXHAUSTED OVER_BUDGET with the numbers; the call may be repeated.
  absl::StatusOr<Hold> Take(size_t bytes);
  size_t held_bytes() const;

 private:
  void Give(size_t bytes);

  const size_t bytes_max_;
  mutable Mutex mu_;
  size_t held_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ballast::server
