#include "tests/client/device/hostile_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/device/pack.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace ballast::device {
namespace {

constexpr int kPoison = 0xA5;

bool Overlap(HostileDevice::Range a, HostileDevice::Range b) {
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  return a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

std::vector<HostileDevice::Range> Ranges(const Packing& packing) {
  std::vector<HostileDevice::Range> ranges;
  for (const Piece& piece : packing.pieces) {
    ranges.push_back({piece.data, piece.count * DTypeBytes(packing.tensor_dtype)});
  }
  return ranges;
}

HostileDevice::Range Packed(const Packing& packing) {
  return {packing.packed, ElementCount(packing) * DTypeBytes(packing.packed_dtype)};
}

// The packing as work that runs later: it owns the list of pieces.
std::function<void()> Later(void (*run)(const Packing&), Packing packing) {
  return [run, packing,
          pieces = std::vector<Piece>(packing.pieces.begin(), packing.pieces.end())]() mutable {
    packing.pieces = pieces;
    run(packing);
  };
}

}  // namespace

HostileDevice::HostileDevice(uint32_t seed) : random_(seed), early_(seed % 4 * 2) {}

absl::StatusOr<void*> HostileDevice::Allocate(MemoryKind kind, size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("0 bytes of memory");
  if (kind == MemoryKind::kPinned && std::exchange(pinned_, true)) {
    return absl::FailedPreconditionError("a second pinned slab");
  }
  memory_.push_back(std::make_unique<std::byte[]>(bytes));
  std::memset(memory_.back().get(), kPoison, bytes);
  if (kind == MemoryKind::kDevice) on_device_.push_back({memory_.back().get(), bytes});
  return memory_.back().get();
}

absl::StatusOr<Stream> HostileDevice::NewStream() {
  streams_.emplace_back();
  return Stream{static_cast<uint32_t>(streams_.size() - 1)};
}

absl::StatusOr<Event> HostileDevice::NewEvent() {
  events_.emplace_back();
  return Event{static_cast<uint32_t>(events_.size() - 1)};
}

absl::Status HostileDevice::Copy(Stream stream, void* to, const void* from, size_t bytes) {
  Queue(stream, {{from, bytes}}, {{to, bytes}}, [=] { std::memcpy(to, from, bytes); });
  return absl::OkStatus();
}

absl::Status HostileDevice::Pack(Stream stream, const Packing& packing) {
  absl::Status status = CheckPacking(packing);
  if (status.ok()) Queue(stream, Ranges(packing), {Packed(packing)}, Later(PackOnHost, packing));
  return status;
}

absl::Status HostileDevice::Unpack(Stream stream, const Packing& packing) {
  absl::Status status = CheckPacking(packing);
  if (status.ok()) Queue(stream, {Packed(packing)}, Ranges(packing), Later(UnpackOnHost, packing));
  return status;
}

absl::Status HostileDevice::Measure(Stream stream, const Measurement& measurement) {
  BALLAST_RETURN_IF_ERROR(CheckMeasurement(measurement));
  if (measurement.count == 0) return absl::OkStatus();
  const size_t tiles = (measurement.count - 1) / measurement.tile_elements + 1;
  Queue(stream, {{measurement.data, measurement.count * DTypeBytes(measurement.dtype)}},
        {{measurement.facts, tiles * sizeof(TileFacts)}},
        [measurement] { MeasureOnHost(measurement); });
  return absl::OkStatus();
}

absl::Status HostileDevice::Record(Stream stream, Event event) {
  const auto index = static_cast<uint32_t>(event);
  const uint64_t record = ++events_.at(index).queued;
  streams_.at(static_cast<uint32_t>(stream)).push_back({Op::Kind::kRecord, index, record});
  Tick();
  return absl::OkStatus();
}

absl::Status HostileDevice::Wait(Stream stream, Event event) {
  const auto index = static_cast<uint32_t>(event);
  const uint64_t record = events_.at(index).queued;
  streams_.at(static_cast<uint32_t>(stream)).push_back({Op::Kind::kWait, index, record});
  Tick();
  return absl::OkStatus();
}

absl::Status HostileDevice::Keep(Stream stream, const void* data, size_t bytes) {
  kept_.push_back({{data, bytes}, stream});
  return absl::OkStatus();
}

absl::StatusOr<bool> HostileDevice::Reached(Event event) {
  const auto index = static_cast<uint32_t>(event);
  const uint64_t record = events_.at(index).queued;
  if (events_[index].done >= record) return true;
  RunFront(StreamToward(index, record));
  return events_[index].done >= record;
}

absl::Status HostileDevice::Synchronize(Event event) {
  const auto index = static_cast<uint32_t>(event);
  const uint64_t record = events_.at(index).queued;
  while (events_[index].done < record) {
    Tick();
    if (events_[index].done < record) RunFront(StreamToward(index, record));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> HostileDevice::Holds(const void* data) {
  return std::any_of(on_device_.begin(), on_device_.end(), [data](Range range) {
    return Overlap(range, {data, 1});
  });
}

absl::Status HostileDevice::HostReads(const void* data, size_t bytes) {
  return Pending({data, bytes}, true) ? InUse({data, bytes}, "read") : absl::OkStatus();
}

absl::Status HostileDevice::HostWrites(void* data, size_t bytes) {
  return Pending({data, bytes}, false) ? InUse({data, bytes}, "write") : absl::OkStatus();
}

absl::Status HostileDevice::InUse(Range range, const char* what) const {
  return absl::FailedPreconditionError(
      absl::StrCat("the host may not ", what, " these ", range.bytes,
                   " bytes of pinned memory: queued work uses them; wait for its event first"));
}

void HostileDevice::Queue(Stream stream, std::vector<Range> reads, std::vector<Range> writes,
                          std::function<void()> run) {
  for (const Range& range : writes) {  // unless earlier work, perhaps in order, needs the bytes
    if (!Pending(range, false)) std::memset(const_cast<void*>(range.data), kPoison, range.bytes);
  }
  streams_.at(static_cast<uint32_t>(stream))
      .push_back({Op::Kind::kWork, 0, 0, std::move(reads), std::move(writes), std::move(run)});
  Tick();
}

void HostileDevice::Reuse(Stream stream, void* data, size_t bytes, uint8_t byte) {
  std::vector<Kept> others;
  for (const Kept& kept : std::exchange(kept_, {})) {
    if (!Overlap(kept.range, {data, bytes})) {
      others.push_back(kept);
      continue;
    }
    const Event used = *NewEvent();
    BALLAST_CHECK(Record(kept.stream, used).ok() && Wait(stream, used).ok());
  }
  kept_ = std::move(others);
  Queue(stream, {}, {{data, bytes}}, [=] { std::memset(data, byte, bytes); });
}

void HostileDevice::RunAll() {
  while (RunSome()) {
  }
}

bool HostileDevice::Runnable(uint32_t stream) const {
  if (streams_[stream].empty()) return false;
  const Op& op = streams_[stream].front();
  return op.kind != Op::Kind::kWait || events_[op.event].done >= op.record;
}

bool HostileDevice::RunSome() {
  const auto first = static_cast<uint32_t>(random_());
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    const auto stream = static_cast<uint32_t>((first % streams_.size() + i) % streams_.size());
    if (!Runnable(stream)) continue;
    RunFront(stream);
    return true;
  }
  return false;
}

void HostileDevice::RunFront(uint32_t stream) {
  const Op op = std::move(streams_[stream].front());
  streams_[stream].pop_front();
  if (op.kind == Op::Kind::kWork) op.run();
  if (op.kind == Op::Kind::kRecord && events_[op.event].done < op.record) {
    events_[op.event].done = op.record;
  }
}

uint32_t HostileDevice::StreamToward(uint32_t event, uint64_t record) const {
  for (uint32_t stream = 0; stream < streams_.size(); ++stream) {
    for (const Op& op : streams_[stream]) {
      if (op.kind != Op::Kind::kRecord || op.event != event || op.record != record) continue;
      if (Runnable(stream)) return stream;
      const Op& blocked = streams_[stream].front();
      return StreamToward(blocked.event, blocked.record);
    }
  }
  BALLAST_CHECK(false);  // a Record that is not done stands in a queue
  return 0;
}

void HostileDevice::Tick() {
  while (random_() % 8 < early_ && RunSome()) {
  }
}

bool HostileDevice::Pending(Range range, bool writes_only) const {
  for (const auto& stream : streams_) {
    for (const Op& op : stream) {
      for (const Range& write : op.writes) {
        if (Overlap(write, range)) return true;
      }
      for (const Range& read : op.reads) {
        if (!writes_only && Overlap(read, range)) return true;
      }
    }
  }
  return false;
}

}  // namespace ballast::device
