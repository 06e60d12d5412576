#include "common/io/volatile_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ballast {
namespace {

constexpr uint64_t kSectorBytes = 512;  // The unit that a disk writes whole or not at all.

}  // namespace

bool VolatileBytes::Change::Overlaps(const Change& other) const {
  return truncate || other.truncate || (offset < other.end() && other.offset < end());
}

void VolatileBytes::Change::ApplyTo(std::string* bytes) const {
  if (truncate) bytes->clear();
  if (offset == bytes->size()) {
    bytes->append(data);
    return;
  }
  if (bytes->size() < end()) bytes->resize(end());
  std::memcpy(bytes->data() + offset, data.data(), data.size());
}

void VolatileBytes::Change::ApplyTornTo(std::string* bytes,
                                        const std::function<uint64_t()>& random) const {
  for (uint64_t from = offset; from < end();) {
    const uint64_t to = std::min(end(), (from / kSectorBytes + 1) * kSectorBytes);
    if (random() % 2 == 0) {
      Change{.offset = from, .data = data.substr(from - offset, to - from)}.ApplyTo(bytes);
    }
    from = to;
  }
}

void VolatileBytes::Add(Change change) {
  change.ApplyTo(&seen_);
  changes_.push_back(std::move(change));
}

void VolatileBytes::Write(uint64_t offset, std::string data) {
  Add({.offset = offset, .data = std::move(data)});
}

void VolatileBytes::Grow(uint64_t bytes) { Add({.offset = bytes}); }

void VolatileBytes::Truncate() { Add({.truncate = true}); }

void VolatileBytes::Save() {
  std::vector<Change> left;
  for (Change& change : changes_) {
    if (change.abandoned) {
      left.push_back(std::move(change));
      continue;
    }
    change.ApplyTo(&safe_);
    // New bytes replace those abandoned at that place.
    std::erase_if(left, [&](const Change& old) { return old.Overlaps(change); });
  }
  changes_ = std::move(left);
}

void VolatileBytes::Abandon() {
  for (Change& change : changes_) change.abandoned = true;
}

void VolatileBytes::Crash(const std::function<uint64_t()>& random) {
  for (const Change& change : changes_) {
    const uint64_t choice = random() % 3;
    if (choice == 0) change.ApplyTo(&safe_);
    if (choice == 2) change.ApplyTornTo(&safe_, random);
  }
  changes_.clear();
  seen_ = safe_;
}

void VolatileBytes::FlipBit(uint64_t offset, int bit) {
  const auto flip = [bit](std::string* bytes, uint64_t at) {
    if (at < bytes->size()) (*bytes)[at] ^= static_cast<char>(1 << bit);
  };
  flip(&seen_, offset);
  flip(&safe_, offset);
  for (Change& change : changes_) {
    if (offset >= change.offset) flip(&change.data, offset - change.offset);
  }
}

}  // namespace ballast
