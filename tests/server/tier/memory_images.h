// Images in memory for tests of tiers and placements: calls are kept until the test lets them
// happen, or happen at once, and are counted.
// Comes from: the tests of this folder. Goes to: NvmeTier, StatePlacement. Thread safety:
// thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/durability/round_log.h"

namespace ballast::server::testing {

class MemoryImages final : public ImageIo, public ImageStore {
 public:
  // `bytes`: of every extent's payload.
  explicit MemoryImages(size_t bytes) : bytes_(bytes) {}

  void Read(uint32_t extent, void* to, Done done) override {
    Later([this, extent, to, done = std::move(done)] {
      ++reads;
      if (!read_error.ok()) return done(read_error);
      if (images[extent].empty()) return done(absl::NotFoundError(absl::StrCat("extent ", extent)));
      std::memcpy(to, images[extent].rbegin()->second.data(), bytes_);
      done(absl::OkStatus());
    });
  }

  void Write(ExtentImage image, Done done) override {
    Later([this, image, done = std::move(done)] {
      ++writes;
      if (!write_error.ok()) return done(write_error);
      auto& versions = images[image.extent];
      if (image.initial) versions.clear();
      if (!versions.empty() && versions.rbegin()->first >= image.version) {
        return done(absl::InternalError(absl::StrCat("version ", image.version, " is not newer")));
      }
      versions[image.version] = std::string(static_cast<const char*>(image.data), bytes_);
      if (versions.size() > 2) versions.erase(versions.begin());
      done(absl::OkStatus());
    });
  }
  void WriteImage(ExtentImage image, Done done) override {
    const uint32_t extent = image.extent;
    const uint64_t version = image.version;
    Write(std::move(image), [this, extent, version, done = std::move(done)](absl::Status status) {
      if (status.ok()) survive_[extent] = version;
      done(status);
    });
  }
  ImageIo* image_io() override { return this; }

  void Flush(Done done) override {
    // Writes that end after this call are not covered.
    std::map<uint32_t, uint64_t> covered;
    for (const auto& [extent, versions] : images) {
      if (!versions.empty()) covered[extent] = versions.rbegin()->first;
    }
    Later([this, covered, done = std::move(done)] {
      ++flushes;
      writes_flushed = writes;
      for (const auto& [extent, version] : covered) survive_[extent] = version;
      done(absl::OkStatus());
    });
  }

  // Runs the kept calls, and those that follow from them.
  void Run() {
    while (!kept.empty()) RunOne();
  }
  void RunOne() {
    const std::function<void()> next = std::move(kept.front());
    kept.pop_front();
    next();
  }

  // The newest version of the extent that a flush has covered; 0: none.
  uint64_t Survives(uint32_t extent) const {
    const auto it = survive_.find(extent);
    return it == survive_.end() ? 0 : it->second;
  }

  bool at_once = false;
  std::deque<std::function<void()>> kept;
  std::map<uint32_t, std::map<uint64_t, std::string>> images;  // extent -> version -> payload
  int reads = 0;
  int writes = 0;
  int flushes = 0;
  int writes_flushed = 0;
  absl::Status read_error;
  absl::Status write_error;

 private:
  void Later(std::function<void()> call) {
    kept.push_back(std::move(call));
    if (at_once) Run();
  }

  const size_t bytes_;
  std::map<uint32_t, uint64_t> survive_;
};

}  // namespace ballast::server::testing
