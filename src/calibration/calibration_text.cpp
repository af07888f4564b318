// Sources are tokenized one after the other into one stream of ids, cut into samples of L; a seeded
// permutation may choose among them.
//
// The generator is SplitMix64 (base/split_mix64.h) from the seed. The permutation is Fisher-Yates from the
// last index down, each draw below n by multiply-shift with rejection (Lemire 2019), so it is unbiased and
// the same everywhere.
#include "calibration/calibration_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/split_mix64.h"

namespace llmq {
namespace {

constexpr std::uint64_t kLargestText = std::uint64_t{1} << 30;

// Uniform in [0, n).
std::uint64_t draw_below(SplitMix64& random, std::uint64_t n) {
  const std::uint64_t threshold = (0 - n) % n;  // 2^64 mod n draws are rejected
  for (;;) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(random.next()) * n;
    if (static_cast<std::uint64_t>(product) >= threshold) return static_cast<std::uint64_t>(product >> 64);
  }
}

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

using Ids = std::vector<std::int32_t>;

// A JSON array of ids, each below the vocabulary.
void append_ids(const Json& array, std::int32_t vocabulary, const std::string& file, const std::string& where,
                Ids& ids) {
  if (!array.is_array())
    fail(ErrorKind::kBadInput,
         {std::string("expected an array of ids, found ") + array.kind(), file, where, {}});
  for (const Json& item : array.items()) {
    if (item.is_array()) {
      append_ids(item, vocabulary, file, where, ids);
      continue;
    }
    if (!item.is_integer())
      fail(ErrorKind::kBadInput, {std::string("expected an id, found ") + item.kind(), file, where, {}});
    const std::int64_t id = item.as_integer();
    if (id < 0 || id >= vocabulary)
      fail(ErrorKind::kBadInput, {fmt::format("id {} is outside the vocabulary of {}", id, vocabulary), file,
                                  where, "make the ids with this model's tokenizer"});
    ids.push_back(static_cast<std::int32_t>(id));
  }
}

// `messages`: the contents joined by blank lines; roles are a chat template's business.
std::string joined_messages(const Json& messages, const std::string& file, const std::string& where) {
  if (!messages.is_array()) fail(ErrorKind::kBadInput, {"'messages' is not an array", file, where, {}});
  std::string text;
  for (const Json& message : messages.items()) {
    const Json* content = message.find("content");
    if (content == nullptr || !content->is_string())
      fail(ErrorKind::kBadInput,
           {"a message has no 'content' string", file, where, "write {\"role\": ..., \"content\": \"...\"}"});
    text += (text.empty() ? "" : "\n\n") + content->as_string();
  }
  return text;
}

void check_message(const Json& message, const std::string& file, const std::string& where) {
  const auto refuse = [&](const std::string& found, const std::string& hint) {
    fail(ErrorKind::kBadInput, {found, file, where, hint});
  };
  const std::string roles = fmt::format("roles are {}", fmt::join(kChatRoles, ", "));
  if (!message.is_object())
    refuse(std::string("a message is an object, found ") + message.kind(),
           "write {\"role\": ..., \"content\": \"...\"}");
  const Json* const role = message.find("role");
  if (role == nullptr || !role->is_string()) refuse("a message has no 'role'", roles);
  if (std::find(kChatRoles.begin(), kChatRoles.end(), role->as_string()) == kChatRoles.end())
    refuse(fmt::format("a message has the role {}", role->dump()), roles);
  const Json *const content = message.find("content"), *const calls = message.find("tool_calls");
  if ((content == nullptr || content->is_null()) && calls == nullptr)
    refuse("a message has no 'content'", "write {\"role\": ..., \"content\": \"...\"}");
}

// The day on which every template runs.
std::tm calibration_date() {
  std::tm date{};
  date.tm_year = 124, date.tm_mon = 6, date.tm_mday = 26, date.tm_wday = 5, date.tm_yday = 207;
  return date;
}

// The chat of a line, as its template writes it.
std::string rendered_chat(const Json& line, const ChatTemplate& chat, const std::string& file,
                          const std::string& where) {
  const Json* const messages = line.is_object() ? line.find("messages") : nullptr;
  if (messages == nullptr || !messages->is_array() || messages->items().empty())
    fail(ErrorKind::kBadInput, {"the line has no 'messages', a list of at least one message", file, where,
                                "write {\"messages\": [...]}, or chat_template: false"});
  for (std::size_t i = 0; i < messages->items().size(); ++i)
    check_message(messages->items()[i], file, fmt::format("{}, messages[{}]", where, i));
  Json request = Json::object({{"messages", *messages}});
  if (const Json* const tools = line.find("tools")) request["tools"] = *tools;
  try {
    return chat.render(request, calibration_date());
  } catch (const Error& error) {
    fail(error.kind(), {"the model's chat template refuses this chat: " + std::string(error.what()), file,
                        where, "leave the line out"});
  }
}

void append_json_line(const Json& line, const Tokenizer& tokenizer, const std::string& file,
                      const std::string& where, Ids& ids) {
  if (line.is_array()) return append_ids(line, tokenizer.vocabulary_size(), file, where, ids);
  std::string text;
  if (const Json* field = line.find("text"); field != nullptr && field->is_string())
    text = field->as_string();
  else if (const Json* messages = line.find("messages"))
    text = joined_messages(*messages, file, where);
  else
    fail(ErrorKind::kBadInput, {"the line has neither a 'text' string nor 'messages'", file, where, {}});
  const Ids encoded = tokenizer.encode(text);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
}

// One after the other; as chats where there is a template.
void append_json_lines(std::string_view text, const Tokenizer& tokenizer,
                       const std::optional<ChatTemplate>& chat, const std::string& file, Ids& ids) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = "line " + std::to_string(number);
    const Json parsed = Json::parse(line, fmt::format("{}: {}", file, where));
    if (!chat) {
      append_json_line(parsed, tokenizer, file, where, ids);
      continue;
    }
    const Ids encoded = tokenizer.encode(rendered_chat(parsed, *chat, file, where), false);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  }
}

void append_source(Io& io, const std::string& source, const Tokenizer& tokenizer,
                   const std::optional<ChatTemplate>& chat, Ids& ids) {
  const Path path = resolve_text(io, source);
  const std::string file = path.string();
  if (chat && !ends_with(file, ".jsonl"))
    fail(ErrorKind::kBadInput,
         {"a chat template needs chats: a .jsonl file whose lines have 'messages'", file,
          "calibration.chat_template", "name such a file, or write chat_template: false"});
  const std::string text = read_text(io, path, kLargestText);
  if (ends_with(file, ".jsonl"))
    append_json_lines(text, tokenizer, chat, file, ids);
  else if (ends_with(file, ".json"))
    append_ids(Json::parse(text, file, {kLargestText}), tokenizer.vocabulary_size(), file, {}, ids);
  else {
    const Ids encoded = tokenizer.encode(text);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  }
}

std::string hash_of(const std::vector<Ids>& samples) {
  Sha256 hash;
  for (const Ids& sample : samples)
    for (const std::int32_t id : sample) {
      const auto bits = static_cast<std::uint32_t>(id);
      const std::array<std::byte, 4> bytes = {std::byte(bits), std::byte(bits >> 8), std::byte(bits >> 16),
                                              std::byte(bits >> 24)};
      hash.update(bytes);
    }
  return hash.hex();
}

}  // namespace

std::vector<std::size_t> seeded_permutation(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  SplitMix64 random(seed);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[draw_below(random, i)]);
  return order;
}

std::int64_t CalibrationSet::tokens() const {
  std::int64_t total = 0;
  for (const Ids& sample : samples) total += static_cast<std::int64_t>(sample.size());
  return total;
}

CalibrationSet load_calibration(Io& io, const CalibrationRequest& request, const Tokenizer& tokenizer,
                                const std::optional<ChatTemplate>& chat) {
  if (request.chat_template != chat.has_value())
    fail(ErrorKind::kInternal, "a template for chats comes with chat_template, and only then");
  if (request.text.empty())
    fail(ErrorKind::kUsage,
         {"no calibration text is named", {}, "calibration.text", "write text: [builtin:c4]"});
  Ids ids;
  for (const std::string& source : request.text) append_source(io, source, tokenizer, chat, ids);

  const auto length = static_cast<std::size_t>(request.sequence_length),
             wanted = static_cast<std::size_t>(request.samples);
  const std::size_t found = ids.size() / length;
  if (found < wanted)
    fail(ErrorKind::kBadInput, {fmt::format("the calibration text has {} tokens, {} samples of {} need {}",
                                            ids.size(), wanted, length, wanted * length),
                                request.text.front(), "calibration.text",
                                fmt::format("give more text, or at most {} samples", found)});
  const std::vector<std::size_t> order =
      request.shuffle ? seeded_permutation(found, request.seed) : std::vector<std::size_t>();
  CalibrationSet set;
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::size_t first = (request.shuffle ? order[i] : i) * length;
    set.samples.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(first),
                             ids.begin() + static_cast<std::ptrdiff_t>(first + length));
  }
  set.sha256 = hash_of(set.samples);
  return set;
}

}  // namespace llmq
