// Real TLS connections of gRPC: the ends that connect, a client's message when they do not, and
// files that are replaced while a server runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/tls/staged_files.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/convert/channel.h"
#include "proto/convert/channel_factory.h"
#include "proto/convert/credentials.h"
#include "tests/common/tls/certificates.h"

namespace ballast {
namespace {

using testing::HasSubstr;

int64_t Now() { return static_cast<int64_t>(std::time(nullptr)); }

CertificateWish Client(const std::string& name = "trainer") {
  CertificateWish wish;
  wish.name = name;
  wish.uris = {"spiffe://ballast/tenant/default/trainer"};
  wish.dns = {};
  wish.loopback = false;
  wish.server = false;
  return wish;
}

// Answers no call; connections are all that matters here.
class Port {
 public:
  explicit Port(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    ConfigureServer(&builder);
    server_ = builder.BuildAndStart();
    // gRPC shakes hands on the threads that poll.
    poller_ = std::thread([this] {
      void* tag = nullptr;
      bool ok = false;
      while (queue_->Next(&tag, &ok)) {
      }
    });
  }
  ~Port() {
    server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
    poller_.join();
  }

  std::string address(const std::string& host = "127.0.0.1") const {
    return host + ":" + std::to_string(port_);
  }

 private:
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread poller_;
  int port_ = 0;
};

class TlsChannelTest : public testing::Test {
 protected:
  TlsChannelTest() : staged_(StagedFiles::Create(folder_).value()) {
    Publish(authority_.Files());
    credentials_ = std::make_unique<WatchedCredentials>(staged_->paths());
  }
  ~TlsChannelTest() override {
    staged_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Publish(const TlsFiles& files) { ASSERT_TRUE(staged_->Publish(files).ok()); }

  // A client with these files, which lie in a folder of their own.
  std::shared_ptr<ChannelFactory> ClientWith(const TlsFiles& files) {
    const std::string folder = folder_ + "/client-" + std::to_string(++clients_);
    std::filesystem::create_directory(folder);
    TlsPaths paths = WriteFiles(folder, files);
    auto made = ChannelFactory::Create({paths, ""}, Now);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *made : nullptr;
  }
  std::shared_ptr<ChannelFactory> ClientWithoutCertificate(const std::string& ca) {
    const std::string path = folder_ + "/only-ca.pem";
    WriteFile(path, ca);
    return ChannelFactory::Create({{path, "", ""}, ""}, Now).value();
  }

  // Whether a connection comes about; a server that refuses ends the wait at once.
  static bool Connects(ChannelFactory* client, const std::string& address) {
    const auto channel = client->Make(address, /*time_scale=*/1);
    auto state = channel->GetState(/*try_to_connect=*/true);
    const auto end = std::chrono::system_clock::now() + std::chrono::seconds(30);
    while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
      if (!channel->WaitForStateChange(state, end)) return false;
      state = channel->GetState(true);
    }
    // With TLS 1.3 a client is READY before the server has judged its certificate; the server's
    // first bytes say that it has.
    if (state != GRPC_CHANNEL_READY) return false;
    return client->Explain(address).empty();
  }
  // Tries until a connection comes about, or does not any more.
  static bool BecomesConnectable(ChannelFactory* client, const std::string& address, bool wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (Connects(client, address) != wanted) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  const std::string folder_ = MakeFolder();
  const TestAuthority authority_;
  const TestAuthority stranger_{"Another CA"};
  std::unique_ptr<StagedFiles> staged_;
  std::unique_ptr<WatchedCredentials> credentials_;
  int clients_ = 0;
};

TEST_F(TlsChannelTest, BothEndsShowCertificates) {
  const Port port(credentials_->Server(/*certificate_required=*/true));
  EXPECT_TRUE(Connects(ClientWith(authority_.Files(Client())).get(), port.address()));
  EXPECT_TRUE(Connects(ClientWith(authority_.Files(Client())).get(), port.address("localhost")));
}

TEST_F(TlsChannelTest, AClientWithoutACertificateIsLetInOnlyWhereTokensCount) {
  const auto client = ClientWithoutCertificate(authority_.pem());
  const Port strict(credentials_->Server(true));
  EXPECT_FALSE(Connects(client.get(), strict.address()));
  EXPECT_THAT(client->Explain(strict.address()), HasSubstr("set BALLAST_TLS_CERT"));
  const Port lenient(credentials_->Server(false));
  EXPECT_TRUE(Connects(client.get(), lenient.address()));
}

TEST_F(TlsChannelTest, AnAuthorityThatTheServerDoesNotKnowIsRefused) {
  TlsFiles files = stranger_.Files(Client());
  files.ca.text += authority_.pem();
  const auto client = ClientWith(files);
  for (const bool required : {true, false}) {
    const Port port(credentials_->Server(required));
    EXPECT_FALSE(Connects(client.get(), port.address()));
    EXPECT_THAT(client->Explain(port.address()), HasSubstr("its security.ca lacks the authority"));
  }
}

TEST_F(TlsChannelTest, AServerOfAnUnknownAuthorityIsRefused) {
  const Port port(credentials_->Server(true));
  const auto client = ClientWith(stranger_.Files(Client()));
  EXPECT_FALSE(Connects(client.get(), port.address()));
  EXPECT_THAT(client->Explain(port.address()),
              HasSubstr("the server's certificate is not of an authority in"));
}

TEST_F(TlsChannelTest, AServerUnderAnotherNameIsRefused) {
  CertificateWish wish;
  wish.dns = {"elsewhere"};
  wish.loopback = false;
  Publish(authority_.Files(wish));
  const WatchedCredentials credentials(staged_->paths());
  const Port port(credentials.Server(true));
  const auto client = ClientWith(authority_.Files(Client()));
  for (const char* host : {"127.0.0.1", "localhost"}) {
    EXPECT_FALSE(Connects(client.get(), port.address(host)));
    EXPECT_THAT(client->Explain(port.address(host)),
                HasSubstr(std::string("the server's certificate is not for \"") + host));
  }
}

TEST_F(TlsChannelTest, AnExpiredServerIsRefused) {
  CertificateWish wish;
  wish.not_after_s = Now() - 60;
  Publish(authority_.Files(wish));  // Its loader would not do this.
  const WatchedCredentials credentials(staged_->paths());
  const Port port(credentials.Server(true));
  const auto client = ClientWith(authority_.Files(Client()));
  EXPECT_FALSE(Connects(client.get(), port.address()));
  EXPECT_THAT(client->Explain(port.address()), HasSubstr("has expired"));
}

// A trainer's certificate names no host and is not one of a server; even so it must not do.
TEST_F(TlsChannelTest, ATrainerCannotPretendToBeAServer) {
  CertificateWish wish = Client();
  wish.dns = {"localhost"};
  wish.loopback = true;
  Publish(authority_.Files(wish));
  const WatchedCredentials credentials(staged_->paths());
  const Port port(credentials.Server(true));
  const auto client = ClientWith(authority_.Files(Client()));
  EXPECT_FALSE(Connects(client.get(), port.address()));
  EXPECT_THAT(client->Explain(port.address()), HasSubstr("not one of a server"));
}

TEST_F(TlsChannelTest, TlsAtOneEndOnlyIsNamed) {
  const Port secured(credentials_->Server(true));
  const Port plain(MakeServerCredentials());
  const auto client = ClientWith(authority_.Files(Client()));
  ChannelFactory plaintext;
  EXPECT_FALSE(Connects(client.get(), plain.address()));
  EXPECT_THAT(client->Explain(plain.address()), HasSubstr("the port speaks no TLS"));
  EXPECT_THAT(plaintext.Explain(secured.address()), HasSubstr("the port speaks TLS"));
  EXPECT_EQ(plaintext.Explain(plain.address()), "");
  EXPECT_EQ(plaintext.Explain("127.0.0.1:1"), "");
}

TEST_F(TlsChannelTest, AnAuthorityIsReplacedWhileTheServerRuns) {
  const Port port(credentials_->Server(true));
  const auto old_client = ClientWith(authority_.Files(Client()));
  TlsFiles new_files = stranger_.Files(Client());
  const auto new_client = ClientWith(new_files);
  ASSERT_TRUE(Connects(old_client.get(), port.address()));
  TlsFiles both = authority_.Files();
  both.ca.text += stranger_.pem();
  Publish(both);
  new_files.ca.text += authority_.pem();
  const auto between = ClientWith(new_files);
  EXPECT_TRUE(BecomesConnectable(between.get(), port.address(), true));
  EXPECT_TRUE(Connects(old_client.get(), port.address()));
  Publish(stranger_.Files());
  EXPECT_TRUE(BecomesConnectable(new_client.get(), port.address(), true));
  EXPECT_TRUE(BecomesConnectable(old_client.get(), port.address(), false));
}

TEST_F(TlsChannelTest, AClientReadsItsFilesAgainAndKeepsTheGoodOnes) {
  const Port port(credentials_->Server(true));
  const TlsPaths paths = WriteFiles(folder_, authority_.Files(Client()));
  const auto client = ChannelFactory::Create({paths, ""}, Now).value();
  ASSERT_TRUE(Connects(client.get(), port.address()));
  WriteFile(paths.key, "half");
  EXPECT_TRUE(Connects(client.get(), port.address()));
  WriteFiles(folder_, stranger_.Files(Client()));
  EXPECT_FALSE(Connects(client.get(), port.address()));
  WriteFiles(folder_, authority_.Files(Client()));
  EXPECT_TRUE(Connects(client.get(), port.address()));
}

TEST_F(TlsChannelTest, ATokenTravelsOverTlsOnly) {
  WriteFile(folder_ + "/token", "0123456789abcdef\n");
  const auto refused = ChannelFactory::Create({{}, folder_ + "/token"}, Now);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("over TLS only"));
  const TlsPaths paths = WriteFiles(folder_, authority_.Files(Client()));
  EXPECT_TRUE(ChannelFactory::Create({{paths.ca, "", ""}, folder_ + "/token"}, Now).ok());
  EXPECT_EQ(ChannelFactory::Create({paths, folder_ + "/none"}, Now).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ballast
