#include "job/loaded_model.h"

#include "base/error.h"
#include "model/open_checkpoint.h"
#include "tensor/buffer.h"

namespace llmq {

LoadedModel open_model(Io& io, const std::string& name) {
  Checkpoint checkpoint = open_checkpoint(io, name);
  ModelSpec spec = ModelSpec::read(checkpoint);
  Tokenizer tokenizer = Tokenizer::open(io, checkpoint.path());
  if (tokenizer.vocabulary_size() > spec.vocab_size)
    fail(ErrorKind::kBadInput,
         {fmt::format("the tokenizer has {} tokens, but the embedding has {} rows",
                      tokenizer.vocabulary_size(), spec.vocab_size),
          checkpoint.path().string(), "tokenizer.json", "use the tokenizer this model was trained with"});
  return_freed_memory();  // tokenizer.json as a tree is larger than the tokenizer
  return {name, std::move(checkpoint), std::move(spec), std::move(tokenizer)};
}

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text,
                                      const std::string& source, bool special) {
  try {
    return tokenizer.encode(text, special);
  } catch (const Error& error) {
    if (!error.detail().file.empty()) throw;
    ErrorDetail detail = error.detail();
    detail.file = source;
    throw Error(error.kind(), detail);
  }
}

ChatTemplate model_chat_template(Io& io, const Path& model) {
  std::optional<ChatTemplate> found = ChatTemplate::open(io, model);
  if (!found)
    fail(ErrorKind::kBadInput, {"the model has no chat template",
                                model.string(),
                                {},
                                "take an instruct model, or put a chat_template.jinja beside its tokenizer"});
  return *std::move(found);
}

}  // namespace llmq
