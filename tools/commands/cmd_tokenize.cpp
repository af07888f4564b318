// llmq tokenize MODEL [--text FILE] [--decode] [--chat FILE]: ids for text, text for ids, the text and ids of
// a chat.
#include <cstring>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/io.h"
#include "job/loaded_model.h"
#include "tokenizer/tokenizer.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct TokenizeOptions {
  std::string model, text, chat;
  bool decode = false, no_special = false;
};

std::string input_text(const TokenizeOptions& options) {
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
    if (!list || !list->is_array())
      fail(ErrorKind::kBadInput, {"holds no list of ids",
                                  file,
                                  {},
                                  "give an array of numbers, or an object with one under \"ids\""});
    for (const Json& id : list->items()) {
      if (!id.is_integer())
        fail(ErrorKind::kBadInput,
             {"found " + id.dump() + " where an id should stand", file, {}, "give ids as whole numbers"});
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
      fail(ErrorKind::kBadInput,
           {fmt::format("found '{:.10}' where an id should stand", cursor), file,
            fmt::format("byte {}", cursor - text.c_str()), "give ids as numbers or as JSON"});
    ids.push_back(id);
    cursor = end;
  }
}

// A list of messages, or an object with "messages" and what else the template reads, as the model sees it
// before it answers.
int run_chat(const TokenizeOptions& options, const GlobalOptions& globals) {
  if (!options.text.empty() || options.decode)
    fail(ErrorKind::kUsage,
         {"a chat and another input are given", {}, "--chat", "give one of --chat, --text and --decode"});
  Json request = Json::parse(read_text(system_io(), options.chat), options.chat);
  if (request.is_array()) request = Json::object({{"messages", request}});
  if (!request.is_object())
    fail(ErrorKind::kBadInput, {fmt::format("found {} where a chat should stand", request.kind()),
                                options.chat,
                                {},
                                "give a list of messages, or an object with \"messages\""});
  if (!request.find("add_generation_prompt")) request["add_generation_prompt"] = true;
  const std::string text = model_chat_template(system_io(), options.model).render(request, local_time());
  if (!globals.json) {
    std::cout << text;
    return 0;
  }
  const std::vector<std::int32_t> ids =
      encode_text(Tokenizer::open(system_io(), options.model), text, options.chat, false);
  const auto count = static_cast<std::int64_t>(ids.size());
  std::cout << Json::object(
                   {{"schema", "llmq.tokenize/1"}, {"text", text}, {"ids", ids_json(ids)}, {"count", count}})
                   .dump()
            << "\n";
  return 0;
}

int run(const TokenizeOptions& options, const GlobalOptions& globals) {
  if (!options.chat.empty()) return run_chat(options, globals);
  const Tokenizer tokenizer = Tokenizer::open(system_io(), options.model);
  const std::string input = input_text(options);
  const std::string source = options.text.empty() ? "standard input" : options.text;
  if (options.decode) {
    std::vector<std::int32_t> ids;
    for (const std::int64_t id : read_ids(input, source)) {
      if (id < 0 || id >= tokenizer.vocabulary_size())
        fail(ErrorKind::kBadInput,
             {fmt::format("id {} is outside the vocabulary 0 .. {}", id, tokenizer.vocabulary_size() - 1),
              source,
              {},
              {}});
      ids.push_back(static_cast<std::int32_t>(id));
    }
    const std::string text = tokenizer.decode(ids);
    if (globals.json)
      print_json(Json::object({{"schema", "llmq.tokenize/1"}, {"text", text}}));
    else
      std::cout << text;
    return 0;
  }
  const std::vector<std::int32_t> ids = encode_text(tokenizer, input, source, !options.no_special);
  if (globals.json) {
    const auto count = static_cast<std::int64_t>(ids.size());
    std::cout
        << Json::object({{"schema", "llmq.tokenize/1"}, {"ids", ids_json(ids)}, {"count", count}}).dump()
        << "\n";
    return 0;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i ? " " : "") << ids[i];
  std::cout << "\n";
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Session& session) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = declare_command(
      app, "tokenize", "Turn text into token ids, or ids into text",
      "  echo 'Once upon a time' | llmq tokenize MODEL\n  llmq tokenize MODEL --text wiki.txt --json\n"
      "  llmq tokenize MODEL --chat messages.json\n");
  command->add_option("model", options->model, "Model directory or .gguf file")->required()->type_name("");
  command->add_option("--text", options->text, "File to read; standard input when left out")
      ->type_name("FILE");
  command->add_flag("--decode", options->decode, "Read ids, print text");
  command->add_flag("--no-special", options->no_special, "Do not add special tokens such as BOS");
  command
      ->add_option("--chat", options->chat,
                   "Render this chat (JSON: messages, or an object with messages, tools ...) with the "
                   "model's template")
      ->type_name("FILE");
  command->callback([options, &session] {
    session.only_prints = true;
    session.run = [options, &session] { return run(*options, session.globals); };
  });
}

}  // namespace llmq::tools
