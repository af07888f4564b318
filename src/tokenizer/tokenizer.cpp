// The whole way of a text: added tokens as written, normalizer, added tokens in normalized form,
// pre-tokenizer, BPE, post-processor.
//
// `truncation` and `padding` of the file are not applied, as Transformers switches them off unless asked.
// `add_bos_token` and the like of tokenizer_config.json are not applied either: Transformers 5 takes the
// post_processor of tokenizer.json as it stands.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/amount_text.h"
#include "base/utf8.h"
#include "io/foreign_file.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tiktoken_file.h"
#include "tokenizer/tokenizer_config.h"

namespace llmq {

struct Tokenizer::State {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  Decoder decoder;
  std::vector<AddedToken> added;  // by id
  StringIndex added_ids;
  AddedTokenFinder as_written, in_normal_form;
  std::vector<std::int32_t> before, after;  // special tokens round a text
  std::optional<std::int32_t> bos, eos;

  const AddedToken* added_token(std::int32_t id) const {
    const auto at = std::lower_bound(added.begin(), added.end(), id,
                                     [](const AddedToken& a, std::int32_t b) { return a.id < b; });
    return at != added.end() && at->id == id ? &*at : nullptr;
  }
  std::optional<std::int32_t> id_of(std::string_view token) const {
    const auto id = added_ids.find(token);
    return id ? id : model.id_of(token);
  }

  // What tokenizer_config.json, or a .gguf, calls the tokens that begin and end a text.
  void read_ends(const Json& config) {
    if (const auto token = token_named(config, "bos_token")) bos = id_of(*token);
    if (const auto token = token_named(config, "eos_token")) eos = id_of(*token);
  }

  void read_added(const Json& list, const std::string& file);
  void read_post_processor(const Json& json, const std::string& file);
  void encode_text(std::string text, bool starts_text, WordCache& cache,
                   std::vector<std::int32_t>& ids) const;
};

// A token of the vocabulary keeps its id there; another takes the next free one, whatever the file says, as
// in Hugging Face's loader.
void Tokenizer::State::read_added(const Json& list, const std::string& file) {
  std::int32_t next = static_cast<std::int32_t>(model.vocabulary_entries());
  std::map<std::int32_t, AddedToken> by_id;
  for (const Json& json : list.items()) {
    AddedToken token;
    token.content = json.at("content").as_string();
    if (token.content.empty()) continue;
    token.single_word = flag_of(json, "single_word", false);
    token.lstrip = flag_of(json, "lstrip", false);
    token.rstrip = flag_of(json, "rstrip", false);
    token.special = flag_of(json, "special", false);
    token.normalized = flag_of(json, "normalized", !token.special);
    const std::int64_t written = json.at("id").as_integer();
    const auto known = id_of(token.content);
    token.id = known ? *known : next++;
    if (written != token.id)
      fail(ErrorKind::kBadInput,
           {fmt::format("added token '{}' is written with id {}, but its place in the vocabulary is {}",
                        token.content, written, token.id),
            file,
            "added_tokens",
            {}});
    token.decoded = token.content;
    if (token.normalized) normalizer.apply(token.decoded);
    added_ids.insert(token.content, token.id);
    by_id.insert_or_assign(token.id, std::move(token));
  }
  for (auto& entry : by_id) added.push_back(std::move(entry.second));
  for (const AddedToken& token : added)
    (token.normalized ? in_normal_form : as_written).add(token.decoded, token);
}

void Tokenizer::State::read_post_processor(const Json& json, const std::string& file) {
  const std::string& type = json.at("type").as_string();
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& step : json.at("processors").items()) read_post_processor(step, file);
    return;
  }
  if (type != "TemplateProcessing") refuse_component("post-processor", type, file);
  std::vector<std::int32_t> left, right;
  int sequences = 0;
  for (const Json& piece : json.at("single").items()) {
    if (piece.find("Sequence") != nullptr) {
      ++sequences;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").as_string();
    for (const Json& id : json.at("special_tokens").at(name).at("ids").items()) {
      const std::int64_t value = id.as_integer();
      if (value < 0 || value > INT32_MAX ||
          (!model.has(static_cast<std::int32_t>(value)) &&
           added_token(static_cast<std::int32_t>(value)) == nullptr))
        fail(ErrorKind::kBadInput,
             {fmt::format("special token '{}' has id {}, which is no token", name, value),
              file,
              "post_processor",
              {}});
      (sequences == 0 ? left : right).push_back(static_cast<std::int32_t>(value));
    }
  }
  if (sequences != 1)
    fail(ErrorKind::kUnsupported, {fmt::format("the template holds the text {} times, not once", sequences),
                                   file,
                                   "post_processor",
                                   {}});
  before.insert(before.begin(), left.begin(), left.end());
  after.insert(after.end(), right.begin(), right.end());
}

// Normalizes and splits a stretch without tokens as written, and appends its ids.
void Tokenizer::State::encode_text(std::string text, bool starts_text, WordCache& cache,
                                   std::vector<std::int32_t>& ids) const {
  normalizer.apply(text);
  std::vector<AddedSpan> spans;
  if (in_normal_form.empty())
    spans.push_back({0, text.size(), std::nullopt});
  else
    spans = in_normal_form.find(text);
  for (const AddedSpan& span : spans) {
    if (span.id) {
      ids.push_back(*span.id);
      continue;
    }
    if (span.begin == span.end) continue;
    Words words;
    // NOLINTNEXTLINE(bugprone-use-after-move): the text of one span is moved, and no span follows
    words.text = spans.size() == 1 ? std::move(text) : text.substr(span.begin, span.end - span.begin);
    words.ranges.push_back({0, words.text.size()});
    words.starts_text = starts_text && span.begin == 0;
    pre_tokenizer.split(words);
    for (const TextRange& range : words.ranges)
      model.encode(std::string_view(words.text).substr(range.begin, range.end - range.begin), cache, ids);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  if (const auto at = first_invalid_utf8(text))
    fail(ErrorKind::kBadInput,
         {fmt::format("text is not UTF-8 at byte {}", *at), {}, {}, "convert it to UTF-8"});
  if (text.size() >= 0xffffffffu)
    fail(ErrorKind::kBadInput,
         {fmt::format("text of {}; at most 4.29 GB are encoded at once", bytes_text(text.size())),
          {},
          {},
          {}});
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (special) ids = state_->before;
  WordCache cache;
  for (const AddedSpan& span : state_->as_written.find(text)) {
    if (span.id)
      ids.push_back(*span.id);
    else
      state_->encode_text(std::string(text.substr(span.begin, span.end - span.begin)), span.begin == 0, cache,
                          ids);
  }
  if (special) ids.insert(ids.end(), state_->after.begin(), state_->after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (const AddedToken* added = state_->added_token(id)) {
      if (!skip_special || !added->special) tokens.push_back(added->decoded);
    } else if (state_->model.has(id)) {
      tokens.push_back(state_->model.tokens()[static_cast<std::size_t>(id)]);
    }
  }
  return state_->decoder.decode(std::move(tokens));
}

bool Tokenizer::is_special(std::int32_t id) const {
  const AddedToken* added = state_->added_token(id);
  return added != nullptr && added->special;
}

std::int32_t Tokenizer::vocabulary_size() const {
  const std::int32_t model = static_cast<std::int32_t>(state_->model.tokens().size());
  return state_->added.empty() ? model : std::max(model, state_->added.back().id + 1);
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const { return state_->id_of(token); }

std::string Tokenizer::token(std::int32_t id) const {
  if (const AddedToken* added = state_->added_token(id)) return added->content;
  if (!state_->model.has(id))
    fail(ErrorKind::kBadInput, "id {} is no token; the vocabulary has {}", id, vocabulary_size());
  return state_->model.tokens()[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::bos() const { return state_->bos; }
std::optional<std::int32_t> Tokenizer::eos() const { return state_->eos; }

namespace {

Json field(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found == nullptr ? Json() : *found;
}

}  // namespace

Tokenizer Tokenizer::parse(const Json& json, const std::string& file) {
  if (!json.is_object())
    fail(ErrorKind::kBadInput, {fmt::format("expected an object, found {}", json.kind()), file, {}, {}});
  const auto state = std::make_shared<State>();
  state->normalizer = Normalizer::parse(field(json, "normalizer"), file);
  state->pre_tokenizer = PreTokenizer::parse(field(json, "pre_tokenizer"), file);
  state->model = Bpe::parse(json.at("model"), state->pre_tokenizer.byte_level(), file);
  state->decoder = Decoder::parse(field(json, "decoder"), file);
  if (const Json* added = json.find("added_tokens"); is_set(added)) state->read_added(*added, file);
  if (const Json* post = json.find("post_processor"); is_set(post)) state->read_post_processor(*post, file);
  if (state->before.size() == 1) state->bos = state->before[0];
  Tokenizer made;
  made.state_ = state;
  return made;
}

namespace {

Json read_tokenizer_file(Io& io, const Path& file) {
  const std::string text = read_text(io, file);
  if (const auto foreign = recognize_foreign_file(std::as_bytes(std::span(text)), "JSON"))
    fail(ErrorKind::kBadInput, {fmt::format("this is {}", foreign->what), file.string(), {}, foreign->hint});
  if (text.empty()) fail(ErrorKind::kBadInput, {"the file is empty", file.string(), {}, "download it again"});
  return Json::parse(text, file.string());
}

}  // namespace

Tokenizer Tokenizer::open(Io& io, const Path& model) {
  if (!io.is_directory(model)) {
    const GgufTokenizer files = gguf_tokenizer(open_gguf(io, model).header);
    Tokenizer made = parse(files.tokenizer, model.string());
    auto state = std::make_shared<State>(*made.state_);
    state->read_ends(files.config);
    made.state_ = state;
    return made;
  }
  const Path file = model / "tokenizer.json", ranks = model / kTiktokenFile;
  const bool of_ranks = !io.exists(file) && io.exists(ranks);
  if (!of_ranks && !io.exists(file))
    fail(ErrorKind::kBadInput, {"no tokenizer.json there",
                                model.string(),
                                {},
                                "save the tokenizer with Transformers' save_pretrained"});
  Tokenizer made =
      of_ranks ? parse(tiktoken_tokenizer(io, ranks, tokenizer_config(io, model).json), ranks.string())
               : parse(read_tokenizer_file(io, file), file.string());
  auto state = std::make_shared<State>(*made.state_);
  state->read_ends(tokenizer_config(io, model).json);
  made.state_ = state;
  return made;
}

}  // namespace llmq
