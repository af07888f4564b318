#include "tools/command.h"

#include <array>
#include <charconv>

#include "base/error.h"

namespace llmq::tools {

std::shared_ptr<Backend> chosen_backend(const GlobalOptions& globals, const std::string& arithmetic) {
  if (globals.threads < 0 || globals.threads > 1024)
    fail(ErrorKind::kUsage,
         {fmt::format("{} threads", globals.threads), {}, "--threads", "give 1 .. 1024, or leave it out"});
  return make_backend({globals.device, globals.threads, arithmetic});
}

Compute chosen_compute(const GlobalOptions& globals, Compute otherwise) {
  if (globals.compute.empty()) return otherwise;
  if (globals.compute == "float32") return Compute::kFloat32;
  if (globals.compute == "bfloat16") return Compute::kBFloat16;
  fail(ErrorKind::kUsage, {"'" + globals.compute + "' is not an arithmetic of the forward pass",
                           {},
                           "--compute",
                           "use float32 or bfloat16"});
}

const char* compute_name(Compute compute) { return compute == Compute::kFloat32 ? "float32" : "bfloat16"; }

std::uint64_t parse_bytes(const std::string& text, const std::string& flag) {
  if (text.empty()) return 0;
  struct Unit {
    const char* name;
    double bytes;
  };
  static constexpr std::array<Unit, 8> kUnits = {{{"", 1},
                                                  {"B", 1},
                                                  {"KB", 1e3},
                                                  {"MB", 1e6},
                                                  {"GB", 1e9},
                                                  {"KiB", 0x1p10},
                                                  {"MiB", 0x1p20},
                                                  {"GiB", 0x1p30}}};
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(rest, text.data() + text.size());
  for (const Unit& known : kUnits)
    if (error == std::errc() && unit == known.name && number > 0 && number * known.bytes < 0x1p62)
      return static_cast<std::uint64_t>(number * known.bytes);
  fail(ErrorKind::kUsage, {"'" + text + "' is not a size", {}, flag, "write it as 8GiB, 512MiB or 2GB"});
}

}  // namespace llmq::tools
