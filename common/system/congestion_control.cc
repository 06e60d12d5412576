#include "common/system/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <initializer_list>

namespace ballast {

void ChooseCongestionControl(int fd) {
  for (const char* name : {"cubic", "reno"}) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, std::strlen(name)) == 0) break;
  }
}

}  // namespace ballast
