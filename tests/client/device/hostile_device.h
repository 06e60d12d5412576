// A device that is as late as it may be: a seeded scheduler over queues of work in host memory.
// Work on a stream runs when an event that the host waits for needs it; some seeds also run some
// early, from streams at random. Memory that queued work will write is poisoned. HostReads,
// HostWrites report queued work that still uses the bytes. So a missing wait is a wrong bit or a
// typed error.
// Comes from: tests. Goes to: host memory. Thread safety: thread-compatible.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "client/device/device.h"

namespace ballast::device {

class HostileDevice final : public Device {
 public:
  struct Range {
    const void* data;
    size_t bytes;
  };

  explicit HostileDevice(uint32_t seed);

  absl::StatusOr<void*> Allocate(MemoryKind kind, size_t bytes) override;
  absl::StatusOr<Stream> NewStream() override;
  absl::StatusOr<Event> NewEvent() override;
  absl::Status Copy(Stream stream, void* to, const void* from, size_t bytes) override;
  absl::Status Pack(Stream stream, const Packing& packing) override;
  absl::Status Unpack(Stream stream, const Packing& packing) override;
  absl::Status Measure(Stream stream, const Measurement& measurement) override;
  absl::Status Record(Stream stream, Event event) override;
  absl::Status Wait(Stream stream, Event event) override;
  absl::Status Keep(Stream stream, const void* data, size_t bytes) override;
  absl::Status Synchronize(Event event) override;
  // Each look brings the event nearer.
  absl::StatusOr<bool> Reached(Event event) override;
  absl::StatusOr<void*> Handle(Stream) override { return nullptr; }
  absl::StatusOr<bool> Holds(const void* data) override;
  absl::Status HostReads(const void* data, size_t bytes) override;
  absl::Status HostWrites(void* data, size_t bytes) override;

  // Work of the framework that owns the tensors.
  void Queue(Stream stream, std::vector<Range> reads, std::vector<Range> writes,
             std::function<void()> run);
  // Its allocator gives a tensor's memory, freed on `stream`, to another tensor, which work on that
  // stream fills with `byte`. Kept memory waits for the streams that use it.
  void Reuse(Stream stream, void* data, size_t bytes, uint8_t byte);
  // Runs all that is queued, from streams at random.
  void RunAll();

 private:
  struct Op {
    enum class Kind : uint8_t { kWork, kRecord, kWait } kind;
    uint32_t event = 0;
    uint64_t record = 0;  // which Record of the event
    std::vector<Range> reads, writes;
    std::function<void()> run;
  };
  struct EventState {
    uint64_t queued = 0, done = 0;  // numbers of Records
  };
  struct Kept {
    Range range;
    Stream stream;
  };

  bool Runnable(uint32_t stream) const;
  bool RunSome();  // one piece of work of a random stream; false when there is none
  void RunFront(uint32_t stream);
  // The stream whose front must run before the Record is done.
  uint32_t StreamToward(uint32_t event, uint64_t record) const;
  void Tick();  // runs some work early, as the seed says
  bool Pending(Range range, bool writes_only) const;
  absl::Status InUse(Range range, const char* what) const;

  std::mt19937 random_;
  const uint32_t early_;  // of 8 chances to run work early
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<Range> on_device_;
  bool pinned_ = false;
  std::vector<std::deque<Op>> streams_;
  std::vector<EventState> events_;
  std::vector<Kept> kept_;
};

}  // namespace ballast::device
