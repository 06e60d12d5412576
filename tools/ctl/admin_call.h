// Calls of ballastctl: one unary call of a server's Admin service, awaited, and the wording of its
// errors.
// Comes from: ballastctl's commands. Goes to: the servers. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/convert/channel_factory.h"
#include "proto/convert/grpc_message.h"
#include "tools/ctl/options.h"

namespace ballast::tools {

// How long a server may take to answer, seconds.
inline constexpr int kTimeoutS = 5;
inline constexpr int kDeleteTimeoutS = 60;             // Large files take a while to go.
inline constexpr int kWholeStateTimeoutS = 24 * 3600;  // All of a job is read or written.
inline constexpr size_t kReplyBytesMax = 64 << 20;

// How all calls from now on connect; plaintext until then. main says it once, before the first.
void UseChannels(std::shared_ptr<ChannelFactory> channels);

// The reply's bytes. Errors: the server's own; UNAVAILABLE and DEADLINE_EXCEEDED of gRPC;
// UNAUTHENTICATED, with the cause, when a server is there but no TLS connection comes about.
absl::StatusOr<grpc::ByteBuffer> CallServer(const std::string& endpoint, const char* method,
                                            const google::protobuf::MessageLite& request,
                                            int timeout_s);

template <typename Reply>
absl::StatusOr<Reply> Ask(const std::string& endpoint, const char* method,
                          const google::protobuf::MessageLite& request, int timeout_s) {
  const absl::StatusOr<grpc::ByteBuffer> bytes = CallServer(endpoint, method, request, timeout_s);
  if (!bytes.ok()) return bytes.status();
  Reply reply;
  const absl::Status parsed = ParseMessage(*bytes, kReplyBytesMax, &reply);
  if (!parsed.ok()) return parsed;
  return reply;
}

// Where the home of the jobs listens, if `status` says that another server was asked; else empty.
std::string HomeOf(const absl::Status& status);

// The first of the options' endpoints whose server serves jobs; if none does, the first that
// answers; if none does, the first. Says on stderr which of those before it do not answer. One
// endpoint is not asked. The question changes nothing, so a command that follows runs once.
std::string FirstThatServes(const Options& options);

// Asks that server, and then the jobs' home, if another one; `endpoint` then names the home.
template <typename Reply>
absl::StatusOr<Reply> AskHome(std::string* endpoint, const char* method,
                              const google::protobuf::MessageLite& request, int timeout_s) {
  absl::StatusOr<Reply> reply = Ask<Reply>(*endpoint, method, request, timeout_s);
  const std::string home = HomeOf(reply.status());
  if (home.empty()) return reply;
  *endpoint = home;
  return Ask<Reply>(*endpoint, method, request, timeout_s);
}

// The code that a call which ended with `status`, not OK, exits with. A conflict: something of that
// name exists, or the job is busy with something else.
int ExitCode(const absl::Status& status);
// Says it on stderr, and returns the exit code.
int Failed(const std::string& endpoint, const Options& options, const absl::Status& status);

}  // namespace ballast::tools
