#include "server/net/read_guards.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/sync.h"

namespace ballast::server {
namespace {

// One for each descriptor guarded once; it is used again with the descriptor, and never freed. Only
// the thread that reads from the descriptor touches it, or the one that just accepted it.
struct Guarded {
  std::atomic<bool> active{false};
  // A thread whose last read was from another connection may look at these two.
  std::atomic<uint64_t> identity{0};
  std::atomic<const void*> owner{nullptr};
  bool tls = false;
  FrameLimits limits;
  FrameGuard frames;
};

// Untouched pages of it take no memory.
std::array<std::atomic<Guarded*>, ReadGuards::kDescriptorEnd> guards;

// The descriptor of this thread's last read, if it has TLS. gRPC decrypts the bytes read before it
// reads from another, except bytes that came with a handshake.
thread_local int read_last = -1;

struct Owners {
  Mutex mu;
  std::map<const void*, ReadGuards::Cut> cuts ABSL_GUARDED_BY(mu);
};

Owners& AllOwners() {
  static auto* const owners = new Owners;  // Threads of gRPC may outlive static objects.
  return *owners;
}

Guarded* Find(int fd) {
  if (fd < 0 || fd >= ReadGuards::kDescriptorEnd) return nullptr;
  Guarded* const found = guards[static_cast<size_t>(fd)].load(std::memory_order_acquire);
  return found != nullptr && found->active.load(std::memory_order_acquire) ? found : nullptr;
}

// False: the descriptor belongs to another connection by now, which the guard must not judge.
bool Tell(int fd, Guarded* guarded, ConnectionRefusal why) {
  struct stat seen {};
  const uint64_t identity = guarded->identity.load(std::memory_order_relaxed);
  if (fstat(fd, &seen) != 0 || seen.st_ino != identity) {
    guarded->active.store(false, std::memory_order_release);
    return false;
  }
  Owners& owners = AllOwners();
  MutexLock lock(&owners.mu);
  const auto cut = owners.cuts.find(guarded->owner.load(std::memory_order_relaxed));
  if (cut != owners.cuts.end()) cut->second(fd, identity, why);
  return true;
}

// Whether gRPC may have the bytes read.
bool MayRead(int fd, const msghdr& message, size_t bytes) {
  Guarded* const guarded = Find(fd);
  const bool tls = guarded != nullptr && guarded->tls;
  read_last = tls ? fd : -1;
  if (guarded == nullptr || tls) return true;
  const std::chrono::nanoseconds now = RealClock::Get()->Now();
  std::optional<ConnectionRefusal> fault;
  for (size_t i = 0; i < message.msg_iovlen && bytes > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t length = std::min(bytes, part.iov_len);
    fault = guarded->frames.Look({static_cast<const char*>(part.iov_base), length}, now);
    bytes -= length;
  }
  if (!fault.has_value() || !Tell(fd, guarded, *fault)) return true;
  // With some bytes already in hand, gRPC's read would only end, and not fail.
  shutdown(fd, SHUT_RD);
  return false;
}

void FreeFrames(void*, void* frames, CRYPTO_EX_DATA*, int, long, void*) {  // NOLINT: OpenSSL's long
  delete static_cast<FrameGuard*>(frames);
}

FrameGuard* FramesOf(SSL* tls) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeFrames);
  auto* frames = static_cast<FrameGuard*>(SSL_get_ex_data(tls, index));
  if (frames != nullptr) return frames;
  const Guarded* const guarded = Find(read_last);
  auto made = std::make_unique<FrameGuard>(guarded == nullptr ? FrameLimits() : guarded->limits);
  if (SSL_set_ex_data(tls, index, made.get()) != 1) return nullptr;
  return made.release();
}

// gRPC feeds OpenSSL from memory, other users from a descriptor.
bool IsOfTheServersGrpc(SSL* tls) { return SSL_is_server(tls) == 1 && SSL_get_rfd(tls) == -1; }

bool MayRead(SSL* tls, const void* buffer, size_t bytes) {
  if (!IsOfTheServersGrpc(tls)) return true;
  FrameGuard* const frames = FramesOf(tls);
  if (frames == nullptr) return false;
  const std::optional<ConnectionRefusal> fault =
      frames->Look({static_cast<const char*>(buffer), bytes}, RealClock::Get()->Now());
  if (!fault.has_value()) return true;
  if (Guarded* const guarded = Find(read_last)) Tell(read_last, guarded, *fault);
  return false;
}

}  // namespace

void ReadGuards::Begin(const void* owner, Cut cut) {
  Owners& owners = AllOwners();
  MutexLock lock(&owners.mu);
  owners.cuts[owner] = std::move(cut);
}

void ReadGuards::Guard(int fd, uint64_t identity, bool tls, const FrameLimits& limits,
                       const void* owner) {
  std::atomic<Guarded*>& place = guards[static_cast<size_t>(fd)];
  Guarded* guarded = place.load(std::memory_order_acquire);
  if (guarded == nullptr) guarded = new Guarded;
  guarded->identity.store(identity, std::memory_order_relaxed);
  guarded->owner.store(owner, std::memory_order_relaxed);
  guarded->tls = tls;
  guarded->limits = limits;
  guarded->frames = FrameGuard(limits);
  guarded->active.store(true, std::memory_order_release);
  place.store(guarded, std::memory_order_release);
}

void ReadGuards::Forget(const void* owner) {
  Owners& owners = AllOwners();
  MutexLock lock(&owners.mu);
  owners.cuts.erase(owner);
}

}  // namespace ballast::server

// The C library's and OpenSSL's names, so not ours to choose.
extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  using Function = ssize_t (*)(int, msghdr*, int);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t got = real(fd, message, flags);
  if (got <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return got;
  if (ballast::server::MayRead(fd, *message, static_cast<size_t>(got))) return got;
  errno = ECONNRESET;
  return -1;
}

int SSL_read(SSL* tls, void* buffer, int bytes) {
  using Function = int (*)(SSL*, void*, int);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "SSL_read"));
  const int got = real(tls, buffer, bytes);
  if (got <= 0 || ballast::server::MayRead(tls, buffer, static_cast<size_t>(got))) return got;
  ERR_raise(ERR_LIB_SSL, SSL_R_EXCESSIVE_MESSAGE_SIZE);
  return -1;
}

}  // extern "C"
