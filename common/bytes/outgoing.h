// A message to send, on its way to a transport. Comes from: sessions and services. Goes to: links
// of the client, streams of the server. Thread safety: plain values.
#pragma once

#include <string>

#include "common/bytes/payload.h"

namespace ballast {

// The bytes of `head`, then those of `body`. A transport copies no large body, and holds its owner
// until nothing reads that memory any more.
struct Outgoing {
  std::string head;
  Payload body;
};

}  // namespace ballast
