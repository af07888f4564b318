#include "export/output/lock_words.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>

namespace llmq {

std::string lock_words() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("process {} on {} since {:04}-{:02}-{:02} {:02}:{:02} UTC\n", ::getpid(), host.data(),
                     utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min);
}

}  // namespace llmq
