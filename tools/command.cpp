#include "tools/command.h"

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/automatic_device.h"

namespace llmq::tools {

std::string chosen_device(const GlobalOptions& globals, const std::string& arithmetic) {
  if (globals.device != "auto") return globals.device;
  if (!arithmetic.empty()) return "cpu";
  const AutomaticDevice& found = automatic_device();
  static bool said = false;
  if (!std::exchange(said, true)) {
    if (found.has_gpu)
      Log::get().note(found.why);
    else
      Log::get().detail(found.why);
  }
  return found.device;
}

std::shared_ptr<Backend> chosen_backend(const GlobalOptions& globals, const std::string& arithmetic,
                                        DeviceUse use) {
  if (globals.threads < 0 || globals.threads > 1024)
    fail(ErrorKind::kUsage,
         {fmt::format("{} threads", globals.threads), {}, "--threads", "give 1 .. 1024, or leave it out"});
  std::shared_ptr<Backend> backend =
      make_backend({chosen_device(globals, arithmetic), globals.threads, arithmetic, use});
  static bool said = false;  // some commands choose again
  if (const std::string why = backend->slower_than_possible(); !why.empty() && !said) {
    Log::get().warn(why);
    said = true;
  }
  return backend;
}

Compute chosen_compute(const GlobalOptions& globals, Compute otherwise) {
  if (globals.compute.empty()) return otherwise;
  if (const std::optional<Compute> compute = compute_named(globals.compute)) return *compute;
  fail(ErrorKind::kUsage, {"'" + globals.compute + "' is not an arithmetic of the forward pass",
                           {},
                           "--compute",
                           "use float32 or bfloat16"});
}

namespace {

struct Unit {
  const char* name;
  double size;
};

constexpr std::array<Unit, 1> kPlain = {{{"", 1}}};

// A positive number and one of the units behind it; nothing for another text.
std::optional<double> measured(const std::string& text, std::span<const Unit> units) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(rest, text.data() + text.size());
  for (const Unit& known : units)
    if (error == std::errc() && unit == known.name && number > 0) return number * known.size;
  return std::nullopt;
}

}  // namespace

CLI::Validator number_between(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto number = measured(text, kPlain);
        return number && *number >= least && *number <= most
                   ? std::string()
                   : fmt::format("'{}' is no number from {} to {}", text, least, most);
      },
      {});
}

std::uint64_t parse_bytes(const std::string& text, const std::string& flag) {
  static constexpr std::array<Unit, 8> kUnits = {{{"", 1},
                                                  {"B", 1},
                                                  {"KB", 1e3},
                                                  {"MB", 1e6},
                                                  {"GB", 1e9},
                                                  {"KiB", 0x1p10},
                                                  {"MiB", 0x1p20},
                                                  {"GiB", 0x1p30}}};
  if (text.empty()) return 0;
  if (const auto bytes = measured(text, kUnits); bytes && *bytes < 0x1p62)
    return static_cast<std::uint64_t>(*bytes);
  fail(ErrorKind::kUsage, {"'" + text + "' is not a size", {}, flag, "write it as 8GiB, 512MiB or 2GB"});
}

double parse_seconds(const std::string& text, const std::string& flag) {
  static constexpr std::array<Unit, 4> kUnits = {{{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  if (const auto seconds = measured(text, kUnits); seconds && *seconds <= 1e6) return *seconds;
  fail(ErrorKind::kUsage,
       {"'" + text + "' is no time between 0 and 1000000 seconds", {}, flag, "write it as 60s, 5m or 1h"});
}

}  // namespace llmq::tools
