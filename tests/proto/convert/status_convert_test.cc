// Errors across the wire: both encoders of ErrorDetail agree, and nothing is lost on the way.
#include "proto/convert/status_convert.h"
#include "proto/convert/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/cord.h"
#include "common/base/reason.h"
#include "google/protobuf/descriptor.h"

namespace ballast {
namespace {

ErrorFields SomeFields() {
  ErrorFields fields;
  fields.job = "gpt";
  fields.round = 41;
  fields.slot = 3;
  fields.server = 1;
  fields.address = "host:1234";
  return fields;
}

TEST(StatusConvert, EveryReasonOfTheProtocolHasTheSameNameHere) {
  const google::protobuf::EnumDescriptor* reasons = v1::Reason_descriptor();
  for (int i = 0; i < reasons->value_count(); ++i) {
    const auto* value = reasons->value(i);
    EXPECT_EQ("REASON_" + std::string(ReasonName(static_cast<Reason>(value->number()))),
              value->name());
  }
  EXPECT_STREQ(ReasonName(static_cast<Reason>(999)), "UNKNOWN");
}

TEST(StatusConvert, ReasonAndFieldsComeBackWithoutProtobuf) {
  const absl::Status status =
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost, "gone", SomeFields());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "gone");
  EXPECT_EQ(ReasonOf(status), Reason::kTrainerLost);
  const ErrorFields fields = FieldsOf(status);
  EXPECT_EQ(fields.job, "gpt");
  EXPECT_EQ(fields.round, 41u);
  EXPECT_EQ(fields.slot, 3);
  EXPECT_EQ(fields.server, 1);
  EXPECT_EQ(fields.address, "host:1234");
}

TEST(StatusConvert, AStatusWithoutDetailHasDefaults) {
  const absl::Status status = absl::InternalError("x");
  EXPECT_EQ(ReasonOf(status), Reason::kUnspecified);
  EXPECT_EQ(FieldsOf(status).slot, -1);
  EXPECT_EQ(FieldsOf(status).server, -1);
  EXPECT_EQ(ReasonOf(absl::OkStatus()), Reason::kUnspecified);
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_EQ(detail.code(), 13);
  EXPECT_EQ(detail.message(), "x");
  EXPECT_EQ(detail.slot(), -1);
  EXPECT_EQ(detail.server(), -1);
}

TEST(StatusConvert, HandWrittenDetailIsTheBytesOfProtobuf) {
  for (const int slot : {-1, 0, 3}) {
    ErrorFields fields = SomeFields();
    fields.slot = slot;
    const absl::Status status =
        ReasonedError(absl::StatusCode::kAborted, Reason::kHyperparamMismatch, "differs", fields);
    v1::ErrorDetail detail;
    detail.set_reason(v1::REASON_HYPERPARAM_MISMATCH);
    detail.set_message("differs");
    detail.set_job("gpt");
    detail.set_round(41);
    detail.set_slot(slot);
    detail.set_server(1);
    detail.set_code(static_cast<int>(absl::StatusCode::kAborted));
    detail.set_address("host:1234");
    EXPECT_EQ(std::string(*status.GetPayload(kErrorDetailTypeUrl)), detail.SerializeAsString());
    EXPECT_EQ(FieldsOf(status).slot, slot);
    EXPECT_EQ(DetailOf(status).SerializeAsString(), detail.SerializeAsString());
    EXPECT_EQ(FromDetail(detail), status);
  }
}

TEST(StatusConvert, GrpcStatusKeepsCodeTextAndDetail) {
  const absl::Status status = MakeError(absl::StatusCode::kFailedPrecondition, v1::REASON_NOT_HOME,
                                        "ask the home", SomeFields());
  const grpc::Status sent = ToGrpc(status);
  EXPECT_EQ(sent.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(sent.error_message(), "ask the home");
  EXPECT_EQ(FromGrpc(sent), status);
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusConvert, StatusOfGrpcItselfHasNoReason) {
  const absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset"));
  EXPECT_EQ(status, absl::UnavailableError("reset"));
  EXPECT_EQ(ReasonOf(status), Reason::kUnspecified);
  const absl::Status garbage =
      FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset", "\xff\xff not a detail"));
  EXPECT_EQ(garbage, absl::UnavailableError("reset"));
}

TEST(StatusConvert, APortOfAnotherProtocolIsToldInPlainWords) {
  for (const char* text : {"failed to connect to all addresses; last error: UNAVAILABLE: "
                           "ipv4:127.0.0.1:9000: Failed parsing HTTP/2",
                           "trying to connect an http1.x server"}) {
    EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, text)),
              absl::UnavailableError("it does not speak gRPC, as the admin port does not"));
  }
}

TEST(StatusConvert, ACallThatGrpcBrokeOffForMemoryMayBeMadeAgain) {
  const absl::Status status = FromGrpc(
      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("limits.max_rpc_memory_bytes"), absl::string_view::npos);
  const absl::Status large = FromGrpc(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                                   "Received message larger than max (5 vs. 4)"));
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(BrokenOffForMemory(status));
  EXPECT_FALSE(BrokenOffForMemory(large));
  EXPECT_FALSE(BrokenOffForMemory(absl::UnavailableError("reset")));
  EXPECT_FALSE(BrokenOffForMemory(FromGrpc(ToGrpc(status)))) << "the call of another server";
}

TEST(StatusConvert, IllFormedTextDoesNotLoseTheDetail) {
  const absl::Status status = ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                                            "tensor \"\xff\xc0\xafh\xc3\xa9\xed\xa0\x80\"");
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_EQ(detail.reason(), v1::REASON_BAD_SPEC);
  EXPECT_EQ(detail.message(), "tensor \"???h\xc3\xa9???\"");
}

TEST(StatusConvert, LongTextsAreCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "\xc3\xa9";
  const grpc::Status sent =
      ToGrpc(ReasonedError(absl::StatusCode::kInternal, Reason::kJobFailed, "x" + text));
  EXPECT_LE(sent.error_message().size(), 1500u);
  EXPECT_EQ(sent.error_message().size() % 2, 1u);
  EXPECT_EQ(ReasonOf(FromGrpc(sent)), Reason::kJobFailed);
}

TEST(StatusConvert, UnknownCodesOfAPeerBecomeUnknown) {
  v1::ErrorDetail detail;
  for (const int code : {0, -5, 17, 1000}) {
    detail.set_code(code);
    EXPECT_EQ(FromDetail(detail).code(), absl::StatusCode::kUnknown);
  }
}

}  // namespace
}  // namespace ballast
