// llmq tokenize MODEL [--text FILE] [--decode]: ids for text, text for ids.
#include <iostream>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "base/io.h"
#include "tokenizer/tokenizer.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/loaded_model.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct Options {
  std::string model, text, chat;
  bool decode = false, no_special = false;
};

std::string input_text(const Options& options) {
  if (!options.text.empty()) return read_text(system_io(), options.text, std::uint64_t{1} << 32);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

// Ids as JSON (an array, or an object with `ids`) or as numbers separated by spaces, commas or lines.
std::vector<std::int64_t> read_ids(const std::string& text, const std::string& file) {
  std::vector<std::int64_t> ids;
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && (text[start] == '[' || text[start] == '{')) {
    const Json json = Json::parse(text, file, {.max_bytes = std::size_t{1} << 32});
    const Json* list = json.is_object() ? json.find("ids") : &json;
    if (!list || !list->is_array()) fail(ErrorKind::kBadInput, {"holds no list of ids", file, {}, "give an array of numbers, or an object with one under \"ids\""});
    for (const Json& id : list->items()) {
      if (!id.is_integer()) fail(ErrorKind::kBadInput, {"found " + id.dump() + " where an id should stand", file, {}, "give ids as whole numbers"});
      ids.push_back(id.as_integer());
    }
    return ids;
  }
  const char* cursor = text.c_str();
  for (;;) {
    cursor += std::strspn(cursor, " ,\t\r\n");
    if (*cursor == '\0') return ids;
    char* end = nullptr;
    const long id = std::strtol(cursor, &end, 10);
    if (end == cursor)
      fail(ErrorKind::kBadInput, {fmt::format("found '{:.10}' where an id should stand", cursor), file, fmt::format("byte {}", cursor - text.c_str()),
                                  "give ids as numbers or as JSON"});
    ids.push_back(id);
    cursor = end;
  }
}

int run(const Options& options, const GlobalOptions& globals) {
  if (!options.chat.empty()) fail(ErrorKind::kUnsupported, {"chat templates are not part of this version", {}, "--chat", "render the template first and pass the text"});
  const Tokenizer tokenizer = Tokenizer::open(system_io(), options.model);
  const std::string input = input_text(options);
  const std::string source = options.text.empty() ? "standard input" : options.text;
  if (options.decode) {
    std::vector<std::int32_t> ids;
    for (const std::int64_t id : read_ids(input, source)) {
      if (id < 0 || id >= tokenizer.vocabulary_size())
        fail(ErrorKind::kBadInput, {fmt::format("id {} is outside the vocabulary 0 .. {}", id, tokenizer.vocabulary_size() - 1), source, {}, {}});
      ids.push_back(static_cast<std::int32_t>(id));
    }
    const std::string text = tokenizer.decode(ids);
    if (globals.json) print_json(Json::object({{"schema", "llmq.tokenize/1"}, {"text", text}}));
    else std::cout << text;
    return 0;
  }
  const std::vector<std::int32_t> ids = encode_text(tokenizer, input, source, !options.no_special);
  if (globals.json) {
    Json::Array list(ids.begin(), ids.end());
    const auto count = static_cast<std::int64_t>(ids.size());
    std::cout << Json::object({{"schema", "llmq.tokenize/1"}, {"ids", std::move(list)}, {"count", count}}).dump() << "\n";
    return 0;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i ? " " : "") << ids[i];
  std::cout << "\n";
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = declare_command(app, "tokenize", "Turn text into token ids, or ids into text",
                                      "  echo 'Once upon a time' | llmq tokenize MODEL\n  llmq tokenize MODEL --text wiki.txt --json\n");
  command->add_option("model", options->model, "Model directory or .gguf file")->required()->type_name("");
  command->add_option("--text", options->text, "File to read; standard input when left out")->type_name("FILE");
  command->add_flag("--decode", options->decode, "Read ids, print text");
  command->add_flag("--no-special", options->no_special, "Do not add special tokens such as BOS");
  command->add_option("--chat", options->chat, "Messages to render with the chat template (not in this version)")->type_name("FILE");
  command->callback([options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
