// The server's end of one call, unary or streaming, without its transport: messages of raw bytes in
// both directions. gRPC is one transport (server/rpc/generic_call.h), the simulator's network
// another. tests/server/stream/stream_conformance.h specifies every transport; the client's
// counterpart is client/cpp/transport/link.h.
// Comes from: the transport, which makes a MessageStream per call and a StreamHandler for it.
// Goes to: the services (trainer_stream.h, unary_call.h). Thread safety: the methods of
// MessageStream may be called from any thread, also while it calls its handler. A stream calls its
// handler on one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/bytes/outgoing.h"
#include "common/bytes/payload.h"
#include "common/security/caller.h"
#include "server/stream/directory_names.h"
#include "server/stream/parse_budget.h"

namespace ballast::server {

// Answers one call. Nothing here may block: a thread serves many calls.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // One message, after MessageStream::Read() asked for it. Its bytes stay valid while a copy of
  // `message` is held.
  virtual void OnMessage(Payload message) = 0;
  // Instead of a message: the client has closed its side, or the call broke.
  virtual void OnReadsDone() = 0;
  // The next message to send, asked for when the one before has been written and after Kick().
  virtual std::optional<Outgoing> NextMessage() = 0;
  // The call is over; its handler is released afterwards. `cancelled`: the client or a broken
  // connection ended it, before or instead of our status.
  virtual void OnDone(bool cancelled) = 0;
};

// The transport's facts about a call.
struct StreamFacts {
  std::string method;  // as in proto/convert/methods.h
  std::string peer;    // address of the other side, as the transport writes it
  Caller caller;       // from the gate
  // The job that the call is about, for the audit log: a name, or a number as JobIdText has it.
  std::string audited_job;
  // Bounds the memory of requests while they are parsed; null: nothing does. Outlives the handler.
  ParseBudget* parsing = nullptr;
  // Words and errors as callers may read them. Outlives the handler.
  const DirectoryNames* directory_names = nullptr;
};

class MessageStream {
 public:
  virtual ~MessageStream() = default;
  MessageStream(const MessageStream&) = delete;
  MessageStream& operator=(const MessageStream&) = delete;

  // Asks for one message; ignored while one is awaited and when the call is over.
  virtual void Read() = 0;
  // Says that NextMessage may have something.
  virtual void Kick() = 0;
  // Ends the call with `status`, whose text its caller gets as DirectoryNames has it, as soon as
  // NextMessage has nothing more. The first one counts.
  virtual void Finish(const absl::Status& status) = 0;
  // Breaks the call off without waiting for anything.
  virtual void Cancel() = 0;

  // Constant while the handler lives.
  const std::string& method() const { return facts_.method; }
  const std::string& peer() const { return facts_.peer; }
  const Caller& caller() const { return facts_.caller; }
  ParseBudget* parsing() const { return facts_.parsing; }
  const DirectoryNames& directory_names() const { return *facts_.directory_names; }

  // Called by the handler, while the stream calls it.
  void SetAuditedJob(std::string job) { facts_.audited_job = std::move(job); }

 protected:
  MessageStream() = default;

  StreamFacts facts_;
};

}  // namespace ballast::server
