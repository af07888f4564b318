// What llama.cpp's converter calls tensors and modules, and what Hugging Face calls them, by the table of the
// family (GgufNames).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf/gguf_family.h"

namespace llmq {

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight", and modules without their suffix
// likewise; the first, where it is several there; empty where GGUF has no name for it.
std::string gguf_name(const GgufFamily& family, std::string_view hugging_face);
std::vector<std::string> gguf_names(const GgufFamily& family, std::string_view hugging_face);
// The same of what blocks behind the first `layers` hold.
std::vector<std::string> gguf_further_names(const GgufFamily& family, std::string_view hugging_face,
                                            std::int64_t layers);

struct TranslatedName {
  std::string name;  // with a '*' for the number of a matrix, where it is a stack of them
  GgufName::Heads heads = GgufName::Heads::kNone;  // that its rows are
  bool unshifted = false;                          // GgufName::unshifted
  std::string then = {};                           // GgufName::then, as `name` is
};
// "blk.3.attn_q.weight" turned back; empty where it is no name of the first `layers` blocks, or of `further`
// behind them. `has`: whether there is such a tensor beside it; nothing: there is none.
TranslatedName hugging_face_name(const GgufFamily& family, std::string_view gguf,
                                 std::int64_t layers = std::int64_t{1} << 31, std::int64_t further = 0,
                                 const std::function<bool(std::string_view tensor)>& has = {});
// What stands behind "blk.<i>."; all of a name that does not begin so.
std::string_view name_in_gguf_block(std::string_view gguf);
std::int64_t gguf_block_of(std::string_view gguf);  // -1: of none

// Divisors of each frequency, which are tensors in GGUF only: Llama 3's scaling; longrope's.
inline constexpr float kStandsStill = 1e30f;  // a divisor by which an angle becomes none
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight",
                                  kLongFactorsName = "rope_factors_long.weight",
                                  kShortFactorsName = "rope_factors_short.weight";

}  // namespace llmq
