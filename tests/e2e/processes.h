// Processes of the end-to-end tests: children that end with the test, and state servers that can be
// killed and started again on their data and port.
// Comes from: world_test.cc. Goes to: the ballastd binary.
// Thread safety: one test's thread.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ballast::server {

// One child; its standard output is read line by line.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~Child() {
    Kill(SIGKILL);
    Wait();
    close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Kill(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  // Waits for its end; its exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    pid_ = -1;
    return code_;
  }
  // The next line it prints; empty at its end.
  std::string ReadLine() {
    std::string line;
    char letter = 0;
    while (read(output_, &letter, 1) == 1 && letter != '\n') line.push_back(letter);
    return line;
  }
  // Reads on until it prints `line`; false when it ended first.
  bool ReadUntil(const std::string& line) {
    for (std::string read = ReadLine(); !read.empty(); read = ReadLine()) {
      if (read == line) return true;
    }
    return false;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  int code_ = 0;
};

// `count` ballastd processes with ids 0, 1, ...; `settings` as "timing.lease=1s".
class ServerProcesses {
 public:
  ServerProcesses(const std::string& binary, uint32_t count, std::vector<std::string> settings)
      : binary_(binary), settings_(std::move(settings)), servers_(count) {
    std::string pattern = std::filesystem::temp_directory_path() / "ballast-e2e-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::string peers;
    for (uint32_t id = 0; id < count; ++id) {
      Start(id, "127.0.0.1:0");
      servers_[id].address = AddressOf(id);
      absl::StrAppend(&peers, id == 0 ? "" : ", ", "{\"id\": ", id, ", \"address\": \"",
                      servers_[id].address, "\"}");
    }
    std::ofstream(folder_ / "peers.tmp") << "{\"peers\": [" << peers << "]}";
    std::filesystem::rename(folder_ / "peers.tmp", folder_ / "peers.json");
  }
  ~ServerProcesses() {
    servers_.clear();
    std::filesystem::remove_all(folder_);
  }

  const std::string& address(uint32_t id) const { return servers_[id].address; }
  // kill -9, and a new process on the same data and port.
  void Strike(uint32_t id) {
    servers_[id].child->Kill(SIGKILL);
    servers_[id].child->Wait();
    std::filesystem::remove(Ready(id));
    Start(id, servers_[id].address);
    AddressOf(id);
  }

 private:
  struct One {
    std::string address;
    std::unique_ptr<Child> child;
  };
  std::filesystem::path Ready(uint32_t id) const { return folder_ / absl::StrCat("ready", id); }
  void Start(uint32_t id, const std::string& listen) {
    std::vector<std::string> command = {binary_,
                                        "--id",
                                        std::to_string(id),
                                        "--listen",
                                        listen,
                                        "--peers-file",
                                        folder_ / "peers.json",
                                        "--data-dir",
                                        folder_ / absl::StrCat("data", id),
                                        "--ready-file",
                                        Ready(id),
                                        "--set",
                                        "admin.enabled=false"};
    for (const std::string& setting : settings_) {
      command.push_back("--set");
      command.push_back(setting);
    }
    servers_[id].child = std::make_unique<Child>(command);
  }
  // The contents of its ready file, once it exists.
  std::string AddressOf(uint32_t id) const {
    while (true) {
      std::ifstream file(Ready(id));
      std::stringstream text;
      text << file.rdbuf();
      const std::string key = "\"address\": \"";
      const size_t at = text.str().find(key);
      if (at != std::string::npos && text.str().find('}') != std::string::npos) {
        const size_t begin = at + key.size();
        return text.str().substr(begin, text.str().find('"', begin) - begin);
      }
      poll(nullptr, 0, 10);
    }
  }

  const std::string binary_;
  const std::vector<std::string> settings_;
  std::filesystem::path folder_;
  std::vector<One> servers_;
};

}  // namespace ballast::server
