// llmq merge MODEL --lora DIR DST: a dense model with an adapter folded into its weights, to be quantized
// anew or served by anything.
#include "tools/conversion.h"
#include "tools/help.h"

namespace llmq::tools {

void add_merge(CLI::App& app, Session& session) {
  auto options = std::make_shared<Conversion>();
  CLI::App* command =
      declare_command(app, "merge", "Fold a LoRA adapter into a dense model",
                      "  llmq merge models/llama --lora adapters/poems out/llama-poems\n"
                      "  llmq quantize --method awq --model out/llama-poems --output out/llama-poems-awq\n");
  command->add_option("model", options->request.source, "Dense model that the adapter was trained on")
      ->required()
      ->type_name("");
  command->add_option("destination", options->destination, "Directory to write")->required()->type_name("");
  command->add_option("--lora", options->request.adapter, "Directory of the adapter, as PEFT saves it")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--dtype", options->dtype,
                   "Type of the tensors: bf16, f16 or f32; by default as they are stored")
      ->type_name("TYPE");
  run_as_conversion(*command, options, session);
}

}  // namespace llmq::tools
