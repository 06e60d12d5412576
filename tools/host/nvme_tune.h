// ballastctl tune nvme: which block size and queue depth a device wants, measured with the engine
// and the memory that Ballast uses.
// Comes from: ballastctl. Goes to: stdout (the result), stderr (progress and warnings).
// Thread safety: the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/host/aio_section.h"

namespace ballast::tools {

struct TuneOptions {
  std::vector<std::string> paths;           // directories, one per device
  uint64_t io_bytes = uint64_t{512} << 20;  // size of the temporary file in each
  bool read = true;
  bool write = true;
  double seconds = 0.3;  // of each measurement
  // TunePairs of these are measured. A block is a multiple of 4096 bytes.
  std::vector<uint64_t> block_bytes = {uint64_t{256} << 10, uint64_t{1} << 20, uint64_t{4} << 20};
  std::vector<int> queue_depths = {1, 2, 4, 8, 16};
  // A further pair to measure: the one in use now.
  std::optional<AioSettings> present;
};

// One combination's rates, bytes per second; 0: not measured.
struct TuneSample {
  uint64_t block_bytes = 0;
  int queue_depth = 0;
  double read = 0;
  double write = 0;
  double mixed = 0;

  uint64_t bytes_under_way() const { return block_bytes * static_cast<uint64_t>(queue_depth); }
  // The rate that counts: mixed, the load of a step; read or write where only that one is measured.
  double score() const { return mixed > 0 ? mixed : read + write; }
};

// Block size and queue depth of each measured combination: those with at most 1 GiB and
// `io_bytes` under way.
std::vector<std::pair<uint64_t, int>> TunePairs(const TuneOptions& options);

// The sample to use: of those within 3 % of the best score the one with the fewest bytes under way,
// since a flush waits for those. `samples` is not empty.
TuneSample ChooseSample(const std::vector<TuneSample>& samples);

// The "aio" section of a ds_config.json, with DeepSpeed's keys, for `sample`.
std::string AioSection(const TuneSample& sample);

// The section of the same meaning for ballastd's configuration.
std::string ServerSection(const TuneSample& sample);

// One device.
struct TuneResult {
  std::string path;
  std::vector<std::string> warnings;
  std::vector<TuneSample> samples;
  TuneSample chosen;
  std::optional<TuneSample> present;  // of TuneOptions::present
};

// Measures one directory with a temporary file, which disappears afterwards, also after a kill.
// Takes less than a minute. Errors: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED with the bytes
// needed, and those of the device.
absl::StatusOr<TuneResult> TuneDevice(const TuneOptions& options, const std::string& path);

// ballastctl tune nvme with the words after it. Returns the exit code.
int TuneMain(const std::vector<std::string>& arguments);

}  // namespace ballast::tools
