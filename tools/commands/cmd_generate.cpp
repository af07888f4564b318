// llmq generate MODEL: continues a prompt, streaming the text as it comes.
#include "base/error.h"
#include "tools/continuation.h"
#include "tools/flags/kv_cache_option.h"
#include "tools/help.h"

namespace llmq::tools {
namespace {

void check(const Continuation& options) {
  check_draft(options.draft);
  check_sampling(options.generate.sampling);
  if (options.generate.max_tokens < 1)
    fail(ErrorKind::kUsage, {fmt::format("{} tokens", options.generate.max_tokens),
                             {},
                             "--max-tokens",
                             "give a positive number"});
  if (options.generate.min_tokens < 0 || options.generate.min_tokens > options.generate.max_tokens)
    fail(ErrorKind::kUsage,
         {fmt::format("{} tokens are not between 0 and --max-tokens", options.generate.min_tokens),
          {},
          "--min-tokens",
          {}});
}

int run(Continuation& options, const GlobalOptions& globals) {
  check(options);
  options.generate.num_draft_tokens = options.draft.num_draft_tokens();
  if (options.chat) return hold_conversation(options, globals);
  return continue_prompt(options, globals);
}

}  // namespace

void add_generate(CLI::App& app, Session& session) {
  auto options = std::make_shared<Continuation>();
  CLI::App* command =
      declare_command(app, "generate", "Continue a prompt, streaming the text",
                      "  llmq generate out/model-awq --prompt 'Once upon a time' --max-tokens 60\n"
                      "  llmq generate out/model-awq --prompt-file letter.txt --draft ngram\n"
                      "  echo 'Why is the sky blue?' | llmq generate out/model-awq --chat\n");
  GenerateOptions& generate = options->generate;
  SamplingOptions& sampling = generate.sampling;
  command->add_option("model", options->model, "Model to run: directory, .gguf file or hub name")
      ->required()
      ->type_name("");
  command->add_option("--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  command->add_option("--prompt-file", options->prompt_file, "File that holds the text to continue")
      ->type_name("FILE");
  command->add_flag("--chat", options->chat,
                    "Talk: every line of standard input is a turn, rendered with the model's chat template");
  command->add_option("--max-tokens", generate.max_tokens, "Tokens to write at most")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0 is greedy")
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Draw from the likeliest tokens that together reach P")
      ->type_name("P");
  command->add_option("--top-k", sampling.top_k, "Draw from the K likeliest tokens; 0 for all")
      ->type_name("K");
  command->add_option("--min-p", sampling.min_p, "Leave out tokens below this share of the likeliest")
      ->type_name("P");
  command
      ->add_option("--repetition-penalty", sampling.repetition_penalty,
                   "Divide the logits of tokens that were there before by R, or multiply negative ones")
      ->type_name("R");
  command
      ->add_option("--presence-penalty", sampling.presence_penalty,
                   "Take P off the logits of tokens that the answer has")
      ->type_name("P");
  command
      ->add_option("--frequency-penalty", sampling.frequency_penalty,
                   "Take F off them for every time they were written")
      ->type_name("F");
  command->add_option("--seed", sampling.seed, "The same seed gives the same text")->type_name("N");
  command
      ->add_option("--min-tokens", generate.min_tokens,
                   "Among the first N tokens no end token comes, and no stop string ends")
      ->type_name("N");
  command->add_flag("--ignore-eos", generate.ignore_eos, "Go on behind the model's end token");
  command->add_option("--stop", generate.stop, "Stop before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      ->add_option("--head", options->head,
                   "Output head: stored, or int8, rounded to 8 bits when it is loaded, which decodes faster")
      ->type_name("TYPE")
      ->capture_default_str();
  command->add_option("--lora", options->lora, "LoRA adapter, as PEFT saves it, that runs beside the model")
      ->type_name("DIR");
  add_constraint_options(*command, options->constraint);
  add_kv_cache_option(*command, options->kv_cache_dtype);
  add_placement_options(*command, options->placement);
  add_draft_options(*command, options->draft);
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
