#include "server/admin/scraper.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/sync.h"
#include "server/admin/exposition.h"

namespace ballast {

std::string Scraper::Page() {
  Mutex mu;
  CondVar made;
  bool done = false;
  std::string page;
  const bool posted = thread_.Post([&] {
    std::string text = RenderMetrics(*registry_);
    MutexLock lock(&mu);
    page = std::move(text);
    done = true;
    made.NotifyAll();
  });
  BALLAST_CHECK(posted);  // The thread ends with this object.
  MutexLock lock(&mu);
  while (!done) made.Wait(&mu);
  return page;
}

}  // namespace ballast
