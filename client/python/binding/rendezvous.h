// The rendezvous of a client for ballast/rendezvous.py.
// Comes from: module.cc. Goes to: ballast/rendezvous.h. Thread safety: the caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "ballast/client.h"
#include "client/python/binding/operation.h"

namespace ballast::python {

// (epoch, generation, tag, timeout in seconds): client::Meeting.
using MeetingTuple = std::tuple<uint32_t, uint32_t, std::string, double>;

// `act`: "exchange" (result: the id as bytes), "ready", "give_up" or "roll_call" (result: a dict).
// Raises BadArgument for another one.
Operation* StartRendezvous(const std::shared_ptr<client::Client>& client, const std::string& act,
                           const MeetingTuple& meeting, const nanobind::bytes& id,
                           const std::string& why);

// `phase`: a number of client::CollectivePhase. Raises BadArgument for another one.
void SetDoing(client::Client* client, uint8_t phase, uint32_t bucket, uint64_t round);

nanobind::bytes ToBytes(const std::string& bytes);
// "generation", "ended", and "ranks": a list of (rank, seconds ago or None, phase, bucket, round).
nanobind::dict ToDict(const client::RollCallReport& report);

}  // namespace ballast::python
