// A network with a latency, for tests of a connection's data in flight: it passes TCP connections
// on to another port of loopback and delays each byte, in both directions, without a limit on the
// number of delayed bytes.
// Comes from: channel_test.cc. Goes to: sockets of loopback. Thread safety: greatest_bytes() from
// any thread; the rest from the owner's.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ballast::testing {

class DelayedLink {
 public:
  // Connections to port() continue to `target` of loopback; each byte takes `delay` one way.
  DelayedLink(int target, std::chrono::milliseconds delay)
      : target_(target), delay_(delay), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t bytes = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, bytes), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, any, &bytes), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { AcceptAll(); });
  }

  // Breaks off all connections.
  ~DelayedLink() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
    for (auto& way : ways_) way->Join();
    for (const int fd : sockets_) close(fd);
    close(listener_);
  }

  int port() const { return port_; }

  // The most bytes that were on one way of one connection at a time.
  size_t greatest_bytes() {
    std::lock_guard<std::mutex> lock(mu_);
    size_t greatest = 0;
    for (auto& way : ways_) greatest = std::max(greatest, way->greatest_bytes());
    return greatest;
  }

 private:
  using Time = std::chrono::steady_clock::time_point;

  // One direction of one connection.
  class Way {
   public:
    Way(int from, int to, std::chrono::milliseconds delay)
        : reader_([this, from, delay] { Read(from, delay); }), writer_([this, to] { Write(to); }) {}
    void Join() {
      reader_.join();
      writer_.join();
    }
    size_t greatest_bytes() {
      std::lock_guard<std::mutex> lock(mu_);
      return greatest_;
    }

   private:
    void Read(int from, std::chrono::milliseconds delay) {
      std::vector<char> buffer(256 << 10);
      while (true) {
        const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
        std::lock_guard<std::mutex> lock(mu_);
        if (got > 0) {
          held_.emplace_back(std::chrono::steady_clock::now() + delay,
                             std::vector<char>(buffer.begin(), buffer.begin() + got));
          bytes_ += static_cast<size_t>(got);
          greatest_ = std::max(greatest_, bytes_);
        } else {
          ended_ = true;
        }
        changed_.notify_all();
        if (ended_) return;
      }
    }

    void Write(int to) {
      std::unique_lock<std::mutex> lock(mu_);
      while (true) {
        changed_.wait(lock, [this] { return ended_ || !held_.empty(); });
        if (held_.empty()) break;
        const auto [due, data] = std::move(held_.front());
        held_.pop_front();
        lock.unlock();
        std::this_thread::sleep_until(due);
        size_t sent = 0;
        while (sent < data.size()) {
          const ssize_t put = send(to, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
          if (put <= 0) break;
          sent += static_cast<size_t>(put);
        }
        lock.lock();
        bytes_ -= data.size();
      }
      shutdown(to, SHUT_WR);
    }

    std::mutex mu_;
    std::condition_variable changed_;
    std::deque<std::pair<Time, std::vector<char>>> held_;
    size_t bytes_ = 0;
    size_t greatest_ = 0;
    bool ended_ = false;
    std::thread reader_;  // Last, so that they start with all of the above in place.
    std::thread writer_;
  };

  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void AcceptAll() {
    while (true) {
      const int near = accept(listener_, nullptr, nullptr);
      if (near < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (near < 0) return;
      const int far = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = Loopback(target_);
      if (connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        ADD_FAILURE() << "nobody listens at port " << target_ << " of loopback";
        close(near);
        close(far);
        continue;
      }
      const int on = 1;
      for (const int fd : {near, far}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      std::lock_guard<std::mutex> lock(mu_);
      sockets_.insert(sockets_.end(), {near, far});
      ways_.push_back(std::make_unique<Way>(near, far, delay_));
      ways_.push_back(std::make_unique<Way>(far, near, delay_));
    }
  }

  const int target_;
  const std::chrono::milliseconds delay_;
  const int listener_;
  int port_ = 0;
  std::mutex mu_;
  std::vector<int> sockets_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::thread acceptor_;
};

}  // namespace ballast::testing
