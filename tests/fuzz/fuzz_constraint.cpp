// Any bytes as a regular expression or a JSON schema: refused with an Error, or texts can be drawn from it,
// inside the budgets; those of a schema are JSON.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8_sequence.h"
#include "grammar/json_schema.h"
#include "grammar/regex_syntax.h"
#include "grammar/text_automaton.h"

namespace {

using namespace llmq;

TextProgram program_of(char kind, std::string_view text) {
  ByteSet bytes;
  bytes.fill(true);
  TextProgramBuilder builder("input");
  constexpr TextPlace kEnd = kTextEnd;
  const TextPlace start =
      kind == 's'   ? schema_texts(builder, Json::parse(text, "input", {1u << 20, 64}), "input")
      : kind == 'i' ? regex_texts(builder, text, RegexReach::kInside, Spelling::kPlain, "input", kEnd)
                    : regex_texts(builder, text, RegexReach::kWhole, Spelling::kPlain, "input", kEnd);
  return std::move(builder).finish(start, bytes);
}

void draw(TextAutomaton& automaton, bool json, std::uint64_t random) {
  std::string text;
  automaton.renew();  // once: what a token may cost, for the whole text
  TextAutomaton::State state = automaton.start();
  while (!automaton.complete(state)) {
    if (text.size() > 100) return;
    random = random * 6364136223846793005u + 1442695040888963407u;
    TextAutomaton::State next = TextAutomaton::kDead;
    int byte = static_cast<int>(random >> 56);
    for (int tried = 0; tried < 256 && next == TextAutomaton::kDead; ++tried)
      next = automaton.step(state, static_cast<std::uint8_t>(++byte &= 255));
    if (next == TextAutomaton::kDead) {
      if (automaton.accepts(state)) break;
      std::abort();  // begun, and cannot be finished
    }
    text += static_cast<char>(byte);
    state = automaton.states() > 2000 ? automaton.restart(next) : next;
  }
  if (!is_utf8(text)) std::abort();
  if (!json) return;
  try {
    Json::parse(text, "drawn");
  } catch (const Error& error) {
    if (error.detail().message.find("twice") == std::string::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const char kind = static_cast<char>(bytes[0]);
  try {
    TextAutomaton automaton(std::make_shared<const TextProgram>(program_of(kind, text)));
    for (std::uint64_t seed = 0; seed < 4; ++seed) draw(automaton, kind == 's', seed * 7919 + size);
  } catch (const Error& error) {
    if (exit_code(error.kind()) != 2) std::abort();
  }
  return 0;
}
