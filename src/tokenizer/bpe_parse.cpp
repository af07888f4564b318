// Reads `model` of tokenizer.json: type BPE, vocab {token: id}, merges ["a b"] or [["a", "b"]], and the
// options that change ids.
//
// Every piece of a merge and its product must be in the vocabulary; ids are unique and below 2^24, so that a
// table by id is affordable.
#include <fmt/format.h>

#include "base/utf8.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_fields.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostIds = 1 << 24;
constexpr std::size_t kBorderBits = 1u << 18, kRunBits = 1u << 20;

[[noreturn]] void refuse(const std::string& message, const std::string& file, const std::string& where) {
  fail(ErrorKind::kBadInput, {message, file, where, {}});
}

void refuse_option(const Json& model, const char* key, const std::string& file) {
  const Json* value = model.find(key);
  const bool off = !is_set(value) || (value->is_string() && value->as_string().empty()) ||
                   (value->is_number() && value->as_double() == 0);
  if (!off)
    fail(ErrorKind::kUnsupported,
         {fmt::format("BPE option '{}' = {} is not supported", key, value->dump()), file, "model", {}});
}

}  // namespace

void Bpe::read_vocabulary(const Json& vocab, const std::string& file) {
  if (!vocab.is_object())
    refuse(fmt::format("expected an object, found {}", vocab.kind()), file, "model.vocab");
  index_ = StringIndex(vocab.members().size());
  for (const auto& member : vocab.members()) {
    const std::int64_t id = member.second.as_integer();
    if (id < 0 || id >= kMostIds)
      refuse(fmt::format("token '{}' has id {}, outside 0 to {}", member.first, id, kMostIds - 1), file,
             "model.vocab");
    const std::size_t at = static_cast<std::size_t>(id);
    if (at >= tokens_.size()) {
      tokens_.resize(at + 1);
      present_.resize(at + 1);
    }
    if (present_[at])
      refuse(fmt::format("tokens '{}' and '{}' have the same id {}", tokens_[at], member.first, id), file,
             "model.vocab");
    tokens_[at] = member.first;
    present_[at] = true;
    if (!index_.insert(member.first, static_cast<std::int32_t>(id)))
      refuse(fmt::format("token '{}' stands there twice", member.first), file, "model.vocab");
  }
}

// Marks every pair of neighbouring characters (bytes) inside a token that a merge makes, and the runs of it.
void Bpe::note_borders(std::string_view token) {
  std::optional<std::string> bytes;
  if (byte_level_) {
    bytes = from_byte_alphabet(token);
    if (!bytes) {
      can_cut_ = false;  // a product outside the byte alphabet: its symbols are not bytes of the text
      return;
    }
    token = *bytes;
  }
  LastCharacters last;
  std::size_t count = 0;
  const auto mark_run = [&](std::size_t wanted) {
    last.each_run(wanted, [&](std::size_t length, std::uint64_t key) {
      if (length == wanted) set_bit(runs_, key);
    });
  };
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = character_at(token, i);
    i += c.bytes;
    last.add(c.value);
    if (++count > 1) set_bit(borders_, static_cast<std::uint64_t>(last[1]) << 32 | c.value);
    if (count >= LastCharacters::kLongestRun) mark_run(LastCharacters::kLongestRun);
  }
  if (count < LastCharacters::kLongestRun) mark_run(count);
}

void Bpe::add_merge(std::string_view left, std::string_view right, std::uint32_t rank,
                    const std::string& file) {
  const std::string product = std::string(left) + std::string(right);
  const auto need = [&](std::string_view token) {
    const auto id = index_.find(token);
    if (!id)
      refuse(fmt::format("merge {} ('{}' '{}') needs '{}', which is not in the vocabulary", rank, left, right,
                         token),
             file, "model.merges");
    return *id;
  };
  const std::int32_t a = need(left), b = need(right), id = need(product);
  merge_ids_.push_back(id);
  note_borders(product);
  // A stand-in for a byte or for what is unknown is no character of the text: a merge of it joins characters
  // that note_borders cannot see.
  const auto is_stand_in = [&](std::string_view token, std::int32_t token_id) {
    return (token.size() == 6 && token.substr(0, 3) == "<0x") || token_id == unknown_;
  };
  if (is_stand_in(left, a) || is_stand_in(right, b)) can_cut_ = false;
  const std::uint64_t pair =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 | static_cast<std::uint32_t>(b);
  const std::size_t mask = merges_.size() - 1;
  std::size_t i = (pair * 0x9e3779b97f4a7c15u) >> 32 & mask;
  while (merges_[i].id >= 0 && merges_[i].pair != pair) i = (i + 1) & mask;
  merges_[i] = {pair, rank, id};  // of the same pair twice, the last one holds
}

void Bpe::read_merges(const Json& merges, const std::string& file) {
  if (!merges.is_array())
    refuse(fmt::format("expected an array, found {}", merges.kind()), file, "model.merges");
  std::size_t size = 16;
  while (size < merges.items().size() * 2) size *= 2;
  merges_.assign(size, Merge{});
  merge_ids_.reserve(merges.items().size());
  for (const Json& merge : merges.items()) {
    const std::uint32_t rank = static_cast<std::uint32_t>(merge_ids_.size());
    if (merge.is_array()) {
      if (merge.items().size() != 2)
        refuse(fmt::format("merge {} has {} pieces, not 2", rank, merge.items().size()), file,
               "model.merges");
      add_merge(merge.items()[0].as_string(), merge.items()[1].as_string(), rank, file);
      continue;
    }
    const std::string& text = merge.as_string();
    if (text.rfind("#version", 0) == 0) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      refuse(fmt::format("merge {} ('{}') is not two pieces with a space between", rank, text), file,
             "model.merges");
    add_merge(std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1), rank, file);
  }
}

Bpe Bpe::parse(const Json& model, bool byte_level, const std::string& file) {
  if (const Json* type = model.find("type"); type != nullptr && type->as_string() != "BPE")
    refuse_component("model", type->as_string(), file);
  for (const char* option : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    refuse_option(model, option, file);
  Bpe made;
  made.byte_level_ = byte_level;
  made.byte_fallback_ = flag_of(model, "byte_fallback", false);
  made.fuse_unknown_ = flag_of(model, "fuse_unk", false);
  made.ignore_merges_ = flag_of(model, "ignore_merges", false);
  made.borders_.assign(kBorderBits / 64, 0);
  made.runs_.assign(kRunBits / 64, 0);
  made.read_vocabulary(model.at("vocab"), file);

  bool all_bytes = true, all_fallbacks = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(letter, byte_to_letter(static_cast<std::uint8_t>(byte)));
    made.byte_ids_[byte] = made.index_.find(letter).value_or(-1);
    made.fallback_ids_[byte] = made.index_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    all_bytes = all_bytes && made.byte_ids_[byte] >= 0;
    all_fallbacks = all_fallbacks && made.fallback_ids_[byte] >= 0;
  }
  if (const Json* unknown = model.find("unk_token"); is_set(unknown)) {
    const auto id = made.index_.find(unknown->as_string());
    if (!id)
      refuse(fmt::format("unk_token '{}' is not in the vocabulary", unknown->as_string()), file,
             "model.unk_token");
    made.unknown_ = *id;
  }
  for (unsigned c = 0; c < 128; ++c)
    made.ascii_ids_[c] = made.index_.find(std::string(1, static_cast<char>(c))).value_or(-1);
  // Where characters may be left out, those around them merge: then no border is safe.
  made.cut_all_ = byte_level ? all_bytes : made.byte_fallback_ && all_fallbacks;
  made.can_cut_ = made.cut_all_ || (!byte_level && made.unknown_ >= 0);
  made.read_merges(model.at("merges"), file);
  return made;
}

}  // namespace llmq
