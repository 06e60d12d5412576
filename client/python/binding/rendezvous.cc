// See rendezvous.h.
#include "client/python/binding/rendezvous.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/python/binding/convert.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

client::Meeting ToMeeting(const MeetingTuple& tuple) {
  client::Meeting meeting;
  double timeout_s = 0;
  std::tie(meeting.epoch, meeting.generation, meeting.tag, timeout_s) = tuple;
  meeting.timeout = Milliseconds(timeout_s);
  return meeting;
}

absl::Status Exchange(client::Rendezvous* rendezvous, const client::Meeting& meeting,
                      const std::string& id, OperationResult* result) {
  absl::StatusOr<std::string> agreed = rendezvous->Exchange(meeting, id);
  if (!agreed.ok()) return agreed.status();
  result->id = *std::move(agreed);
  return absl::OkStatus();
}

absl::Status RollCall(client::Rendezvous* rendezvous, OperationResult* result) {
  absl::StatusOr<client::RollCallReport> report = rendezvous->RollCall();
  if (!report.ok()) return report.status();
  result->roll_call = *std::move(report);
  return absl::OkStatus();
}

}  // namespace

Operation* StartRendezvous(const std::shared_ptr<client::Client>& client, const std::string& act,
                           const MeetingTuple& tuple, const nb::bytes& id_bytes,
                           const std::string& why) {
  const client::Meeting meeting = ToMeeting(tuple);
  const std::string id(id_bytes.c_str(), id_bytes.size());
  if (act == "exchange") {
    return new Operation([client, meeting, id](OperationResult* result) {
      return Exchange(client->rendezvous(), meeting, id, result);
    });
  }
  if (act == "ready") {
    return new Operation([client, meeting, id](OperationResult*) {
      return client->rendezvous()->Ready(meeting, id);
    });
  }
  if (act == "give_up") {
    return new Operation([client, meeting, why](OperationResult*) {
      return client->rendezvous()->GiveUp(meeting, why);
    });
  }
  if (act != "roll_call") RaiseBadArgument(absl::StrCat("no act of a rendezvous: ", act));
  return new Operation(
      [client](OperationResult* result) { return RollCall(client->rendezvous(), result); });
}

void SetDoing(client::Client* client, uint8_t phase, uint32_t bucket, uint64_t round) {
  const auto known = FromNumber<client::CollectivePhase>(phase);
  if (!known.has_value()) RaiseBadArgument(absl::StrCat("no phase of a collective: ", phase));
  client->rendezvous()->SetDoing({*known, bucket, round});
}

nb::bytes ToBytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::dict ToDict(const client::RollCallReport& report) {
  nb::list ranks;
  for (const client::RankNews& rank : report.ranks) {
    const double ago_s = std::chrono::duration<double>(rank.ago).count();
    ranks.append(nb::make_tuple(rank.slot, rank.heard, ago_s, rank.since_epoch,
                                static_cast<uint32_t>(rank.doing.phase), rank.doing.bucket,
                                rank.doing.round));
  }
  nb::dict fields;
  fields["generation"] = report.generation;
  fields["ended"] = report.ended;
  fields["ranks"] = ranks;
  fields["lease_s"] = std::chrono::duration<double>(report.lease).count();
  return fields;
}

}  // namespace ballast::python
