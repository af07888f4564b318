#include "ranks/launcher.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace llmq {
namespace {

struct KnownLauncher {
  const char *name, *size, *rank;
};
constexpr KnownLauncher kKnownLaunchers[] = {
    {kOpenMpiLauncher, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"mpiexec", "PMI_SIZE", "PMI_RANK"},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};

std::optional<int> number_of(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

std::optional<Launcher> seen_launcher(const std::function<const char*(const char*)>& variable) {
  for (const KnownLauncher& known : kKnownLaunchers) {
    const std::optional<int> size = number_of(variable(known.size)), rank = number_of(variable(known.rank));
    if (size && rank && *size > 0) return Launcher{known.name, *rank, *size, known.size};
  }
  if (const std::optional<int> rank = number_of(variable("PMIX_RANK")))
    return Launcher{"a launcher that speaks PMIx", *rank, 0, "PMIX_RANK"};
  return std::nullopt;
}

std::optional<Launcher> seen_launcher() {
  return seen_launcher([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace llmq
