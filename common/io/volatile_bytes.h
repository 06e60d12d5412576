// The bytes of one file on a disk that may lose power: as they are read, as the medium has them for
// sure, and the changes in between.
// Comes from: memory_disk.cc. Goes to: nothing.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ballast {

class VolatileBytes {
 public:
  // The content read now.
  const std::string& seen() const { return seen_; }

  void Write(uint64_t offset, std::string data);
  // Appends zeros up to `bytes`.
  void Grow(uint64_t bytes);
  void Truncate();

  // A Sync that succeeds: all changes are on the medium, except those that a failed one abandoned.
  void Save();
  // A Sync that fails: no later one saves the changes so far, as a kernel forgets pages that it
  // could not write back.
  void Abandon();
  // Power loss: each unsaved change is kept, lost, or kept in some of its sectors of 512 bytes.
  // Always 0 from `random` keeps all, always 1 loses all.
  void Crash(const std::function<uint64_t()>& random);
  // Flips one bit wherever the byte at `offset` is held.
  void FlipBit(uint64_t offset, int bit);

 private:
  // A change that the medium may not have yet. One without data only grows the file to `offset`.
  struct Change {
    uint64_t offset = 0;
    std::string data;
    bool truncate = false;  // Empties the file first.
    bool abandoned = false;

    uint64_t end() const { return offset + data.size(); }
    bool Overlaps(const Change& other) const;
    void ApplyTo(std::string* bytes) const;
    void ApplyTornTo(std::string* bytes, const std::function<uint64_t()>& random) const;
  };
  void Add(Change change);

  std::string seen_;
  std::string safe_;
  std::vector<Change> changes_;  // Oldest first.
};

}  // namespace ballast
