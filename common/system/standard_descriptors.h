// Standard input, output and error as numbers that no file or socket of ours may get: a program
// that starts with one of them closed, as some supervisors start daemons, would otherwise write its
// messages into whatever it opens next.
// Comes from: main programs, Client. Goes to: the kernel. Thread safety: call it before other
// threads open files; a call that finds all three open changes nothing.
#pragma once

#include "absl/status/status.h"

namespace ballast {

// Opens /dev/null, for reading and writing, in place of each closed one of the descriptors 0, 1 and
// 2. They stay open in programs that this one starts. UNAVAILABLE: /dev/null cannot be opened, and
// the text says why.
absl::Status HoldStandardDescriptors();

// The same before any constructor of a library runs: it uses nothing but system calls.
void HoldStandardDescriptorsFirst();

}  // namespace ballast

// For the file of main(), once, outside of all functions: main() is too late, because a constructor
// of libgrpc opens an eventfd. Executables only; a library has no such section.
#define BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST()                                \
  __attribute__((section(".preinit_array"),                                      \
                 used)) static void (*const hold_standard_descriptors_first)() = \
      &::ballast::HoldStandardDescriptorsFirst
