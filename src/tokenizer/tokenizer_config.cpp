#include "tokenizer/tokenizer_config.h"

#include "base/error.h"
#include "io/gguf.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/json_fields.h"

namespace llmq {
namespace {

Json object_in(Io& io, const Path& file) {
  if (!io.exists(file)) return Json::object();
  Json json = Json::parse(read_text(io, file), file.string());
  if (!json.is_object())
    fail(ErrorKind::kBadInput,
         {fmt::format("expected an object, found {}", json.kind()), file.string(), {}, {}});
  return json;
}

}  // namespace

TokenizerConfig tokenizer_config(Io& io, const Path& model) {
  if (!io.is_directory(model)) return {gguf_tokenizer(open_gguf(io, model).header).config, model.string()};
  const Path file = model / "tokenizer_config.json";
  TokenizerConfig config{object_in(io, file), file.string()};
  const Json map = object_in(io, model / "special_tokens_map.json");
  for (const char* name : kSpecialTokens)
    if (const auto token = token_named(map, name); token && !token_named(config.json, name))
      config.json[name] = *token;
  return config;
}

}  // namespace llmq
