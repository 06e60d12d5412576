#include "tools/host/doctor.h"

#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/timex.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/io/file.h"
#include "common/io/huge_pages.h"
#include "server/simd/isa.h"
#include "server/status/status_text.h"

namespace ballast::tools {
namespace {

using Level = Finding::Level;
using server::ShortBytes;

// A server's needs: direct I/O buffers that it locks, and descriptors for streams and files.
constexpr uint64_t kMemlockBytesMin = uint64_t{64} << 20;
constexpr uint64_t kFilesMin = 4096;
constexpr uint64_t kAioFreeMin = 1024;
constexpr double kFreeShareMin = 0.1;

std::string FirstWord(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

uint64_t NumberIn(const std::string& path) {
  uint64_t number = 0;
  return absl::SimpleAtoi(FirstWord(path), &number) ? number : 0;
}

uint64_t LimitOf(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  return limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max;
}

// The hard limit of that name in a file of "NAME  SOFT  HARD  UNIT".
uint64_t LimitIn(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, name)) continue;
    std::istringstream words(line.substr(name.size()));
    std::string soft;
    std::string hard;
    words >> soft >> hard;
    uint64_t limit = 0;
    return hard == "unlimited" ? UINT64_MAX : absl::SimpleAtoi(hard, &limit) ? limit : 0;
  }
  return 0;
}

std::string ProcessText(const Limits& limits) {
  return limits.server == 0 ? "this shell" : absl::StrCat("ballastd, process ", limits.server, ",");
}

bool IsNetworkFileSystem(uint64_t type) {
  // NFS, CIFS, SMB2, Ceph, Lustre, GPFS, BeeGFS, FUSE, GFS2, OCFS2, AFS, 9P.
  constexpr std::array<uint64_t, 12> kTypes = {0x6969,     0xFF534D42, 0xFE534D42, 0x00C36400,
                                               0x0BD00BD0, 0x47504653, 0x19830326, 0x65735546,
                                               0x01161970, 0x7461636F, 0x5346414F, 0x01021997};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

DirectoryFacts ReadDirectory(const std::string& path) {
  DirectoryFacts facts{.path = path};
  struct stat directory = {};
  facts.exists = !path.empty() && stat(path.c_str(), &directory) == 0 && S_ISDIR(directory.st_mode);
  struct statfs system = {};
  if (!facts.exists || statfs(path.c_str(), &system) != 0) return facts;
  const auto type = static_cast<uint64_t>(system.f_type) & 0xFFFFFFFF;
  facts.in_memory = type == TMPFS_MAGIC || type == RAMFS_MAGIC;
  facts.network = IsNetworkFileSystem(type);
  const auto block = static_cast<uint64_t>(system.f_bsize);
  facts.free_bytes = static_cast<uint64_t>(system.f_bavail) * block;
  facts.total_bytes = static_cast<uint64_t>(system.f_blocks) * block;
  facts.direct_io = PosixFileSystem()->DirectIo(path);
  return facts;
}

Finding Judge(std::string check, bool well, std::string found, std::string fix,
              Level otherwise = Level::kWarn) {
  return {std::move(check), well ? Level::kOk : otherwise, std::move(found),
          well ? "" : std::move(fix)};
}

void JudgeCpuAndLimits(const HostFacts& facts, std::vector<Finding>* out) {
  out->push_back(Judge("isa", facts.isa != "scalar",
                       absl::StrCat("best instruction set: ", facts.isa),
                       "use a CPU with AVX2, FMA and F16C, or let the virtual machine pass its "
                       "host's CPU through; steps take several times as long without"));
  const Limits& limits = facts.limits;
  out->push_back(
      Judge("memlock", limits.memlock_bytes >= kMemlockBytesMin,
            absl::StrCat("RLIMIT_MEMLOCK of ", ProcessText(limits), " is ",
                         limits.memlock_bytes == UINT64_MAX ? "unlimited"
                                                            : ShortBytes(limits.memlock_bytes)),
            "LimitMEMLOCK=infinity in the systemd unit, --ulimit memlock=-1 for a "
            "container, or ulimit -l unlimited"));
  out->push_back(
      Judge("nofile", limits.files >= kFilesMin,
            absl::StrCat("RLIMIT_NOFILE of ", ProcessText(limits), " is at most ", limits.files),
            absl::StrCat("LimitNOFILE=65536 in the systemd unit, or ulimit -n; a server "
                         "wants ",
                         kFilesMin, " at least")));
  out->push_back(Judge("huge pages", facts.huge_pages == "always" || facts.huge_pages == "madvise",
                       absl::StrCat("transparent huge pages: ",
                                    facts.huge_pages.empty() ? "not known" : facts.huge_pages),
                       absl::StrCat("echo madvise > ", kHugePagesFile)));
}

void JudgeKernel(const HostFacts& facts, std::vector<Finding>* out) {
  const uint64_t aio_free = facts.aio_max - std::min(facts.aio_max, facts.aio_used);
  out->push_back(Judge("aio-max-nr", aio_free >= kAioFreeMin,
                       absl::StrCat(aio_free, " of ", facts.aio_max, " asynchronous requests free"),
                       "sysctl -w fs.aio-max-nr=1048576"));
  out->push_back(Judge("congestion control", facts.congestion != "bbr",
                       absl::StrCat("the kernel's default is ", facts.congestion),
                       "sysctl -w net.ipv4.tcp_congestion_control=cubic; BBR halves the bandwidth "
                       "between processes of one host"));
  out->push_back(Judge("clock", facts.clock_in_step,
                       absl::StrCat("the clock is ", facts.clock_in_step ? "" : "not ",
                                    "kept in step; source: ", facts.clock_source),
                       "run chrony or systemd-timesyncd; no round depends on the time of day, but "
                       "the logs of several hosts can be compared only with it"));
}

void JudgeData(const DirectoryFacts& data, std::vector<Finding>* out) {
  if (data.path.empty()) {
    out->push_back(Judge("data directory", false, "storage.data_dir is not set",
                         "set it to a directory on a local disk; without it only jobs with "
                         "durability none are accepted"));
    return;
  }
  out->push_back(Judge("data directory", data.exists && !data.in_memory && !data.network,
                       absl::StrCat(data.path, !data.exists     ? " is not there"
                                               : data.in_memory ? " is in memory"
                                               : data.network   ? " is on a network file system"
                                                                : " is on a local disk"),
                       data.exists ? "use a directory on a local disk: what it holds must survive "
                                     "a restart of this host, and flushes must be short"
                                   : "mkdir it, owned by the user of ballastd, or mount its disk"));
  if (!data.exists) return;
  out->push_back(Judge("direct I/O", data.direct_io,
                       absl::StrCat(data.path, data.direct_io ? " takes" : " refuses", " O_DIRECT"),
                       "use ext4 or xfs on a device with blocks of at most 4096 bytes"));
  const double free = static_cast<double>(data.free_bytes);
  const bool room =
      data.total_bytes > 0 && free >= kFreeShareMin * static_cast<double>(data.total_bytes);
  out->push_back(Judge("free space", room,
                       absl::StrCat(ShortBytes(data.free_bytes), " of ",
                                    ShortBytes(data.total_bytes), " free in ", data.path),
                       "make room, or a larger disk: ballastctl jobs list and snapshot list show "
                       "what takes it",
                       data.free_bytes == 0 ? Level::kFail : Level::kWarn));
}

void JudgeSnapshots(const HostFacts& facts, std::vector<Finding>* out) {
  const DirectoryFacts& snapshots = facts.snapshots;
  if (facts.servers < 2) {
    out->push_back(
        Judge("snapshot directory", true, "one server keeps snapshots wherever it likes", ""));
    return;
  }
  const std::string fix = absl::StrCat(
      "mount a directory that all ", facts.servers,
      " servers see (NFS, Lustre, CephFS) and name it in storage.snapshot_dir of each");
  if (snapshots.path.empty() || !snapshots.exists) {
    out->push_back(Judge("snapshot directory", false,
                         snapshots.path.empty()
                             ? "storage.snapshot_dir is not set, and several servers keep no "
                               "snapshots without it"
                             : absl::StrCat(snapshots.path, " is not there"),
                         fix));
    return;
  }
  out->push_back(Judge(
      "snapshot directory", snapshots.network,
      absl::StrCat(snapshots.path, snapshots.network ? " is on a network file system"
                                                     : " is on a local disk, which other hosts "
                                                       "do not see"),
      fix));
}

}  // namespace

Limits ReadLimits(const std::string& data_dir, const std::string& proc) {
  const std::string process =
      absl::StrCat(proc, "/", data_dir.empty() ? 0 : NumberIn(data_dir + "/lock"));
  if (FirstWord(process + "/comm") != "ballastd") {
    return {.memlock_bytes = LimitOf(RLIMIT_MEMLOCK), .files = LimitOf(RLIMIT_NOFILE)};
  }
  return {.server = static_cast<int>(NumberIn(data_dir + "/lock")),
          .memlock_bytes = LimitIn(process + "/limits", "Max locked memory"),
          .files = LimitIn(process + "/limits", "Max open files")};
}

HostFacts ReadHost(const config::v1::ServerConfig& config) {
  HostFacts facts;
  facts.isa = simd::IsaName(simd::DetectIsa());
  facts.limits = ReadLimits(config.storage().data_dir());
  facts.huge_pages = HugePageMode();
  facts.aio_used = NumberIn("/proc/sys/fs/aio-nr");
  facts.aio_max = NumberIn("/proc/sys/fs/aio-max-nr");
  facts.congestion = FirstWord("/proc/sys/net/ipv4/tcp_congestion_control");
  timex clock{};
  const int state = adjtimex(&clock);
  facts.clock_in_step = state >= 0 && state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  facts.clock_source =
      FirstWord("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  facts.servers = std::max<size_t>(1, static_cast<size_t>(config.cluster().peers_size()));
  facts.data = ReadDirectory(config.storage().data_dir());
  facts.snapshots = ReadDirectory(config.storage().snapshot_dir());
  return facts;
}

std::vector<Finding> JudgeHost(const HostFacts& facts) {
  std::vector<Finding> findings;
  JudgeCpuAndLimits(facts, &findings);
  JudgeKernel(facts, &findings);
  JudgeData(facts.data, &findings);
  JudgeSnapshots(facts, &findings);
  return findings;
}

}  // namespace ballast::tools
