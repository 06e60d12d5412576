// `ballastctl doctor`: whether this host suits a state server, and what to change where it does
// not. Reading the host and judging the facts are apart, so that every finding can be tested.
// Comes from: host_commands. Goes to: the kernel's files, server/config, common/io.
// Thread safety: JudgeHost is pure; ReadHost reads, and makes and removes one unnamed file in the
// data directory (FileSystem::DirectIo).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ballast/config/v1/server.pb.h"

namespace ballast::tools {

// Of one directory that the configuration names. Bytes are those of its file system.
struct DirectoryFacts {
  std::string path;  // empty: the configuration names none
  bool exists = false;
  bool in_memory = false;  // tmpfs or ramfs
  bool network = false;    // NFS and the like, as several hosts see it
  bool direct_io = false;
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

// Hard limits of a process: a server raises its soft ones to them.
struct Limits {
  int server = 0;              // its process id, of a ballastd; 0: this process, as its shell is
  uint64_t memlock_bytes = 0;  // RLIMIT_MEMLOCK; UINT64_MAX: no limit
  uint64_t files = 0;          // RLIMIT_NOFILE
};

struct HostFacts {
  std::string isa;  // the best one of this CPU: scalar, avx2 or avx512
  Limits limits;
  std::string huge_pages;      // always, madvise or never; empty: not known
  uint64_t aio_used = 0;       // /proc/sys/fs/aio-nr
  uint64_t aio_max = 0;        // /proc/sys/fs/aio-max-nr; 0: not known
  std::string congestion;      // the kernel's default congestion control
  bool clock_in_step = false;  // the kernel's clock is disciplined (adjtimex)
  std::string clock_source;    // tsc, hpet, kvm-clock, ...
  size_t servers = 1;          // of the cluster
  DirectoryFacts data;
  DirectoryFacts snapshots;
};

struct Finding {
  enum class Level { kOk, kWarn, kFail };
  std::string check;  // "memlock"
  Level level = Level::kOk;
  std::string found;  // the facts
  std::string fix;    // the next step; empty where all is well
};

// Those of the ballastd with `data_dir`, by the process id in its lock file; of this process
// where none runs there. `proc`: "/proc" but in tests.
Limits ReadLimits(const std::string& data_dir, const std::string& proc = "/proc");

HostFacts ReadHost(const config::v1::ServerConfig& config);

// One finding for each check, in a fixed order, also where all is well. A failure keeps a server
// from working as configured; a warning makes it slower or less safe.
std::vector<Finding> JudgeHost(const HostFacts& facts);

}  // namespace ballast::tools
