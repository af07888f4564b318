#include "tools/gpu_layers_option.h"

#include "base/error.h"

namespace llmq::tools {

CLI::Option* add_gpu_layers_option(CLI::App& command, std::optional<int>& layers) {
  return command.add_option("--gpu-layers", layers, "Blocks that --device takes, from the first on; the CPU keeps the others, the embedding and the head. Without it all is on --device")
      ->type_name("N");
}

std::shared_ptr<Backend> placed_backend(EarlyBlocks& early, std::optional<int> layers, const GlobalOptions& globals, const ModelSpec& spec) {
  if (!layers) return chosen_backend(globals);
  if (*layers < 0) fail(ErrorKind::kUsage, {fmt::format("{} blocks", *layers), {}, "--gpu-layers", "give 0 or more"});
  if (globals.device == "auto" || globals.device == "cpu")
    fail(ErrorKind::kUsage, {"there is no device for them: --device is " + globals.device, {}, "--gpu-layers", "add --device cuda, or leave it out"});
  if (static_cast<std::size_t>(*layers) >= spec.blocks.size()) return chosen_backend(globals);
  if (*layers > 0) early = {chosen_backend(globals), *layers};
  GlobalOptions rest = globals;
  rest.device = "cpu";
  return chosen_backend(rest);
}

}  // namespace llmq::tools
