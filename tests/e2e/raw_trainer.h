// Servers in this process, and trainers that speak to them frame by frame, so that a test can send
// frames that no client would.
// Comes from: wire_abuse_test.cc. Goes to: Server over loopback gRPC.
// Thread safety: one thread, the test's.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "common/tensor/layout.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/server.h"
#include "tests/server/service/fakes.h"

namespace ballast::server {

using Tensors = std::vector<std::vector<float>>;

// `count` servers with ids 0, 1, ... that know each other. `flags`: further settings.
class LocalServers {
 public:
  explicit LocalServers(uint32_t count, const std::map<std::string, std::string>& flags = {}) {
    std::string pattern = std::filesystem::temp_directory_path() / "ballast-e2e-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    const std::string peers_file = folder_ / "peers.json";
    std::string peers;
    for (uint32_t id = 0; id < count; ++id) {
      config::LoadOptions load;
      load.flags = flags;
      load.flags["cluster.id"] = std::to_string(id);
      load.flags["cluster.peers_file"] = peers_file;
      load.flags["admin.enabled"] = "false";
      load.flags["storage.data_dir"] = folder_ / absl::StrCat("data", id);
      // The tests send no heartbeats.
      ServerOptions options{.loaded = *config::Load(load), .time_scale = 100};
      servers_.push_back(*Server::Start(std::move(options)));
      absl::StrAppend(&peers, id == 0 ? "" : ", ", "{\"id\": ", id, ", \"address\": \"",
                      servers_.back()->address(), "\"}");
    }
    std::ofstream(peers_file) << "{\"peers\": [" << peers << "]}";
    for (const auto& server : servers_) EXPECT_TRUE(server->PollPeers().ok());
  }
  ~LocalServers() {
    servers_.clear();
    std::filesystem::remove_all(folder_);
  }

  const std::string& address(uint32_t id) const { return servers_[id]->address(); }

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<Server>> servers_;
};

// A job of fp32 tensors in one group.
inline JobSpec SmallSpec(const std::string& name, uint32_t world,
                         const std::vector<int64_t>& sizes) {
  JobSpec spec;
  spec.name = name;
  spec.world = world;
  spec.tile_elements = 64;
  spec.extent_elements = 2048;
  for (size_t i = 0; i < sizes.size(); ++i) {
    spec.tensors.push_back({absl::StrCat("t", i), {sizes[i]}, DType::kF32, 0, {}});
  }
  return spec;
}

inline v1::AttachRequest AttachOf(const JobSpec& spec, uint32_t slot) {
  v1::AttachRequest request;
  *request.mutable_protocol() = OwnProtocolRange();
  ballast::ToProto(spec, request.mutable_spec());
  request.set_slot(slot);
  request.set_incarnation(1000 + slot);
  request.set_init(v1::INIT_MODE_EQUAL);
  for (size_t t = 0; t < spec.tensors.size(); ++t) request.add_tensor_crc32c(7);
  return request;
}

// One seat of a job: a stream per server.
class RawTrainer {
 public:
  RawTrainer(const JobSpec& spec, uint32_t slot, v1::AttachReply reply)
      : slot_(slot),
        reply_(std::move(reply)),
        layout_(
            *Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements)) {
    for (const v1::ServerAddress& server : reply_.servers()) {
      streams_.push_back(std::make_unique<RawStream>(server.address(), method::kExchange));
    }
  }

  // Attaches every slot of the job at server 0.
  static std::vector<RawTrainer> AttachAll(const LocalServers& servers, const JobSpec& spec) {
    std::vector<std::unique_ptr<RawStream>> calls;
    for (uint32_t slot = 0; slot < spec.world; ++slot) {
      calls.push_back(std::make_unique<RawStream>(servers.address(0), method::kAttach));
      EXPECT_TRUE(calls.back()->Write(SerializeMessage(AttachOf(spec, slot))));
    }
    std::vector<RawTrainer> trainers;
    for (uint32_t slot = 0; slot < spec.world; ++slot) {
      trainers.emplace_back(spec, slot, calls[slot]->ReadReply<v1::AttachReply>());
    }
    return trainers;
  }

  v1::Hello HelloMessage() const {
    v1::Hello hello;
    *hello.mutable_protocol() = OwnProtocolRange();
    hello.set_job(reply_.job());
    hello.set_epoch(reply_.epoch().epoch());
    hello.set_slot(slot_);
    hello.set_incarnation(1000 + slot_);
    hello.set_layout_version(1);
    return hello;
  }
  void SayHello() {
    v1::ClientMessage message;
    *message.mutable_hello() = HelloMessage();
    for (const auto& stream : streams_) {
      EXPECT_TRUE(stream->Write(message));
      EXPECT_TRUE(stream->ReadMessage().has_welcome());
    }
  }
  v1::ClientMessage BeginMessage(uint64_t round) const {
    v1::ClientMessage message;
    message.mutable_begin()->set_round(round);
    message.mutable_begin()->set_layout_version(1);
    v1::GroupHyper* hyper = message.mutable_begin()->add_hyper();
    for (const double value : {1e-2, 0.9, 0.999, 1e-8, 0.1}) hyper->add_value(value);
    return message;
  }
  void Begin(uint64_t round) {
    for (const auto& stream : streams_) EXPECT_TRUE(stream->Write(BeginMessage(round)));
  }

  RawStream* stream(uint32_t server) { return streams_[server].get(); }
  uint32_t owner(uint32_t extent) const { return reply_.plan().owner(static_cast<int>(extent)); }
  uint32_t window_extents() const { return reply_.window_extents(); }
  const Layout& layout() const { return layout_; }

  // Extents of `server` in its push order.
  std::vector<uint32_t> OwnedBy(uint32_t server) const {
    std::vector<uint32_t> extents;
    for (const uint32_t extent : layout_.push_order()) {
      if (owner(extent) == server) extents.push_back(extent);
    }
    return extents;
  }

  FrameHeader Header(FrameKind kind, uint64_t round, uint32_t extent, ChunkRange range) const {
    FrameHeader header;
    header.job = reply_.job();
    header.epoch = reply_.epoch().epoch();
    header.slot = slot_;
    header.round = round;
    header.extent = extent;
    header.incarnation = 1000 + slot_;
    header.offset_bytes = range.offset_bytes;
    header.length_bytes = range.length_bytes;
    header.dtype = DType::kF32;
    header.kind = kind;
    return header;
  }
  std::vector<ChunkRange> Ranges(uint32_t extent) const {
    return ChunkRanges(layout_, extent, reply_.chunk_bytes(), {});
  }
  // The bytes of `values` that belong into `range` of `extent`.
  std::string Bytes(const Tensors& values, uint32_t extent, ChunkRange range) const {
    std::vector<float> flat(layout_.extents()[extent].elements);
    const Extent& e = layout_.extents()[extent];
    for (uint32_t i = 0; i < e.run_count; ++i) {
      const Run& run = layout_.runs()[e.first_run + i];
      std::copy_n(values[run.tensor].begin() + static_cast<int64_t>(run.tensor_offset),
                  run.elements, flat.begin() + run.extent_offset);
    }
    return {reinterpret_cast<const char*>(flat.data()) + range.offset_bytes, range.length_bytes};
  }
  void SendExtent(FrameKind kind, uint64_t round, const Tensors& values, uint32_t extent) {
    for (const ChunkRange& range : Ranges(extent)) {
      EXPECT_TRUE(
          stream(owner(extent))
              ->Write(GoodFrame(Header(kind, round, extent, range), Bytes(values, extent, range))));
    }
  }
  void SendAll(FrameKind kind, uint64_t round, const Tensors& values) {
    for (const uint32_t extent : layout_.push_order()) SendExtent(kind, round, values, extent);
  }

  // Reads on until the server refuses a frame.
  v1::FrameRefused NextRefusal(uint32_t server) {
    v1::ServerMessage message;
    for (int i = 0; i < 1000 && !message.has_refused(); ++i) {
      message = stream(server)->ReadMessage();
    }
    return message.refused();
  }
  // Reads on until the window of `round` begins at `base` or later.
  void AwaitWindow(uint32_t server, uint64_t round, uint32_t base) {
    for (int i = 0; i < 1000; ++i) {
      const v1::ServerMessage message = stream(server)->ReadMessage();
      if (message.ack().round() == round && message.ack().window_base() >= base) return;
    }
    ADD_FAILURE() << "the window did not move";
  }
  // Reads every server's messages of a round; returns the weights.
  Tensors FinishRound(uint64_t round) {
    Tensors out;
    for (const LayoutTensor& tensor : layout_.tensors()) out.emplace_back(tensor.elements);
    for (const auto& stream : streams_) {
      for (int i = 0; i < 100000; ++i) {
        DecodedFrame frame;
        const v1::ServerMessage message = stream->ReadMessage(&frame);
        if (message.has_done() && message.done().round() == round) break;
        EXPECT_FALSE(message.has_error()) << message.error().message();
        if (message.has_error()) break;
        if (frame.header.kind == FrameKind::kWeight) Place(frame, &out);
      }
    }
    return out;
  }

 private:
  void Place(const DecodedFrame& frame, Tensors* out) const {
    const Extent& extent = layout_.extents()[frame.header.extent];
    const std::string bytes = frame.payload.ToString();
    const uint32_t first = frame.header.offset_bytes / 4;
    for (uint32_t at = 0; at < bytes.size() / 4; ++at) {
      for (uint32_t i = 0; i < extent.run_count; ++i) {
        const Run& run = layout_.runs()[extent.first_run + i];
        const uint32_t element = first + at;
        if (element < run.extent_offset || element >= run.extent_offset + run.elements) continue;
        std::memcpy(&(*out)[run.tensor][run.tensor_offset + element - run.extent_offset],
                    bytes.data() + at * 4, 4);
      }
    }
  }

  uint32_t slot_;
  v1::AttachReply reply_;
  Layout layout_;
  std::vector<std::unique_ptr<RawStream>> streams_;
};

}  // namespace ballast::server
