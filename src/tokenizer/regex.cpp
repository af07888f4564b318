// Oniguruma 6.9. A compiled expression is read only while matching, so that one Regex serves many threads.
#include "tokenizer/regex.h"

#include <oniguruma.h>

#include "base/error.h"

namespace llmq {
namespace {

constexpr unsigned long kRetriesPerByte = 64;  // the known patterns need fewer than 8
constexpr unsigned long kRetriesAtLeast = 1u << 20;

void start_library() {
  static const int ready = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  if (ready != ONIG_NORMAL) fail(ErrorKind::kInternal, "oniguruma does not start: code {}", ready);
}

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

}  // namespace

struct Regex::Compiled {
  OnigRegex regex = nullptr;
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

Regex::Regex(std::string pattern, const std::string& file) : pattern_(std::move(pattern)), file_(file) {
  start_library();
  const auto compiled = std::make_shared<Compiled>();
  OnigErrorInfo about;
  const OnigUChar* begin = bytes_of(pattern_);
  const int code = onig_new(&compiled->regex, begin, begin + pattern_.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &about);
  if (code != ONIG_NORMAL) {
    compiled->regex = nullptr;
    OnigUChar words[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int size = onig_error_code_to_str(words, code, &about);
    fail(ErrorKind::kBadInput,
         {"regular expression '" + pattern_ + "' is not valid: " +
              std::string(reinterpret_cast<const char*>(words), static_cast<std::size_t>(size)),
          file,
          {},
          {}});
  }
  compiled_ = compiled;
}

void Regex::find_all(std::string_view text,
                     const std::function<void(std::size_t, std::size_t)>& found) const {
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* r) { onig_region_free(r, 1); });
  const std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(),
                                                                          onig_free_match_param);
  if (!region || !limits) throw std::bad_alloc();
  onig_initialize_match_param(limits.get());
  const unsigned long retries = kRetriesAtLeast + kRetriesPerByte * text.size();
  onig_set_retry_limit_in_match_of_match_param(limits.get(), retries);
  onig_set_retry_limit_in_search_of_match_param(limits.get(), retries);

  const OnigUChar* begin = bytes_of(text);
  const OnigUChar* end = begin + text.size();
  std::size_t at = 0, last_end = 0;
  bool any = false;
  while (at <= text.size()) {
    const int code = onig_search_with_param(compiled_->regex, begin, end, begin + at, end, region.get(),
                                            ONIG_OPTION_NONE, limits.get());
    if (code == ONIG_MISMATCH) return;
    if (code < 0)
      fail(ErrorKind::kUnsupported, {"regular expression '" + pattern_ + "' needs more than " +
                                         std::to_string(retries) + " steps on this text",
                                     file_,
                                     {},
                                     {}});
    const std::size_t from = static_cast<std::size_t>(region->beg[0]),
                      to = static_cast<std::size_t>(region->end[0]);
    const bool empty_after_match = from == to && any && from == last_end;  // not where the last match ended
    if (!empty_after_match) found(from, to);
    any = true;
    last_end = to;
    at = to;
    if (from == to) {  // step over one character
      ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
    }
  }
}

}  // namespace llmq
