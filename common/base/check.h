// BALLAST_CHECK: our own bugs end the process, in release builds too. Never used on input from
// peers, disks or configuration; those are absl::Status.
// Thread safety: macro only.
#pragma once

#include <cstdio>
#include <cstdlib>

#define BALLAST_CHECK(cond)                                                                 \
  do {                                                                                      \
    if (!(cond)) {                                                                          \
      std::fprintf(stderr, "%s:%d: BALLAST_CHECK failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
