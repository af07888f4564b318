#include "export/report/source_license.h"

#include <algorithm>
#include <array>

#include "base/sha256.h"
#include "export/gguf/hub_card.h"
#include "io/gguf.h"
#include "io/hub.h"

namespace llmq {
namespace {

// SHA-256 of the licence from its title to its last words, words parted by one space and "https" by "http",
// as some copies have it.
constexpr std::string_view kApacheTitle = "Apache License Version 2.0, January 2004",
                           kApacheEnd = "END OF TERMS AND CONDITIONS",
                           kApacheDigest = "59d8f0ba87ad9a2f1a431123c8d16646e5b89ba53653e818f16d136d77263c99";
constexpr std::size_t kHolders = 300, kAppendix = 1500;  // bytes of what may stand around a licence

constexpr std::string_view kMitText =
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and "
    "associated documentation files (the \"Software\"), to deal in the Software without restriction, "
    "including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, "
    "and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, "
    "subject to the following conditions: The above copyright notice and this permission notice shall be "
    "included in all copies or substantial portions of the Software. THE SOFTWARE IS PROVIDED \"AS IS\", "
    "WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF "
    "MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR "
    "COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF "
    "CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR "
    "OTHER DEALINGS IN THE SOFTWARE.";

// Its words with one space between them.
std::string words_of(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\f\v";
  std::string words;
  for (;;) {
    const std::size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
    text.remove_prefix(begin);
    if (text.empty()) return words;
    const std::size_t end = std::min(text.find_first_of(kSpaces), text.size());
    if (!words.empty()) words += ' ';
    words += text.substr(0, end);
    text.remove_prefix(end);
  }
}

std::string with_http(std::string text) {
  constexpr std::string_view kSecure = "https://";
  for (std::size_t at; (at = text.find(kSecure)) != std::string::npos;) text.erase(at + 4, 1);
  return text;
}

bool is_apache(const std::string& words) {
  const std::size_t begin = words.find(kApacheTitle), last = words.rfind(kApacheEnd);
  if (begin == std::string::npos || last == std::string::npos || last < begin) return false;
  const std::string_view all = words, before = all.substr(0, begin),
                         after = all.substr(last + kApacheEnd.size());
  if (!before.empty() && (!before.starts_with("Copyright") || before.size() > kHolders)) return false;
  const bool appendix = (after.starts_with(" APPENDIX: How to apply the Apache License to your work.") ||
                         after.starts_with(" Copyright")) &&
                        after.ends_with("limitations under the License.") && after.size() <= kAppendix;
  if (!after.empty() && !appendix) return false;
  Sha256 hash;
  hash.update(std::string_view(with_http(words.substr(begin, last + kApacheEnd.size() - begin))));
  return hash.hex() == kApacheDigest;
}

bool is_mit(const std::string& words) {
  if (!words.ends_with(kMitText)) return false;
  const std::string_view before = std::string_view(words).substr(0, words.size() - kMitText.size());
  return before.size() <= kHolders &&
         (before.empty() || before.starts_with("MIT License") || before.starts_with("The MIT License") ||
          before.starts_with("Copyright"));
}

// "mit,apache-2.0", as the readers of front matter join a list; none where one of them is no identifier.
SourceLicense named(std::string_view ids, const std::string& name, const std::string& link) {
  SourceLicense license{{}, name, link};
  while (!ids.empty()) {
    const std::size_t end = std::min(ids.find(','), ids.size());
    if (!is_hub_license(ids.substr(0, end))) return {};
    license.ids.emplace_back(ids.substr(0, end));
    ids.remove_prefix(std::min(end + 1, ids.size()));
  }
  return license.ids.empty() ? SourceLicense{} : license;
}

SourceLicense license_of_gguf(Io& io, const Path& path) {
  const GgufFile file = open_gguf(io, path);
  const auto text = [&](const char* key) { return std::string(file.header.find_string(key).value_or("")); };
  return named(text("general.license"), text("general.license.name"), text("general.license.link"));
}

}  // namespace

std::string license_of_text(std::string_view text) {
  const std::string words = words_of(text);
  return is_apache(words) ? "apache-2.0" : is_mit(words) ? "mit" : "";
}

SourceLicense source_license(Io& io, const Checkpoint& checkpoint) {
  constexpr std::uint64_t kLargestLicense = 1 << 20;
  const Path& directory = checkpoint.path();
  if (checkpoint.is_gguf()) return license_of_gguf(io, directory);
  const ModelCardFields card = read_model_card(io, directory, 0);
  if (SourceLicense said = named(card.text("license"), card.text("license.name"), card.text("license.link"));
      !said.ids.empty())
    return said;
  const Json* const configured = checkpoint.config().find("license");
  if (configured != nullptr && configured->is_string() && is_hub_license(configured->as_string()))
    return {{configured->as_string()}, {}, {}};
  for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md"}) {
    if (!io.exists(directory / name)) continue;
    const std::string id = license_of_text(read_text(io, directory / name, kLargestLicense));
    if (!id.empty()) return {{id}, {}, {}};
  }
  return {};
}

}  // namespace llmq
