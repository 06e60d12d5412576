#include "tests/sim/net/server_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/convert/status_convert.h"

namespace ballast::sim {

absl::Status OverTheWire(const absl::Status& status) {
  return status.ok() ? status : FromDetail(DetailOf(status));
}

const server::DirectoryNames* NoDirectoryNames() {
  static const auto* const none = new server::DirectoryNames();
  return none;
}

SimStream::SimStream(World* world, Network* network, StreamPtr stream, Sees sees)
    : world_(world), network_(network), stream_(std::move(stream)), sees_(std::move(sees)) {
  facts_.method = stream_->method;
  facts_.peer = absl::StrCat("trainer:", stream_->process);
  facts_.directory_names = NoDirectoryNames();
}

void SimStream::Begin(const server::StreamFactory& factory) {
  stream_->server_end = this;
  handler_ = factory(shared_from_this());
}

void SimStream::Read() {
  if (over_) return;
  reading_ = true;
  if (!inbox_.empty() || up_ended_) Wake();
}

void SimStream::Kick() {
  if (over_) return;
  kicked_ = true;
  Wake();
}

void SimStream::Finish(const absl::Status& status) {
  if (over_ || final_status_.has_value()) return;
  final_status_ = status;
  Wake();
}

void SimStream::Cancel() {
  if (!over_) network_->Reset(stream_);
}

void SimStream::OnUp(const Payload& message) {
  if (over_) return;
  if (sees_.up) sees_.up(message);
  inbox_.push_back(message);
  if (reading_) Work();
}

void SimStream::OnUpEnded() {
  if (over_) return;
  up_ended_ = true;
  if (reading_) Work();
}

void SimStream::OnUpClosed() {
  if (!over_ && stream_->timeout > 0) world_->Met(Cover::kCallerHungUp);
  End(/*cancelled=*/true);
}

void SimStream::Drop() {
  // Engine and handler may hold each other; the end parts them. Whom it tells has ended, too.
  End(/*cancelled=*/true);
}

void SimStream::Wake() {
  if (std::exchange(woken_, true)) return;
  // A poller of the process gets to it.
  world_->AfterInLife(0, network_->ServerNode(stream_->server), stream_->server_life,
                      EventKind::kStrand, [self = shared_from_this()] {
                        self->woken_ = false;
                        self->Work();
                      });
}

void SimStream::Work() {
  while (!over_ && handler_ != nullptr) {
    const bool handed = Hand();
    const bool sent = Send();
    if (!handed && !sent) return;
  }
}

bool SimStream::Hand() {
  if (over_ || !reading_ || (inbox_.empty() && !up_ended_)) return false;
  reading_ = false;
  if (inbox_.empty()) {
    handler_->OnReadsDone();
    return true;
  }
  Payload message = std::move(inbox_.front());
  inbox_.pop_front();
  handler_->OnMessage(std::move(message));
  return true;
}

bool SimStream::Send() {
  if (over_ || (!kicked_ && !final_status_.has_value())) return false;
  kicked_ = false;
  const std::optional<Outgoing> message = handler_->NextMessage();
  if (over_) return true;
  if (message.has_value()) {
    kicked_ = true;  // It asks for the next one.
    if (sees_.down) sees_.down(*message);
    network_->SendDown(stream_, Payload::FromString(message->head + message->body.ToString()));
    return true;
  }
  if (kicked_ || !final_status_.has_value()) return kicked_;
  network_->CloseDown(stream_, OverTheWire(*final_status_));
  End(/*cancelled=*/false);
  return true;
}

void SimStream::End(bool cancelled) {
  if (std::exchange(over_, true)) return;
  inbox_.clear();
  const std::shared_ptr<server::StreamHandler> handler = std::move(handler_);
  if (handler != nullptr) handler->OnDone(cancelled);
}

}  // namespace ballast::sim
