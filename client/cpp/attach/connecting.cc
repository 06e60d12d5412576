#include "client/cpp/attach/connecting.h"

#include <chrono>

#include "client/cpp/job/arguments.h"
#include "common/system/standard_descriptors.h"

namespace ballast::client {

absl::StatusOr<std::shared_ptr<ChannelFactory>> OpenSecurity(const Security& security) {
  // From here on the client opens only sockets.
  const absl::Status held = HoldStandardDescriptors();
  if (!held.ok()) return BadArgument(held.message());
  const ClientSecurity files{{security.ca, security.certificate, security.key},
                             security.token_file};
  auto factory = ChannelFactory::Create(files, [] {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  });
  if (factory.ok()) return factory;
  return BadArgument(factory.status().message());
}

}  // namespace ballast::client
