// Any tokenizer_config.json beside any tiktoken.model: either an Error that names the file, or a tokenizer
// that takes a text apart into ids of its vocabulary.
//
// An input is a line with tokenizer_config.json, and the lines of tiktoken.model.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/expect_named.h"
#include "tests/support/temporary_directory.h"
#include "tokenizer/tiktoken_file.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  static const llmq::testing::TemporaryDirectory directory;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::size_t line = text.find('\n');
  if (line == std::string_view::npos) return 0;
  directory.write(llmq::kTiktokenFile, text.substr(line + 1));
  llmq::expect_named([&] {
    const std::string file = (directory.path() / llmq::kTiktokenFile).string();
    const llmq::Tokenizer tokenizer = llmq::Tokenizer::parse(
        llmq::tiktoken_tokenizer(llmq::system_io(), file, llmq::Json::parse(text.substr(0, line), file)),
        file);
    for (const std::int32_t id : tokenizer.encode("Hello  world's 1234 \n caf\xc3\xa9 aaaaaaaa <|im_end|>"))
      if (id < 0 || id >= tokenizer.vocabulary_size()) std::abort();
  });
  return 0;
}
