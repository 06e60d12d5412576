// Forwards TCP connections to a server until it is told to freeze those that stand: as if their
// host stopped, with bytes in every buffer on the way. Later connections are forwarded.
// Thread safety: Freeze may be called from any thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace ballast::client {

class FreezingProxy {
 public:
  // `target` is "127.0.0.1:port".
  explicit FreezingProxy(const std::string& target)
      : target_(Address(static_cast<uint16_t>(std::stoi(target.substr(target.find(':') + 1))))) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    // Little fits in here, so that the sender keeps the rest.
    const int bytes = 4096;
    setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    sockaddr_in own = Address(0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    socklen_t length = sizeof(own);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &length);
    address_ = "127.0.0.1:" + std::to_string(ntohs(own.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  ~FreezingProxy() {
    stop_ = true;
    thread_.join();
    for (const Pair& pair : pairs_) Close(pair);
    close(listener_);
  }

  const std::string& address() const { return address_; }
  void Freeze() { freeze_ = true; }

 private:
  struct Pair {
    int trainer;
    int server;
    bool frozen;
  };

  static sockaddr_in Address(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static void Close(const Pair& pair) {
    close(pair.trainer);
    close(pair.server);
  }

  void Run() {
    while (!stop_) {
      if (freeze_.exchange(false)) {
        for (Pair& pair : pairs_) pair.frozen = true;
      }
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        const int16_t events = pair.frozen ? 0 : POLLIN;
        fds.push_back({pair.frozen ? -1 : pair.trainer, events, 0});
        fds.push_back({pair.frozen ? -1 : pair.server, events, 0});
      }
      poll(fds.data(), fds.size(), 10);
      for (size_t i = pairs_.size(); i-- > 0;) {
        const bool ok =
            Forward(fds[2 * i + 1], pairs_[i].server) && Forward(fds[2 * i + 2], pairs_[i].trainer);
        if (ok) continue;
        Close(pairs_[i]);
        pairs_.erase(pairs_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (fds[0].revents != 0) Accept();
    }
  }

  void Accept() {
    const int trainer = accept(listener_, nullptr, nullptr);
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(server, reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)) == 0) {
      pairs_.push_back({trainer, server, false});
    } else {
      Close({trainer, server, false});
    }
  }

  // False when the connection is over.
  static bool Forward(const pollfd& from, int to) {
    if (from.revents == 0) return true;
    char bytes[16384];
    const ssize_t count = recv(from.fd, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    return send(to, bytes, static_cast<size_t>(count), MSG_NOSIGNAL) == count;
  }

  const sockaddr_in target_;
  int listener_ = -1;
  std::string address_;
  std::vector<Pair> pairs_;  // the thread's
  std::atomic<bool> stop_{false};
  std::atomic<bool> freeze_{false};
  std::thread thread_;
};

}  // namespace ballast::client
