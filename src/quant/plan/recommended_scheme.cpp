#include "quant/plan/recommended_scheme.h"
#include "base/amount_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <compare>
#include <string>

namespace llmq {
namespace {

// How good a choice is where memory allows it: more bits first; among equals what the machine multiplies
// fastest, then what llmq's own methods choose codes for. A GGUF is for llama.cpp, and on the named machines
// the last resort.
struct Preference {
  int native = 0, bits = 0, kind = 0;
  auto operator<=>(const Preference&) const = default;  // NOLINT(modernize-use-nullptr): it compares with 0
};
Preference preference(const SchemeEstimate& scheme, const std::optional<QuantScheme>& packed,
                      const MachineRates& machine) {
  Preference p;
  if (scheme.scheme == kOriginalScheme) return p;  // nothing is gained
  if (!packed) {
    const std::size_t digit = scheme.scheme.find_first_of("0123456789");
    p.native = machine.measured ? 1 : 0;
    p.bits = digit == std::string::npos ? 0 : scheme.scheme[digit] - '0';
    if (scheme.scheme.find("16") != std::string::npos || scheme.scheme.find("32") != std::string::npos)
      p.bits = 0;
    return p;
  }
  p.native = 1;
  p.bits = packed->bits;
  const bool float8 = packed->weight_type == WeightType::kFloat8;
  p.kind = 1;
  if (packed->rounds_inputs() && !packed->rounds_inputs_in_float_groups())
    p.kind =
        float8 ? (machine.float8_flops > 0 ? 3 : 0) : (machine.int8_flops > 0 || machine.measured ? 2 : 0);
  return p;
}

std::uint64_t largest_bytes(const SchemeEstimate& scheme) {
  std::uint64_t bytes = 0;
  for (const EstimatedCell& cell : scheme.cells) bytes = std::max(bytes, cell.bytes);
  return bytes;
}

}  // namespace

void recommend_scheme(Estimate& e, const std::vector<std::optional<QuantScheme>>& packed) {
  std::size_t best = e.schemes.size(), smallest = e.schemes.size();
  std::string too_large;
  Preference best_preference;
  for (std::size_t i = 0; i < e.schemes.size(); ++i) {
    const SchemeEstimate& scheme = e.schemes[i];
    if (!scheme.refusal.empty()) continue;
    if (smallest == e.schemes.size() || largest_bytes(scheme) < largest_bytes(e.schemes[smallest]))
      smallest = i;
    const Preference p = preference(scheme, packed[i], e.machine);
    if (!scheme.fits()) continue;
    if (best == e.schemes.size() || p > best_preference) best = i, best_preference = p;
  }
  if (best == e.schemes.size()) {
    e.reason = smallest == best ? "no scheme is for this model"
                                : fmt::format("no scheme fits {} in every cell: the smallest, {}, needs {}",
                                              bytes_text(e.budget), e.schemes[smallest].scheme,
                                              bytes_text(largest_bytes(e.schemes[smallest])));
    return;
  }
  for (std::size_t i = 0; i < e.schemes.size(); ++i)
    if (e.schemes[i].refusal.empty() && !e.schemes[i].fits() &&
        preference(e.schemes[i], packed[i], e.machine) > best_preference)
      too_large += (too_large.empty() ? "" : ", ") + e.schemes[i].scheme;
  const SchemeEstimate& chosen = e.schemes[best];
  e.recommended = chosen.scheme;
  e.reason = fmt::format("the most bits below the original's of what fits {} in every cell ({} at most)",
                         bytes_text(e.budget), bytes_text(largest_bytes(chosen)));
  if (chosen.scheme == kOriginalScheme)
    e.reason = "nothing smaller was asked for, and it fits " + bytes_text(e.budget);
  if (best_preference.kind == 3) e.reason += "; this machine multiplies FP8 faster than BF16";
  if (best_preference.kind == 2) e.reason += "; this machine multiplies 8-bit codes as they are";
  if (!too_large.empty()) e.reason += "; too large: " + too_large;
  if (best_preference.bits == 4) e.reason += "; at 4 bits --method awq,gptq loses least";
  if (best_preference.bits < 4 && chosen.scheme != kOriginalScheme)
    e.reason += "; expect a loss that users notice, and measure it with llmq eval-ppl --against";
}

}  // namespace llmq
