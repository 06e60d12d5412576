// Which source this program was built from.
// Comes from: cmake/Revision.cmake. Goes to: the metric ballast_build_info, the log.
// Thread safety: constant.
#pragma once

namespace ballast::server {

// The commit as 40 hexadecimal digits, or the value of BALLAST_REVISION when cmake ran; empty if
// neither is known. A modified tree has the revision of the commit it is based on.
const char* Revision();

}  // namespace ballast::server
