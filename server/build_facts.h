// Which source this program was built from.
// Comes from: cmake/Revision.cmake. Goes to: the metric ballast_build_info, the log.
// Thread safety: constant.
#pragma once

namespace ballast::server {

// The commit, 40 hexadecimal digits, or what BALLAST_REVISION was when cmake ran; empty where
// neither is known. A tree with changes has the revision that it was changed from.
const char* Revision();

}  // namespace ballast::server
