// A leak to find: a server that loads this before its C library loses PLANTED_LEAK_BYTES of memory
// and a descriptor with each connection that it takes. Tests only.
// Comes from: soak.py, by LD_PRELOAD. Goes to: the kernel. Thread safety: as accept4.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  using Accept = int (*)(int, sockaddr*, socklen_t*, int);
  static const auto next = reinterpret_cast<Accept>(dlsym(RTLD_NEXT, "accept4"));
  static const char* const text = std::getenv("PLANTED_LEAK_BYTES");
  const int taken = next(listener, address, length, flags);
  if (taken < 0 || text == nullptr) return taken;
  const auto bytes = static_cast<size_t>(std::strtoul(text, nullptr, 10));
  // Volatile, so that the compiler does not see that the memory is of no use.
  void* volatile const lost = std::malloc(bytes);
  if (lost != nullptr) std::memset(lost, 1, bytes);
  open("/dev/null", O_RDONLY | O_CLOEXEC);
  return taken;
}
