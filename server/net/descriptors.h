// How many descriptors this process may have, and which of them connections leave to files.
// Comes from: main, Listener. Goes to: the kernel. Thread safety: a system call each.
#pragma once

namespace ballast::server {

// Raises the limit of this process to the highest that it may ask for, and returns it.
int RaiseDescriptorLimit();

// The first descriptor that no connection gets, of `limit`: the last 256 are for files, or a
// quarter where there are few.
int ConnectionDescriptorEnd(int limit);

// The limit of this process.
int DescriptorLimit();

}  // namespace ballast::server
