#include "server/admin/scraper.h"

#include <utility>

#include "common/base/check.h"
#include "server/admin/exposition.h"

namespace ballast {

std::shared_ptr<const std::string> Scraper::Page() {
  MutexLock lock(&mu_);
  if (next_ == nullptr) {
    next_ = std::make_shared<ScrapeRequest>();
    const bool posted = thread_.Post([this] { Make(); });
    BALLAST_CHECK(posted);  // The thread ends with this object.
  }
  const std::shared_ptr<ScrapeRequest> order = next_;
  ++waiting_;
  while (order->page == nullptr) made_.Wait(&mu_);
  --waiting_;
  return order->page;
}

int Scraper::waiting() {
  MutexLock lock(&mu_);
  return waiting_;
}

void Scraper::Make() {
  std::shared_ptr<ScrapeRequest> order;
  {
    MutexLock lock(&mu_);
    order = std::exchange(next_, nullptr);
  }
  auto page = std::make_shared<const std::string>(RenderMetrics(*registry_));
  MutexLock lock(&mu_);
  order->page = std::move(page);
  made_.NotifyAll();
}

}  // namespace ballast
