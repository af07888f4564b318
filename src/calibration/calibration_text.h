// Calibration text -> token batches: samples of one length, seeded, their hash recorded.
//
// Sources: .txt/.utf8 (one text), .jsonl with `text` or `messages`, .ids.json / .jsonl of arrays (pre-made
// ids), "builtin:c4" and its like (base/builtin text that ships with llmq). shuffle false: sample i is tokens
// [i*L, (i+1)*L) of the concatenation; true: a seeded permutation of all such samples.
//
// chat_template: lines of .jsonl with `messages`, and `tools` where a chat has some, each with the ids that
// Transformers' apply_chat_template() gives it. Templates that write the date are told the 26th of July 2024,
// which is what Llama's own fall back to: a job has the same bytes on any day.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct CalibrationRequest {
  std::vector<std::string> text = {"builtin:c4"};
  std::int64_t samples = 128, sequence_length = 512;
  std::uint64_t seed = 42;
  bool shuffle = true;
  bool chat_template = false;  // messages are read as a chat, not joined plainly
  bool operator==(const CalibrationRequest&) const = default;
};

struct CalibrationSet {
  std::vector<std::vector<std::int32_t>> samples;
  std::string sha256;  // over the ids, little-endian int32, sample after sample
  std::int64_t tokens() const;
};

// `chat`: the model's, where the request has chat_template. Error(kBadInput) when the text is too short
// (found and needed tokens, and what would do), and with the line of a chat that is none or that its template
// refuses.
CalibrationSet load_calibration(Io& io, const CalibrationRequest& request, const Tokenizer& tokenizer,
                                const std::optional<ChatTemplate>& chat = std::nullopt);

// A permutation of 0 .. count-1 that depends on the seed alone (calibration_text.cpp says which).
std::vector<std::size_t> seeded_permutation(std::size_t count, std::uint64_t seed);

// "builtin:NAME" -> path of a file under the installed or source share/ folder; other names are paths
// already. Error(kUsage) lists the builtin names.
Path resolve_text(Io& io, const std::string& text);

}  // namespace llmq
