// Where the texts that ship with llmq lie: $LLMQ_SHARE, beside the installed program (<prefix>/bin ->
// <prefix>/share/llmq), or the source tree, which programs that are passed on do not know.
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "calibration/calibration_text.h"

namespace llmq {
namespace {

struct BuiltinText {
  std::string_view name, file;
};
constexpr std::array<BuiltinText, 4> kBuiltin = {{{"c4", "calibration/c4.utf8"},
                                                  {"code", "calibration/code.utf8"},
                                                  {"technical", "calibration/technical.utf8"},
                                                  {"wikitext-2", "wikitext-2/wiki.test.raw"}}};

std::vector<Path> share_directories() {
  std::vector<Path> places;
  if (const char* chosen = std::getenv("LLMQ_SHARE"); chosen != nullptr && *chosen != '\0')
    places.emplace_back(chosen);
  const Path program = own_program();
  if (!program.empty()) places.push_back(program.parent_path().parent_path() / "share" / "llmq");
  if constexpr (!std::string_view(LLMQ_SOURCE_SHARE).empty()) places.emplace_back(LLMQ_SOURCE_SHARE);
  return places;
}

}  // namespace

Path resolve_text(Io& io, const std::string& text) {
  constexpr std::string_view kPrefix = "builtin:";
  if (text.compare(0, kPrefix.size(), kPrefix) != 0) return Path(text);
  const std::string name = text.substr(kPrefix.size());
  std::string known;
  for (const BuiltinText& builtin : kBuiltin) {
    if (builtin.name != name) {
      known += (known.empty() ? "builtin:" : ", builtin:") + std::string(builtin.name);
      continue;
    }
    std::string tried;
    for (const Path& share : share_directories()) {
      Path path = share / builtin.file;
      if (io.exists(path)) return path;
      tried += (tried.empty() ? "" : ", ") + share.string();
    }
    fail(ErrorKind::kBadInput, {"the text that ships with llmq is not there",
                                text,
                                {},
                                "looked in " + tried + "; set LLMQ_SHARE to the folder that holds it"});
  }
  fail(ErrorKind::kUsage, {"no built-in text is called '" + name + "'", {}, text, "there are " + known});
}

}  // namespace llmq
