// Each step maps the ranges of the text to finer ones, or rewrites the text and moves the ranges along.
// Linear in the text.
#include "tokenizer/pre_tokenizer.h"

#include <functional>
#include <utility>

#include "base/utf8.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode_classes.h"

namespace llmq {
namespace {

enum class Behaviour { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behaviour behaviour_of(const std::string& name, const std::string& file) {
  if (name == "Removed") return Behaviour::kRemoved;
  if (name == "Isolated") return Behaviour::kIsolated;
  if (name == "MergedWithPrevious") return Behaviour::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behaviour::kMergedWithNext;
  if (name == "Contiguous") return Behaviour::kContiguous;
  refuse_component("Split behaviour", name, file);
}

struct Piece {
  TextRange range;
  bool is_match;
};

// Hugging Face's NormalizedString::split: what becomes of matches and of the text between them.
void append_pieces(std::vector<Piece> pieces, Behaviour behaviour, std::vector<TextRange>& out) {
  std::vector<TextRange> kept;
  bool previous = false;
  if (behaviour == Behaviour::kMergedWithNext) {
    for (std::size_t i = pieces.size(); i-- > 0;) {
      if (pieces[i].is_match && !previous && !kept.empty())
        kept.back().begin = pieces[i].range.begin;
      else
        kept.push_back(pieces[i].range);
      previous = pieces[i].is_match;
    }
    kept = {kept.rbegin(), kept.rend()};
  } else {
    for (const Piece& piece : pieces) {
      const bool extends = behaviour == Behaviour::kMergedWithPrevious ? piece.is_match && !previous
                           : behaviour == Behaviour::kContiguous       ? piece.is_match == previous
                                                                       : false;
      previous = piece.is_match;
      if (behaviour == Behaviour::kRemoved && piece.is_match) continue;
      if (extends && !kept.empty())
        kept.back().end = piece.range.end;
      else
        kept.push_back(piece.range);
    }
  }
  for (const TextRange& range : kept)
    if (range.begin != range.end) out.push_back(range);
}

// Calls found(begin, end), relative to the view, for every match in it.
using Matcher = std::function<void(std::string_view, const std::function<void(std::size_t, std::size_t)>&)>;

class SplitStep final : public PreTokenStep {
 public:
  SplitStep(Matcher matcher, Behaviour behaviour, bool invert)
      : matcher_(std::move(matcher)), behaviour_(behaviour), invert_(invert) {}

  void apply(Words& words) const override {
    std::vector<TextRange> out;
    std::vector<Piece> pieces;
    for (const TextRange& range : words.ranges) {
      pieces.clear();
      std::size_t done = range.begin;
      const std::string_view inside =
          std::string_view(words.text).substr(range.begin, range.end - range.begin);
      matcher_(inside, [&](std::size_t begin, std::size_t end) {
        begin += range.begin;
        end += range.begin;
        if (begin != done) pieces.push_back({{done, begin}, invert_});
        pieces.push_back({{begin, end}, !invert_});
        done = end;
      });
      if (done != range.end) pieces.push_back({{done, range.end}, invert_});
      append_pieces(pieces, behaviour_, out);
    }
    const bool same_start = !out.empty() && !words.ranges.empty() && out[0].begin == words.ranges[0].begin;
    words.starts_text = words.starts_text && same_start;
    words.ranges = std::move(out);
  }

 private:
  Matcher matcher_;
  Behaviour behaviour_;
  bool invert_;
};

class KnownPatternStep final : public PreTokenStep {
 public:
  explicit KnownPatternStep(KnownPattern pattern) : pattern_(pattern) {}
  void apply(Words& words) const override {
    std::vector<TextRange> out;
    out.reserve(words.ranges.size() + words.text.size() / 4);
    for (const TextRange& range : words.ranges) split_known(pattern_, words.text, range, out);
    words.ranges = std::move(out);
  }

 private:
  KnownPattern pattern_;
};

// Digits one by one, or in runs; everything else in runs.
class DigitsStep final : public PreTokenStep {
 public:
  explicit DigitsStep(bool individual) : individual_(individual) {}
  void apply(Words& words) const override {
    std::vector<TextRange> out;
    for (const TextRange& range : words.ranges) split(words.text, range, out);
    words.ranges = std::move(out);
  }

 private:
  void split(std::string_view text, TextRange range, std::vector<TextRange>& out) const {
    const std::uint8_t* classes = unicode_classes();
    bool last_numeric = false;
    std::size_t begin = range.begin;
    for (std::size_t i = range.begin; i < range.end;) {
      const CodePoint c = read_utf8(text, i);
      const bool numeric = (classes[c.value] & kRustNumeric) != 0;
      if (i != begin && (numeric != last_numeric || (numeric && individual_))) {
        out.push_back({begin, i});
        begin = i;
      }
      last_numeric = numeric;
      i += c.bytes;
    }
    if (begin != range.end) out.push_back({begin, range.end});
  }
  bool individual_;
};

// Copies every range through `rewrite` into a new text.
template <typename Rewrite>
void rewrite_ranges(Words& words, Rewrite rewrite) {
  std::string text;
  text.reserve(words.text.size() + words.text.size() / 8);
  for (std::size_t i = 0; i < words.ranges.size(); ++i) {
    TextRange& range = words.ranges[i];
    const std::size_t begin = text.size();
    rewrite(std::string_view(words.text).substr(range.begin, range.end - range.begin),
            i == 0 && words.starts_text, text);
    range = {begin, text.size()};
  }
  words.text = std::move(text);
}

class PrefixSpaceStep final : public PreTokenStep {
 public:
  void apply(Words& words) const override {
    rewrite_ranges(words, [](std::string_view word, bool, std::string& out) {
      if (word.front() != ' ') out += ' ';
      out += word;
    });
  }
};

void append_replaced(std::string_view word, std::string_view replacement, std::string& out) {
  for (const char c : word)
    if (c == ' ')
      out += replacement;
    else
      out += c;
}

class MetaspaceStep final : public PreTokenStep {
 public:
  MetaspaceStep(std::string replacement, std::string scheme)
      : replacement_(std::move(replacement)), scheme_(std::move(scheme)) {}
  void apply(Words& words) const override {
    rewrite_ranges(words, [this](std::string_view word, bool first, std::string& out) {
      const bool has_one = word.front() == ' ' || word.substr(0, replacement_.size()) == replacement_;
      if (!has_one && (scheme_ == "always" || (scheme_ == "first" && first))) out += replacement_;
      append_replaced(word, replacement_, out);
    });
  }

 private:
  std::string replacement_, scheme_;
};

Matcher literal_matcher(std::string needle) {
  return [needle = std::move(needle)](std::string_view text, const auto& found) {
    for (std::size_t at = text.find(needle); at != std::string_view::npos;
         at = text.find(needle, at + needle.size()))
      found(at, at + needle.size());
  };
}

// Runs of characters for which kind(c) is the same non-negative number; negative ones belong to no match.
template <typename Kind>
Matcher run_matcher(Kind kind) {
  return [kind](std::string_view text, const auto& found) {
    std::size_t begin = 0;
    int running = -1;
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint c = read_utf8(text, i);
      const int now = kind(c.value);
      if (now != running) {
        if (running >= 0) found(begin, i);
        begin = i;
        running = now;
      }
      i += c.bytes;
    }
    if (running >= 0) found(begin, text.size());
  };
}

std::shared_ptr<const PreTokenStep> make_split(const Json& json, const std::string& file) {
  const JsonPattern pattern = pattern_of(json, file);
  const Behaviour behaviour = behaviour_of(json.at("behavior").as_string(), file);
  const bool invert = flag_of(json, "invert", false);
  if (!pattern.is_regex) return std::make_shared<SplitStep>(literal_matcher(pattern.text), behaviour, invert);
  // Matches cover all of the text, so that isolating them, or removing what lies between them, is the same.
  const bool plain = behaviour == (invert ? Behaviour::kRemoved : Behaviour::kIsolated);
  if (const auto known = known_pattern(pattern.text); known && plain)
    return std::make_shared<KnownPatternStep>(*known);
  const Regex regex(pattern.text, file);
  return std::make_shared<SplitStep>(
      [regex](std::string_view text, const auto& found) { regex.find_all(text, found); }, behaviour, invert);
}

}  // namespace

void PreTokenizer::add(const Json& json, const std::string& file) {
  const std::string& type = json.at("type").as_string();
  if (type == "Sequence") {
    for (const Json& step : json.at("pretokenizers").items()) add(step, file);
    return;
  }
  if (byte_level_)
    fail(ErrorKind::kUnsupported,
         {"pre-tokenizer '" + type + "' after ByteLevel is not supported", file, "pre_tokenizer", {}});
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (flag_of(json, "add_prefix_space", true)) steps_.push_back(std::make_shared<PrefixSpaceStep>());
    if (flag_of(json, "use_regex", true))
      steps_.push_back(std::make_shared<KnownPatternStep>(KnownPattern::kGpt2));
  } else if (type == "Split") {
    steps_.push_back(make_split(json, file));
  } else if (type == "Digits") {
    steps_.push_back(std::make_shared<DigitsStep>(flag_of(json, "individual_digits", false)));
  } else if (type == "Metaspace") {
    std::string replacement = json.at("replacement").as_string(), scheme = "always";
    if (const Json* given = json.find("prepend_scheme"); is_set(given)) scheme = given->as_string();
    if (scheme != "always" && scheme != "first" && scheme != "never")
      refuse_component("prepend_scheme", scheme, file);
    if (replacement.empty() || read_utf8(replacement, 0).bytes != replacement.size())
      fail(ErrorKind::kBadInput,
           {"Metaspace replaces by one character, found '" + replacement + "'", file, "pre_tokenizer", {}});
    if (!flag_of(json, "add_prefix_space", true))
      scheme = "never";  // as files older than prepend_scheme write it
    steps_.push_back(std::make_shared<MetaspaceStep>(replacement, scheme));
    if (flag_of(json, "split", true))
      steps_.push_back(
          std::make_shared<SplitStep>(literal_matcher(replacement), Behaviour::kMergedWithNext, false));
  } else if (type == "Whitespace") {
    const auto kind = [](char32_t c) {
      return is_class(c, kSpace) ? -1 : is_class(c, kWordCharacter) ? 1 : 0;
    };
    steps_.push_back(std::make_shared<SplitStep>(run_matcher(kind), Behaviour::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    const auto kind = [](char32_t c) { return is_class(c, kSpace) ? 0 : -1; };
    steps_.push_back(std::make_shared<SplitStep>(run_matcher(kind), Behaviour::kRemoved, false));
  } else if (type == "CharDelimiterSplit") {
    const std::string& delimiter = json.at("delimiter").as_string();
    if (delimiter.empty())
      fail(ErrorKind::kBadInput, {"CharDelimiterSplit without a delimiter", file, "pre_tokenizer", {}});
    steps_.push_back(std::make_shared<SplitStep>(literal_matcher(delimiter), Behaviour::kRemoved, false));
  } else {
    refuse_component("pre-tokenizer", type, file);
  }
}

PreTokenizer PreTokenizer::parse(const Json& json, const std::string& file) {
  PreTokenizer made;
  if (!json.is_null()) made.add(json, file);
  return made;
}

}  // namespace llmq
