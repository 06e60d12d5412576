#include "client/cpp/session/frame_io.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/text/names.h"

namespace ballast::client {
namespace {

// Frames per server that may be copied from the device ahead of sending.
constexpr size_t kFramesAhead = 4;

}  // namespace

std::vector<TensorPiece> FrameIo::PiecesOfRange(const FrameRange& range) const {
  return PiecesOf(job_->layout, range.extent, DTypeBytes(DTypeOf(range)), range.offset,
                  range.length);
}

// --- Out ----------------------------------------------------------------------------------------

absl::StatusOr<std::optional<Outgoing>> FrameIo::Next(ServerLink* server,
                                                      const Activity& activity) {
  ServerShare& share = server->share();
  if (device_ == nullptr) {
    const std::optional<FrameRange> range = share.NextRange();
    if (!range.has_value()) return std::nullopt;
    return Form({share.plan_number(), share.kind(), *range, std::nullopt}, activity);
  }
  std::deque<Begun>& begun = begun_[server->index()];
  while (!begun.empty() && begun.front().plan_number != share.plan_number()) {
    Drop(begun.front());
    begun.pop_front();
  }
  BALLAST_RETURN_IF_ERROR(BeginAhead(server, activity, &begun));
  starved_ = begun.empty() && !device_->HasRoom();
  if (begun.empty()) return std::nullopt;
  const Begun first = begun.front();
  begun.pop_front();
  return Form(first, activity);
}

absl::Status FrameIo::BeginAhead(ServerLink* server, const Activity& activity,
                                 std::deque<Begun>* begun) {
  while (begun->size() < kFramesAhead && device_->HasRoom()) {
    const std::optional<FrameRange> range = server->share().NextRange();
    if (!range.has_value()) break;
    BALLAST_ASSIGN_OR_RETURN(const Begun next, Begin(server, *range, activity));
    begun->push_back(next);
  }
  return absl::OkStatus();
}

absl::StatusOr<FrameIo::Begun> FrameIo::Begin(ServerLink* server, const FrameRange& range,
                                              const Activity& activity) {
  Begun begun{server->share().plan_number(), server->share().kind(), range, std::nullopt};
  const size_t element_bytes = DTypeBytes(DTypeOf(range));
  std::vector<device::Piece> on_device;
  for (const TensorPiece& piece : PiecesOfRange(range)) {
    const char* const tensor = SourceOf(activity, begun.kind, piece.tensor);
    BALLAST_ASSIGN_OR_RETURN(const bool holds, device_->Holds(tensor));
    if (!holds) continue;
    on_device.push_back(
        {const_cast<char*>(tensor) + piece.tensor_offset, piece.bytes / element_bytes});
  }
  if (on_device.empty()) return begun;
  const absl::StatusOr<size_t> buffer = device_->Stage(on_device, DTypeOf(range));
  if (!buffer.ok()) return Named(buffer.status(), PiecesOfRange(range));
  begun.buffer = *buffer;
  return begun;
}

absl::StatusOr<Outgoing> FrameIo::Form(const Begun& begun, const Activity& activity) {
  const FrameRange& range = begun.range;
  FrameHeader header;
  header.job = job_->id;
  header.epoch = job_->epoch;
  header.slot = job_->options.slot;
  header.round = job_->round;
  header.extent = range.extent;
  header.incarnation = job_->incarnation;
  header.offset_bytes = range.offset;
  header.length_bytes = range.length;
  header.dtype = DTypeOf(range);
  header.kind = begun.kind;
  const char* staged = nullptr;
  if (begun.buffer.has_value()) {
    const absl::StatusOr<const char*> bytes = device_->Await(*begun.buffer);
    if (!bytes.ok()) return Named(bytes.status(), PiecesOfRange(range));
    staged = *bytes;
  }
  // Right before the write, so that the kernel's copy finds the bytes in the cache.
  header.crc32c = IdentityCrc(header);
  Payload::Pieces pieces;
  for (const TensorPiece& piece : PiecesOfRange(range)) {
    const char* data = SourceOf(activity, begun.kind, piece.tensor);
    if (staged != nullptr && *device_->Holds(data)) {
      data = std::exchange(staged, staged + piece.bytes);
    } else {
      data += piece.tensor_offset;
    }
    header.crc32c = Crc32c(data, piece.bytes, header.crc32c);
    pieces.push_back({data, piece.bytes});
  }
  counters_.payload_up_bytes += range.length;
  std::shared_ptr<const void> owner = lease_->Lend();
  if (begun.buffer.has_value()) owner = device_->Lend(*begun.buffer, std::move(owner));
  return Outgoing{EncodeFramePrefix(header), Payload(std::move(pieces), std::move(owner))};
}

void FrameIo::Drop(const Begun& begun) {
  // A device's error comes back with the next call that needs it.
  if (begun.buffer.has_value()) device_->Drop(*begun.buffer).IgnoreError();
}

void FrameIo::DropBegun() {
  for (const auto& [server, all] : begun_) {
    for (const Begun& begun : all) Drop(begun);
  }
  begun_.clear();
  starved_ = false;
}

absl::Status FrameIo::Named(const absl::Status& status,
                            const std::vector<TensorPiece>& pieces) const {
  if (status.ok() || pieces.empty()) return status;
  const std::string first = Quoted(job_->spec.tensors[pieces.front().tensor].name);
  const std::string others =
      pieces.size() > 1 ? absl::StrCat(" and ", pieces.size() - 1, " other tensors") : "";
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (on the way: tensor ", first, others, ")"));
}

void FrameIo::EndEarly() {
  // Where the device fails, too, it runs nothing any more, and the activity has its own error.
  if (device_ != nullptr) device_->EndEarly().IgnoreError();
}

// --- In -----------------------------------------------------------------------------------------

absl::Status FrameIo::Take(const ServerLink& server, const DecodedFrame& frame, Activity* activity,
                           Time now) {
  const FrameHeader& header = frame.header;
  if (header.job != job_->id || header.slot != job_->options.slot) {
    return server.Broke(
        absl::StrCat("sent a frame for slot ", header.slot, " of job ", JobIdText(header.job)));
  }
  if (!job_->Owns(server.id(), header.extent)) {
    return server.Broke(absl::StrCat("sent extent ", header.extent, ", not its own"));
  }
  counters_.payload_down_bytes += frame.payload.bytes();
  switch (header.kind) {
    case FrameKind::kWeight:
      return TakeWeights(server, frame, activity, now);
    case FrameKind::kState:
      return TakeState(server, frame, activity);
    default:
      return server.Broke("sent a frame of a kind that only trainers send");
  }
}

absl::Status FrameIo::TakeWeights(const ServerLink& server, const DecodedFrame& frame,
                                  Activity* activity, Time now) {
  const FrameHeader& header = frame.header;
  if (header.dtype != job_->layout.extents()[header.extent].dtype) {
    return server.Broke(absl::StrCat("sent weights as ", DTypeName(header.dtype)));
  }
  if (Step* const step = std::get_if<Step>(activity)) {
    BALLAST_RETURN_IF_ERROR(
        step->progress.OnWeight(server.index(), header.round, frame.payload.bytes(), now));
    return Store(server, frame, step->input.weights);
  }
  Fetch* const fetch = std::get_if<Fetch>(activity);
  BALLAST_RETURN_IF_ERROR(Count(server, frame, fetch));
  return Store(server, frame, fetch->weights);
}

absl::Status FrameIo::TakeState(const ServerLink& server, const DecodedFrame& frame,
                                Activity* activity) {
  const FrameHeader& header = frame.header;
  if (header.dtype != DType::kF32 || header.array >= StateArrayCount(job_->spec)) {
    return server.Broke(
        absl::StrCat("sent state array ", header.array, " as ", DTypeName(header.dtype)));
  }
  Fetch* const fetch = std::get_if<Fetch>(activity);
  BALLAST_RETURN_IF_ERROR(Count(server, frame, fetch));
  const bool fetched = header.array < fetch->states.size();
  return Store(server, frame, fetched ? fetch->states[header.array] : std::vector<void*>());
}

absl::Status FrameIo::Count(const ServerLink& server, const DecodedFrame& frame,
                            Fetch* fetch) const {
  const bool asked = fetch != nullptr && frame.header.round == job_->round &&
                     fetch->Count(server.index(), frame.payload.bytes());
  return asked ? absl::OkStatus() : server.Broke("sent bytes that were not asked for");
}

absl::Status FrameIo::Store(const ServerLink& server, const DecodedFrame& frame,
                            const std::vector<void*>& destinations) {
  const FrameHeader& header = frame.header;
  const std::vector<TensorPiece> pieces =
      PiecesOf(job_->layout, header.extent, DTypeBytes(header.dtype), header.offset_bytes,
               header.length_bytes);
  if (pieces.empty() || destinations.size() != job_->layout.tensors().size()) {
    return server.Broke(absl::StrCat("sent ", header.length_bytes, " bytes at ",
                                     header.offset_bytes, " of extent ", header.extent,
                                     ", which has no such"));
  }
  BALLAST_ASSIGN_OR_RETURN(const Landing landing,
                           LandingOf(pieces, DTypeBytes(header.dtype), destinations));
  uint32_t crc = IdentityCrc(header);
  counters_.copied_down_bytes += Scatter(frame.payload, pieces, landing.outs, &crc);
  const absl::Status intact = CheckFrameCrc(header, crc);
  if (landing.buffer.has_value()) {
    BALLAST_RETURN_IF_ERROR(
        Named(intact.ok() ? device_->Land(*landing.buffer, landing.on_device, header.dtype)
                          : device_->Drop(*landing.buffer),
              pieces));
  }
  if (intact.ok()) return absl::OkStatus();
  ErrorFields fields = FieldsOf(intact);
  fields.job = job_->options.job;
  fields.server = static_cast<int>(server.id());
  return ReasonedError(intact.code(), Reason::kBadChecksum,
                       absl::StrCat("server ", server.id(), ": ", intact.message()), fields);
}

absl::StatusOr<FrameIo::Landing> FrameIo::LandingOf(const std::vector<TensorPiece>& pieces,
                                                    size_t element_bytes,
                                                    const std::vector<void*>& destinations) {
  Landing landing;
  char* pinned = nullptr;
  for (const TensorPiece& piece : pieces) {
    char* out = static_cast<char*>(destinations[piece.tensor]);
    bool holds = false;
    if (out != nullptr && device_ != nullptr) {
      BALLAST_ASSIGN_OR_RETURN(holds, device_->Holds(out));
    }
    if (out != nullptr) out += piece.tensor_offset;
    if (holds) {
      if (!landing.buffer.has_value()) {
        BALLAST_ASSIGN_OR_RETURN(const device::Pipeline::TakenBuffer taken, device_->Take());
        landing.buffer = taken.buffer;
        pinned = reinterpret_cast<char*>(taken.bytes.data());
      }
      landing.on_device.push_back({out, piece.bytes / element_bytes});
      out = std::exchange(pinned, pinned + piece.bytes);
    }
    landing.outs.push_back(out);
  }
  return landing;
}

}  // namespace ballast::client
