// The kernel's setting of transparent huge pages, which arenas and direct I/O want.
// Comes from: the server's start, ballastctl tune. Goes to: the kernel's file. Thread safety: pure
// apart from reading it.
#pragma once

#include <string>

namespace ballast {

inline constexpr char kHugePagesFile[] = "/sys/kernel/mm/transparent_hugepage/enabled";

// The mode in force: always, madvise or never; empty when it is not known.
std::string HugePageMode();

// The word in brackets of a line like "always [madvise] never"; empty for any other.
std::string ChosenWord(const std::string& line);

}  // namespace ballast
