// Unicode forms: utf8proc decomposes one character at a time and composes a whole buffer; putting marks into
// canonical order in between is done here with a stable sort, because utf8proc's own bubble sort is quadratic
// in a run of marks. Text below U+0300 is its own NFC and NFD boundary, so that only stretches above it are
// touched.
#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"
#include "tokenizer/text_replace.h"
#include "tokenizer/unicode_classes.h"

namespace llmq {
namespace {

struct Mark {
  utf8proc_int32_t code;
  int combining;
};

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Sorts every run of marks (combining class above 0) by class, keeping the order of equals.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  std::vector<Mark> marks;
  for (std::size_t i = 0; i < codes.size();) {
    const std::size_t begin = i;
    marks.clear();
    while (i < codes.size()) {
      const int combining = combining_class(codes[i]);
      if (combining == 0) break;
      marks.push_back({codes[i++], combining});
    }
    if (marks.size() > 1) {
      std::stable_sort(marks.begin(), marks.end(),
                       [](const Mark& a, const Mark& b) { return a.combining < b.combining; });
      for (std::size_t k = 0; k < marks.size(); ++k) codes[begin + k] = marks[k].code;
    }
    if (i == begin) ++i;
  }
}

// Normalizes one stretch that holds no inert code point.
void normalize_stretch(std::string_view text, NormalForm form, std::string& out) {
  const bool compatible = form == NormalForm::kKC || form == NormalForm::kKD;
  const bool compose = form == NormalForm::kC || form == NormalForm::kKC;
  const int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() / 2 + 1);
  std::array<utf8proc_int32_t, 64> parts;  // the longest decomposition has 18 code points
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = read_utf8(text, i);
    i += c.bytes;
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c.value), parts.data(), static_cast<utf8proc_ssize_t>(parts.size()),
        static_cast<utf8proc_option_t>(options), &boundary);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size()))
      fail(ErrorKind::kInternal, "U+{:04X} does not decompose", static_cast<unsigned>(c.value));
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(codes);
  if (compose) {
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    codes.resize(static_cast<std::size_t>(std::max<utf8proc_ssize_t>(count, 0)));
  }
  for (const utf8proc_int32_t code : codes) append_utf8(out, static_cast<char32_t>(code));
}

}  // namespace

std::string unicode_normalize(std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::kKC || form == NormalForm::kKD;
  // Below this nothing changes and nothing combines with what stands before it.
  const char32_t plain = compatible ? 0xa0 : form == NormalForm::kD ? 0xc0 : 0x300;
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0, starter = 0;  // `starter`: the last plain character, which a mark after it may change
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = read_utf8(text, i);
    if (c.value < plain) {
      starter = i;
      i += c.bytes;
      continue;
    }
    if (is_class(c.value, kInert)) {
      i += c.bytes;
      starter = i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size()) {
      const CodePoint next = read_utf8(text, end);
      if (next.value < plain || is_class(next.value, kInert)) break;
      end += next.bytes;
    }
    out.append(text, done, starter - done);
    normalize_stretch(text.substr(starter, end - starter), form, out);
    done = starter = i = end;
  }
  out.append(text, done, text.size() - done);
  return out;
}

namespace {

class FormStep final : public NormalizerStep {
 public:
  explicit FormStep(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { text = unicode_normalize(text, form_); }

 private:
  NormalForm form_;
};

class PrependStep final : public NormalizerStep {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceStep final : public NormalizerStep {
 public:
  ReplaceStep(std::string needle, std::string content)
      : needle_(std::move(needle)), content_(std::move(content)) {}
  void apply(std::string& text) const override { text = replace_all(text, needle_, content_); }

 private:
  std::string needle_, content_;
};

class RegexReplaceStep final : public NormalizerStep {
 public:
  RegexReplaceStep(Regex regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}
  void apply(std::string& text) const override {
    std::string out;
    std::size_t done = 0;
    regex_.find_all(text, [&](std::size_t begin, std::size_t end) {
      out.append(text, done, begin - done);
      out += content_;
      done = end;
    });
    out.append(text, done);
    text = std::move(out);
  }

 private:
  Regex regex_;
  std::string content_;
};

class StripStep final : public NormalizerStep {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
    std::size_t begin = 0, end = text.size();
    while (right_ && end > 0 && is_class(read_utf8_before(text, end).value, kSpace))
      end -= read_utf8_before(text, end).bytes;
    while (left_ && begin < end && is_class(read_utf8(text, begin).value, kSpace))
      begin += read_utf8(text, begin).bytes;
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class ByteLevelStep final : public NormalizerStep {
 public:
  void apply(std::string& text) const override { text = to_byte_alphabet(text); }
};

}  // namespace

void Normalizer::add(const Json& json, const std::string& file) {
  const std::string& type = json.at("type").as_string();
  const auto form = [&](NormalForm f) { steps_.push_back(std::make_shared<FormStep>(f)); };
  if (type == "Sequence") {
    for (const Json& step : json.at("normalizers").items()) add(step, file);
  } else if (type == "NFC") {
    form(NormalForm::kC);
  } else if (type == "NFD") {
    form(NormalForm::kD);
  } else if (type == "NFKC") {
    form(NormalForm::kKC);
  } else if (type == "NFKD") {
    form(NormalForm::kKD);
  } else if (type == "Prepend") {
    steps_.push_back(std::make_shared<PrependStep>(json.at("prepend").as_string()));
  } else if (type == "Replace") {
    const JsonPattern pattern = pattern_of(json, file);
    const std::string& content = json.at("content").as_string();
    if (pattern.is_regex)
      steps_.push_back(std::make_shared<RegexReplaceStep>(Regex(pattern.text, file), content));
    else
      steps_.push_back(std::make_shared<ReplaceStep>(pattern.text, content));
  } else if (type == "Strip") {
    steps_.push_back(
        std::make_shared<StripStep>(flag_of(json, "strip_left", true), flag_of(json, "strip_right", true)));
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_shared<ByteLevelStep>());
  } else {
    refuse_component("normalizer", type, file);
  }
}

Normalizer Normalizer::parse(const Json& json, const std::string& file) {
  Normalizer made;
  if (!json.is_null()) made.add(json, file);
  return made;
}

}  // namespace llmq
