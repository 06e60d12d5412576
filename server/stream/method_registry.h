// Where services register their methods: a transport that makes a stream for each call.
// Comes from: main program, the services' Add...Methods. Goes to: GenericServer, and the network of
// the simulator. Thread safety: methods are added before the transport starts.
#pragma once

#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "server/stream/message_stream.h"

namespace ballast::server {

enum class MethodType { kUnary, kServerStream, kBidiStream };

// Makes the handler of a new call, which keeps `stream` as long as it answers.
using StreamFactory =
    std::function<std::shared_ptr<StreamHandler>(std::shared_ptr<MessageStream> stream)>;

class MethodRegistry {
 public:
  virtual ~MethodRegistry() = default;
  // `method` as in proto/convert/methods.h; `type` is for its metrics. Calls of other methods are
  // answered UNIMPLEMENTED.
  virtual void AddMethod(absl::string_view method, StreamFactory factory,
                         MethodType type = MethodType::kUnary) = 0;
};

}  // namespace ballast::server
