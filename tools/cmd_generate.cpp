// llmq generate MODEL: continues a prompt, streaming the text as it comes.
#include <iostream>

#include "base/error.h"
#include "runtime/generate.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct Options {
  std::string model, prompt, prompt_file, draft, head = "stored";
  bool chat = false;
  std::int64_t num_draft_tokens = 0;
  GenerateOptions generate;
};

std::string prompt_of(const Options& options) {
  if (options.chat) fail(ErrorKind::kUnsupported, {"chat templates are not part of this version", {}, "--chat", "pass the rendered text with --prompt"});
  if (!options.draft.empty() || options.num_draft_tokens != 0)
    fail(ErrorKind::kUnsupported, {"speculative decoding is not part of this version", {}, "--draft", "run without it"});
  if (options.prompt.empty() == options.prompt_file.empty())
    fail(ErrorKind::kUsage, {options.prompt.empty() ? "no prompt is given" : "two prompts are given", {}, "--prompt", "give either --prompt or --prompt-file"});
  return options.prompt.empty() ? read_text(system_io(), options.prompt_file) : options.prompt;
}

Json ids_json(std::span<const std::int32_t> ids) {
  Json list = Json::array();
  for (const std::int32_t id : ids) list.push_back(id);
  return list;
}

int run(const Options& options, const GlobalOptions& globals) {
  const std::string prompt = prompt_of(options);
  check_sampling(options.generate.sampling);
  if (options.generate.max_tokens < 1) fail(ErrorKind::kUsage, {fmt::format("{} tokens", options.generate.max_tokens), {}, "--max-tokens", "give a positive number"});
  watch_signals();
  const LoadedModel model = open_model(system_io(), options.model);
  const std::vector<std::int32_t> ids = encode_text(model.tokenizer, prompt, options.prompt_file.empty() ? "--prompt" : options.prompt_file);
  const std::int64_t length = static_cast<std::int64_t>(ids.size());
  if (length == 0) fail(ErrorKind::kUsage, {"the prompt has no token", {}, "--prompt", "give a prompt of at least one token"});
  if (length >= model.spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("the prompt has {} tokens, but the model has {} positions", length, model.spec.max_position), {}, "--prompt", "shorten it"});
  Engine::Options engine_options;
  engine_options.compute = chosen_compute(globals, Compute::kBFloat16);
  engine_options.max_context = engine_options.kv_tokens = std::min(model.spec.max_position, length + options.generate.max_tokens);
  engine_options.head = head_weight(options.head);
  Engine engine = Engine::load(model.checkpoint, chosen_backend(globals), engine_options);
  log_kernels(engine);
  const GeneratedText result = generate(engine, model.tokenizer, ids, options.generate, [&](std::string_view piece) {
    throw_if_interrupted();
    if (!globals.json) std::cout << piece << std::flush;
  });
  if (!globals.json) {
    std::cout << "\n";
    return 0;
  }
  const Generated& g = result.generated;
  print_json(Json::object({{"schema", "llmq.generate/1"}, {"text", result.text}, {"prompt_tokens", result.prompt_tokens},
                           {"completion_tokens", static_cast<std::int64_t>(g.tokens.size())}, {"token_ids", ids_json(g.tokens)}, {"finish_reason", g.finish_reason},
                           {"compute", compute_name(engine_options.compute)}, {"kernels", kernels_json(engine)}, {"ttft_seconds", g.ttft_seconds}, {"tokens_per_second", g.tokens_per_second},
                           {"speculative", nullptr}}));
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = declare_command(app, "generate", "Continue a prompt, streaming the text",
                                      "  llmq generate out/model-awq --prompt 'Once upon a time' --max-tokens 60\n");
  GenerateOptions& generate = options->generate;
  SamplingOptions& sampling = generate.sampling;
  command->add_option("model", options->model, "Model to run: directory, .gguf file or hub name")->required()->type_name("");
  command->add_option("--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  command->add_option("--prompt-file", options->prompt_file, "File that holds the text to continue")->type_name("FILE");
  command->add_flag("--chat", options->chat, "Talk through the chat template (not in this version)");
  command->add_option("--max-tokens", generate.max_tokens, "Tokens to write at most")->type_name("N")->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0 is greedy")->type_name("T")->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Draw from the likeliest tokens that together reach P")->type_name("P");
  command->add_option("--top-k", sampling.top_k, "Draw from the K likeliest tokens; 0 for all")->type_name("K");
  command->add_option("--min-p", sampling.min_p, "Leave out tokens below this share of the likeliest")->type_name("P");
  command->add_option("--seed", sampling.seed, "The same seed gives the same text")->type_name("N");
  command->add_option("--stop", generate.stop, "Stop before this text; may be given several times")->type_name("TEXT")->allow_extra_args(false);
  command->add_option("--head", options->head, "Output head: stored, or int8, rounded to 8 bits when it is loaded, which decodes faster")->type_name("TYPE")->capture_default_str();
  command->add_option("--draft", options->draft, "A draft model or ngram (not in this version)")->type_name("MODEL");
  command->add_option("--num-draft-tokens", options->num_draft_tokens, "Tokens a draft proposes (not in this version)")->type_name("K");
  command->callback([options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
