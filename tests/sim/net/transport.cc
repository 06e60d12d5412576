#include "tests/sim/net/transport.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"

namespace ballast::sim {
namespace {

using client::Time;
using std::chrono::nanoseconds;

// Between two tries to connect to a server that does not listen yet.
constexpr Tick kConnectAgain = 100 * kMillisecond;

Time TimeOf(const SimClock* clock) { return Time(nanoseconds(static_cast<int64_t>(clock->Now()))); }

// One stream to a server. A message is copied when the handler gives it, so lent memory is free
// again at once.
class SimLink final : public client::Link, private StreamClient {
 public:
  SimLink(const Context& context, uint32_t process, uint32_t slot, const client::LinkTarget& target,
          client::LinkHandler* handler)
      : context_(context),
        process_(process),
        slot_(slot),
        server_(Network::IndexOf(target.address)),
        wait_for_server_(target.wait_for_server),
        handler_(handler) {
    Connect();
  }
  ~SimLink() override { context_.network->CloseUp(stream_); }

  void Kick() override { Pump(); }
  void HalfClose() override {
    half_close_wanted_ = true;
    Pump();
  }
  void Cancel() override {
    context_.network->CloseUp(stream_);
    Later(0, [this] { Close(absl::CancelledError("the trainer broke the stream off")); });
  }
  bool closed() const override { return closed_; }

 private:
  // Unless the link has gone by then.
  void Later(Tick delay, std::function<void()> action) {
    const NodeId node = context_.network->TrainerNode(process_);
    context_.world->After(delay, node, EventKind::kTimer,
                          [token = std::weak_ptr(token_), action = std::move(action)] {
                            if (!token.expired()) action();
                          });
  }
  void Connect() {
    StreamClient* const client = this;
    stream_ = context_.network->Open(process_, server_, client, method::kExchange);
    if (stream_->refused) return;
    Later(0, [this] {
      connected_ = true;
      Pump();
    });
  }

  void OnDown(const Payload& message) override {
    Show(message);
    handler_->OnMessage(message);
  }
  void OnDownClosed(const absl::Status& status) override {
    if (!wait_for_server_ || !stream_->refused) return Close(status);
    Later(kConnectAgain, [this] {
      if (!closed_) Connect();
    });
  }
  void Close(const absl::Status& status) {
    if (!std::exchange(closed_, true)) handler_->OnClosed(status);
  }

  void Pump() {
    if (!connected_ || half_closed_ || !stream_->client_open) return;
    while (const std::optional<Outgoing> message = handler_->NextMessage()) Send(*message);
    if (!half_close_wanted_) return;
    half_closed_ = true;
    context_.network->HalfClose(stream_);
  }
  void Send(const Outgoing& message) {
    const Payload sent = Payload::FromString(message.head + message.body.ToString());
    const bool gradient = message.body.bytes() > 0 && IsGradient(sent);
    context_.network->SendUp(stream_, gradient ? MayDamage(message.head.size(), sent) : sent);
    if (gradient && context_.mutant == Mutant::kFreeGradients) {
      for (const Payload::Piece& piece : message.body.pieces()) {
        std::fill_n(const_cast<char*>(piece.data), piece.bytes, '\0');
      }
    }
  }
  static bool IsGradient(const Payload& message) {
    const auto input = DecodeClientMessage(message, kMaxMessageBytes, kMaxMessageBytes);
    const auto* const frame = input.ok() ? absl::get_if<DecodedFrame>(&*input) : nullptr;
    return frame != nullptr && frame->header.kind == FrameKind::kGradient;
  }
  // `message` as it arrives: perhaps with one bit after its first `head` bytes changed.
  Payload MayDamage(size_t head, const Payload& message) {
    Random& random = context_.world->random();
    if (stream_->corrupted || !random.OneIn(context_.swarm->faults.corrupt_one_in)) return message;
    stream_->corrupted = true;
    context_.world->Met(Cover::kFrameDamaged);
    std::string bytes = message.ToString();
    bytes[head + random.Below(bytes.size() - head)] ^= static_cast<char>(1 << random.Below(8));
    return Payload::FromString(std::move(bytes));
  }
  // To the oracle.
  void Show(const Payload& message) const {
    const auto input = DecodeServerMessage(message, kMaxMessageBytes, kMaxMessageBytes);
    if (!input.ok()) return;  // The client says so.
    if (const auto* const frame = absl::get_if<DecodedFrame>(&*input)) {
      if (frame->header.kind == FrameKind::kWeight) {
        context_.oracle->OnWeights(process_, frame->header, frame->payload.ToString());
      }
      return;
    }
    const auto& control = absl::get<v1::ServerMessage>(*input);
    if (!control.has_result()) return;
    context_.oracle->OnResult(process_, RoundResultFromProto(control.result()));
  }

  const Context context_;
  const uint32_t process_;
  const uint32_t slot_;
  const uint32_t server_;  // index
  const bool wait_for_server_;
  client::LinkHandler* const handler_;
  const std::shared_ptr<char> token_ = std::make_shared<char>();
  StreamPtr stream_;
  bool connected_ = false;
  bool half_close_wanted_ = false;
  bool half_closed_ = false;
  bool closed_ = false;
};

// One unary call: a stream with one message each way. Its destruction resets the stream, so the
// server hears that its caller has hung up.
class SimCall final : public client::CallHandle, private StreamClient {
 public:
  SimCall(const Context& context, uint32_t process, const client::CallTarget& target,
          const Payload& request, client::Transport::Answer answer)
      : network_(context.network), answer_(std::move(answer)) {
    const auto timeout = static_cast<Tick>(nanoseconds(target.timeout).count());
    StreamClient* const client = this;
    stream_ = network_->Open(process, Network::IndexOf(target.address), client, target.method,
                             std::max<Tick>(timeout, 1));
    context.world->clock(network_->TrainerNode(process))
        ->After(timeout, EventKind::kTimer, [this, token = std::weak_ptr(token_)] {
          if (!token.expired() && answer_) TimeOut();
        });
    if (stream_->refused) return;
    network_->SendUp(stream_, request);
    network_->HalfClose(stream_);
  }
  ~SimCall() override { network_->CloseUp(stream_); }

 private:
  void OnDown(const Payload& message) override { message_ = message; }
  void OnDownClosed(const absl::Status& status) override {
    if (!status.ok()) return Tell(status);
    if (!message_.has_value()) return Tell(absl::InternalError("no message before the end"));
    Tell(*std::move(message_));
  }
  void TimeOut() {
    network_->CloseUp(stream_);
    Tell(absl::DeadlineExceededError("no answer in time"));
  }
  // The answer may destroy this.
  void Tell(absl::StatusOr<Payload> told) {
    const client::Transport::Answer answer = std::exchange(answer_, nullptr);
    answer(std::move(told));
  }

  Network* const network_;
  client::Transport::Answer answer_;  // null once it has run
  const std::shared_ptr<char> token_ = std::make_shared<char>();
  StreamPtr stream_;
  std::optional<Payload> message_;
};

class SimTimer final : public client::Timer {
 public:
  SimTimer(SimClock* clock, std::function<void()> fire) : clock_(clock), fire_(std::move(fire)) {}
  ~SimTimer() override { ++*sets_; }

  void Set(Time due) override {
    const auto wait = std::max<nanoseconds::rep>((due - TimeOf(clock_)).count(), 0);
    clock_->After(static_cast<Tick>(wait) + 1, EventKind::kTimer,
                  [sets = sets_, set = ++*sets_, fire = fire_] {
                    if (*sets == set) fire();
                  });
  }

 private:
  SimClock* const clock_;
  const std::function<void()> fire_;
  const std::shared_ptr<uint64_t> sets_ = std::make_shared<uint64_t>(0);  // newer ones void older
};

}  // namespace

Time SimTransport::Now() const {
  return TimeOf(context_.world->clock(context_.network->TrainerNode(process_)));
}

std::unique_ptr<client::Link> SimTransport::Open(const client::LinkTarget& target,
                                                 client::LinkHandler* handler) {
  return std::make_unique<SimLink>(context_, process_, slot_, target, handler);
}

std::unique_ptr<client::CallHandle> SimTransport::Start(
    const client::CallTarget& target, const google::protobuf::MessageLite& request, Answer answer) {
  return std::make_unique<SimCall>(context_, process_, target, MessageBytes(request),
                                   std::move(answer));
}

std::unique_ptr<client::Timer> SimTransport::MakeTimer(std::function<void()> fire) {
  SimClock* const clock = context_.world->clock(context_.network->TrainerNode(process_));
  return std::make_unique<SimTimer>(clock, std::move(fire));
}

}  // namespace ballast::sim
