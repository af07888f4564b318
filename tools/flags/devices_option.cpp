#include "tools/flags/devices_option.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace llmq::tools {
namespace {

constexpr int kMostOnTheHost = 16;  // of devices that share the cores, as tests need them

[[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
  fail(ErrorKind::kUsage, {what, {}, "--devices", remedy});
}

}  // namespace

void add_devices_option(CLI::App& command, std::optional<std::string>& devices) {
  command
      .add_option("--devices", devices,
                  "Numbers of devices of --device that share the work, such as 0,1: samples and rows are "
                  "spread over them. The output is that of one")
      ->type_name("N,...");
}

std::vector<int> parse_devices(const std::string& devices) {
  const std::string remedy = "give different numbers, such as 0,1";
  std::vector<int> numbers;
  for (std::size_t first = 0; first <= devices.size();) {
    const std::size_t end = std::min(devices.find(',', first), devices.size());
    const std::string word = devices.substr(first, end - first);
    int number = -1;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), number);
    if (read.ec != std::errc() || read.ptr != word.data() + word.size() || number < 0)
      refuse(fmt::format("'{}' of '{}' is no number of a device", word, devices), remedy);
    if (std::find(numbers.begin(), numbers.end(), number) != numbers.end())
      refuse(fmt::format("device {} stands twice in '{}'", number, devices), remedy);
    numbers.push_back(number);
    first = end + 1;
  }
  return numbers;
}

std::vector<std::shared_ptr<Backend>> chosen_devices(const GlobalOptions& globals,
                                                     const std::vector<int>& numbers,
                                                     const std::string& arithmetic, DeviceUse use) {
  if (numbers.empty()) return {chosen_backend(globals, arithmetic, use)};
  const std::string device = chosen_device(globals, arithmetic);
  const bool cpu = device == "cpu";
  if (!cpu && device != "cuda" && device != "emulated")
    refuse("--device " + device + " is one device", "use --device cuda, or leave --devices out");
  if (const int most = *std::max_element(numbers.begin(), numbers.end());
      device != "cuda" && most >= kMostOnTheHost)
    refuse(fmt::format("there is no device {} of --device {}", most, device),
           fmt::format("give numbers of 0 .. {}", kMostOnTheHost - 1));
  std::vector<std::shared_ptr<Backend>> backends;
  for (const int number : numbers) {
    GlobalOptions one = globals;
    one.device = cpu ? device : fmt::format("{}:{}", device, number);
    if (!backends.empty())
      one.threads = std::max(1, backends.front()->workers().size() / static_cast<int>(numbers.size()));
    backends.push_back(chosen_backend(one, arithmetic, use));
    if (backends.back()->arithmetic() != backends.front()->arithmetic())
      refuse(fmt::format("{} computes otherwise than {}", backends.back()->name(), backends.front()->name()),
             "give devices of one type");
  }
  return backends;
}

}  // namespace llmq::tools
