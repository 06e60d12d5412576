#include "tools/ctl/admin_call.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ballast/v1/admin.pb.h"
#include "common/base/reason.h"
#include "common/text/inert.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/convert/channel.h"
#include "proto/convert/grpc_status.h"
#include "proto/convert/methods.h"

namespace ballast::tools {
namespace {

// Why gRPC could not connect, in the words of an operator. Unknown texts of gRPC are reduced to
// their last part, which comes from the operating system.
std::string CauseOf(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::StrCat("no answer within ", kTimeoutS, " s");
  }
  if (absl::StrContains(status.message(), "keepalive watchdog timeout")) {
    return "it takes connections and does not answer";
  }
  if (absl::StrContains(status.message(), "DNS resolution failed")) {
    return "there is no host of that name";
  }
  std::string last(status.message().substr(status.message().rfind(": ") + 1));
  absl::StripAsciiWhitespace(&last);
  if (!last.empty()) last[0] = absl::ascii_tolower(static_cast<unsigned char>(last[0]));
  return last;
}

bool IsUnreachable(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

// One line for a server that did not answer the request. `source`: of the endpoint.
std::string ErrorText(const std::string& endpoint, const std::string& source,
                      const absl::Status& status) {
  // A detail says that a ballastd has answered, and its own text is the better one.
  if (!IsUnreachable(status) || status.GetPayload(kErrorDetailTypeUrl).has_value()) {
    return absl::StrCat(endpoint, ": ", status.message());
  }
  return absl::StrCat("cannot reach ", endpoint, ": ", CauseOf(status),
                      "; is ballastd running there? (", source, ")");
}

// Of the process: set once, by main.
std::shared_ptr<ChannelFactory>& Channels() {
  static auto* channels = new std::shared_ptr<ChannelFactory>(std::make_shared<ChannelFactory>());
  return *channels;
}

// The TLS handshake's error, where gRPC says that a socket was closed.
absl::Status Explained(const std::string& endpoint, const absl::Status& status) {
  if (!IsUnreachable(status) || status.GetPayload(kErrorDetailTypeUrl).has_value()) return status;
  const std::string why = Channels()->Explain(endpoint);
  return why.empty() ? status : absl::UnauthenticatedError(why);
}

}  // namespace

void UseChannels(std::shared_ptr<ChannelFactory> channels) { Channels() = std::move(channels); }

absl::StatusOr<grpc::ByteBuffer> CallServer(const std::string& endpoint, const char* method,
                                            const google::protobuf::MessageLite& request,
                                            int timeout_s) {
  grpc::ChannelArguments args = MakeChannelArgs(1);
  args.SetMaxReceiveMessageSize(static_cast<int>(kReplyBytesMax));
  grpc::GenericStub server(Channels()->Make(endpoint, args));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(timeout_s));
  grpc::CompletionQueue queue;
  grpc::ByteBuffer bytes;
  grpc::Status result;
  const auto call = server.PrepareUnaryCall(&context, method, SerializeMessage(request), &queue);
  call->StartCall();
  call->Finish(&bytes, &result, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (!result.ok()) return Explained(endpoint, FromGrpc(result));
  return bytes;
}

std::string FirstThatServes(const Options& options) {
  if (options.endpoints.size() == 1) return options.endpoints.front();
  std::string answers;
  std::vector<std::pair<std::string, absl::Status>> silent;
  for (const std::string& endpoint : options.endpoints) {
    const auto reply =
        Ask<v1::StatusReply>(endpoint, method::kAdminStatus, v1::StatusRequest(), kTimeoutS);
    if (!reply.ok()) {
      silent.emplace_back(endpoint, reply.status());
      continue;
    }
    if (answers.empty() || reply->serving()) answers = endpoint;
    if (reply->serving()) break;
  }
  // Of the first one its caller says so.
  if (answers.empty()) answers = options.endpoints.front();
  for (const auto& [endpoint, status] : silent) {
    if (endpoint != answers) Failed(endpoint, options, status);
  }
  return answers;
}

std::string HomeOf(const absl::Status& status) {
  return ReasonOf(status) == Reason::kNotHome ? FieldsOf(status).address : "";
}

int ExitCode(const absl::Status& status) {
  const bool answered = status.GetPayload(kErrorDetailTypeUrl).has_value();
  if (IsUnreachable(status) && !answered) return kUnreachable;
  if (ReasonOf(status) == Reason::kJobBusy) return kConflict;
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return kConflict;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kNotPermitted;
    default:
      return kFailure;
  }
}

int Failed(const std::string& endpoint, const Options& options, const absl::Status& status) {
  const auto& given = options.endpoints;
  const bool known = std::find(given.begin(), given.end(), endpoint) != given.end();
  const std::string source = known ? options.source : "as another server calls it";
  std::cerr << "ballastctl: " << Inert(ErrorText(endpoint, source, status)) << "\n";
  return ExitCode(status);
}

}  // namespace ballast::tools
