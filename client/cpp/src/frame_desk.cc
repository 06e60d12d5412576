#include "client/cpp/src/frame_desk.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/names.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::client {

Outgoing FrameDesk::Form(FrameKind kind, const FrameRange& range, const Activity& activity) {
  FrameHeader header;
  header.job = job_->id;
  header.epoch = job_->epoch;
  header.slot = job_->options.slot;
  header.round = job_->round;
  header.extent = range.extent;
  header.incarnation = job_->incarnation;
  header.offset_bytes = range.offset;
  header.length_bytes = range.length;
  header.dtype = job_->layout.extents()[range.extent].dtype;
  header.kind = kind;
  // Right before the write, so that the kernel's copy finds the bytes in the cache.
  header.crc32c = IdentityCrc(header);
  Payload::Pieces pieces;
  for (const TensorPiece& piece :
       PiecesOf(job_->layout, range.extent, DTypeBytes(header.dtype), range.offset, range.length)) {
    const char* const data = SourceOf(activity, kind, piece.tensor) + piece.tensor_offset;
    header.crc32c = Crc32c(data, piece.bytes, header.crc32c);
    pieces.push_back({data, piece.bytes});
  }
  counters_.payload_up_bytes += range.length;
  return {EncodeFramePrefix(header), Payload(std::move(pieces), lease_->Lend())};
}

absl::Status FrameDesk::Take(const ServerLink& server, const DecodedFrame& frame,
                             Activity* activity, Time now) {
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

absl::Status FrameDesk::TakeWeights(const ServerLink& server, const DecodedFrame& frame,
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

absl::Status FrameDesk::TakeState(const ServerLink& server, const DecodedFrame& frame,
                                  Activity* activity) {
  const FrameHeader& header = frame.header;
  if (header.dtype != ::ballast::DType::kF32 || header.array >= StateArrayCount(job_->spec)) {
    return server.Broke(
        absl::StrCat("sent state array ", header.array, " as ", DTypeName(header.dtype)));
  }
  Fetch* const fetch = std::get_if<Fetch>(activity);
  BALLAST_RETURN_IF_ERROR(Count(server, frame, fetch));
  const bool fetched = header.array < fetch->states.size();
  return Store(server, frame, fetched ? fetch->states[header.array] : std::vector<void*>());
}

absl::Status FrameDesk::Count(const ServerLink& server, const DecodedFrame& frame,
                              Fetch* fetch) const {
  const bool asked = fetch != nullptr && frame.header.round == job_->round &&
                     fetch->Count(server.index(), frame.payload.bytes());
  return asked ? absl::OkStatus() : server.Broke("sent bytes that were not asked for");
}

absl::Status FrameDesk::Store(const ServerLink& server, const DecodedFrame& frame,
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
  uint32_t crc = IdentityCrc(header);
  counters_.copied_down_bytes += Scatter(frame.payload, pieces, destinations, &crc);
  const absl::Status intact = VerifyChecksum(frame, crc);
  if (intact.ok()) return absl::OkStatus();
  ErrorFields fields = FieldsOf(intact);
  fields.job = job_->options.job;
  fields.server = static_cast<int>(server.id());
  return ReasonedError(intact.code(), Reason::kBadChecksum,
                       absl::StrCat("server ", server.id(), ": ", intact.message()), fields);
}

}  // namespace ballast::client
