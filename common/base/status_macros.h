// Early-return macros over absl::Status, so that fallible code reads top to bottom.
// Comes from: every room. Goes to: nothing. Thread safety: macros only.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BALLAST_CONCAT_INNER(a, b) a##b
#define BALLAST_CONCAT(a, b) BALLAST_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` (an absl::Status) is not OK.
#define BALLAST_RETURN_IF_ERROR(expr)                     \
  do {                                                    \
    if (absl::Status _st = (expr); !_st.ok()) return _st; \
  } while (false)

#define BALLAST_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = *std::move(tmp)

// Evaluates `expr` (an absl::StatusOr<T>); on success assigns the value to `lhs`, else returns.
#define BALLAST_ASSIGN_OR_RETURN(lhs, expr) \
  BALLAST_ASSIGN_OR_RETURN_IMPL(BALLAST_CONCAT(_statusor_, __LINE__), lhs, expr)
