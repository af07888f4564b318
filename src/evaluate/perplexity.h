// Perplexity by a named protocol, and the divergence of a model from its original on the same tokens.
//
//   ppl = exp(-1/N sum_i log p(x_i | x_<i)),  standard error by the delta method over scored tokens: ppl *
//                                             sd(nll) / sqrt(N)
//   KL  = mean_i KL(p_original(.|x_<i) || p_quantized(.|x_<i)) in nats, over the scored positions; top-1 =
//       share of equal arg-max
//
// Logits are made a few rows at a time and never stored for a window; sums are FP64 in token order, so the
// same file gives the same digits at any batch or thread count. Ranks share windows: rank r of N has r, r +
// N, ..., and rank 0 adds up what they found, in the order of one process. Protocols and measures in words:
// docs/terms.md.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ranks/ranks.h"
#include "runtime/engine.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct PerplexityProtocol {
  std::string name = "hf";  // "hf" | "llama.cpp" | "lm-eval"
  std::int64_t context = 2048;
  std::int64_t stride = 2048;
  std::int64_t max_windows = 0;  // 0: all
  std::string id() const;        // "hf-2048", "llama.cpp-512", "lm-eval-2048", "hf-2048-stride-1024"
};

// Resolves defaults against a model: hf and lm-eval min(2048, max_position), llama.cpp 512.
PerplexityProtocol resolve_protocol(const std::string& name, std::optional<std::int64_t> context,
                                    std::optional<std::int64_t> stride, std::int64_t max_windows,
                                    const ModelSpec& spec);

struct Window {
  std::vector<std::int32_t> tokens;
  std::int64_t first_scored = 1;
};  // positions first_scored .. size-1 are targets
// `first`: the token that llama.cpp puts over the first of each window (none: nothing), and lm-eval before
// the text.
std::vector<Window> cut_windows(std::span<const std::int32_t> ids, const PerplexityProtocol& protocol,
                                std::optional<std::int32_t> first);

struct Divergence {
  double kl_mean = 0, kl_stderr = 0, kl_p99 = 0, kl_max = 0, top1_agreement = 0;
  double reference_ppl = 0, reference_ppl_stderr = 0, delta_ppl = 0;
};
struct PerplexityResult {
  double ppl = 0, ppl_stderr = 0, mean_nll = 0, seconds = 0;
  std::int64_t windows = 0, scored_tokens = 0, evaluated_tokens = 0;
  std::optional<Divergence> against;
};

// What a rank sends of a window, for each engine.
std::uint64_t shared_score_bytes(const Window& window);

// Each of `engines` on the same windows. `against`: the original, run beside them once for all; null for
// none. `on_window` (may be empty) hears the running perplexity of the first, over this rank's windows. The
// seconds are those of all together. `shared_by`: who shares the windows, each with engines of its own; null
// for this process alone. The results are rank 0's; other ranks get none. Each rank holds 32 bytes for each
// token that it scored with each engine; rank 0 those of all ranks, and its own a second time. With `against`
// there are 8 bytes more for each token and engine, of one process, too.
std::vector<PerplexityResult> evaluate_perplexities(
    std::span<Engine* const> engines, Engine* against, std::span<const Window> windows,
    const std::function<void(std::int64_t done, double ppl)>& on_window = {}, Ranks* shared_by = nullptr);

// The same of one.
PerplexityResult evaluate_perplexity(
    Engine& engine, Engine* against, std::span<const Window> windows,
    const std::function<void(std::int64_t done, double ppl)>& on_window = {});

}  // namespace llmq
