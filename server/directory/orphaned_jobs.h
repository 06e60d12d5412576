// OrphanedJobs: jobs whose end a server has missed. It was down when the trainers left, or went
// down before the end was on its disk, or a trainer was killed when it had left the home but not
// yet this server. Such a job waits here, with its memory, for trainers that do not come. Its home
// knows that it rests. This server asks the home after a start, when a seat is free, and before it
// refuses a new job for lack of room.
// Comes from: Directory, JobEvents. Goes to: PeerLink, LocalJobs. Thread safety: owned by the
// directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/operator/directory_parts.h"

namespace ballast::server {

class OrphanedJobs {
 public:
  using Done = std::function<void(absl::Status)>;

  explicit OrphanedJobs(const DirectoryParts& parts) : parts_(parts) {}

  // Asks the home about the jobs here, and lets those rest that rest there. Does nothing at the
  // home itself.
  void Ask(const Done& done);
  // The same, again until the home answers.
  void AskUntilAnswered();
  // The same, a little later: the home may still be handling the event that caused the question.
  void AskSoon();
  // The same, from time to time while durable jobs run here: they may rest at their home because no
  // trainer came.
  void AskLater();

 private:
  using Told = std::map<uint64_t, uint64_t>;  // LocalJobs::Entry::told, by job

  void LetRest(const std::vector<uint64_t>& rest, const Told& told, const Done& done);
  // Ends the job, unless the home has woken it since it was asked, or a trainer is here.
  void LetOneRest(uint64_t job, uint64_t told, const std::shared_ptr<WhenAll>& answers);
  absl::Status MissedHere(const std::string& name) const;

  const DirectoryParts parts_;
  bool asks_soon_ = false;   // the timer of AskSoon runs
  bool asks_later_ = false;  // likewise
};

}  // namespace ballast::server
