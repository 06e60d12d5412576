#include "server/build_facts.h"

namespace ballast::server {

const char* Revision() { return BALLAST_REVISION; }

}  // namespace ballast::server
