#include "tools/flags/placement_option.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "model/divided_block.h"
#include "tools/flags/devices_option.h"

namespace llmq::tools {

void add_placement_options(CLI::App& command, PlacementFlags& flags) {
  command
      .add_option("--gpu-layers", flags.gpu_layers,
                  "Blocks that --device takes, from the first on; the CPU keeps the others, the embedding "
                  "and the head. Without it all is on --device")
      ->type_name("N");
  command
      .add_option("--tensor-parallel-size", flags.members,
                  "Devices of --device (cuda:0, cuda:1, ...) that share the weights, keys and values of "
                  "every block; the result is that of one, bit for bit")
      ->type_name("N")
      ->capture_default_str();
}

namespace {

Placement divided(std::int64_t members, const GlobalOptions& globals) {
  const std::string kinds[] = {"cpu", "cuda", "emulated"}, device = chosen_device(globals);
  if (std::find(std::begin(kinds), std::end(kinds), device) == std::end(kinds))
    fail(ErrorKind::kUsage, {"--device " + device + " is one device",
                             {},
                             "--tensor-parallel-size",
                             "use --device cuda, which has cuda:0, cuda:1 and so on, or leave it out"});
  std::vector<int> numbers(static_cast<std::size_t>(members));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<std::shared_ptr<Backend>> devices = chosen_devices(globals, numbers);
  const std::shared_ptr<Backend> first = devices.front();
  devices.erase(devices.begin());
  return {first, {}, std::move(devices)};
}

Placement partly(int layers, const GlobalOptions& globals, const ModelSpec& spec, DeviceUse use) {
  if (layers < 0)
    fail(ErrorKind::kUsage, {fmt::format("{} blocks", layers), {}, "--gpu-layers", "give 0 or more"});
  if (chosen_device(globals) == "cpu")
    fail(ErrorKind::kUsage, {"there is no device for them: --device is " + globals.device,
                             {},
                             "--gpu-layers",
                             "add --device cuda, or leave it out"});
  Placement placement;
  if (static_cast<std::size_t>(layers) >= spec.blocks.size())
    return {chosen_backend(globals, {}, use), {}, {}};
  if (layers > 0) placement.early = {chosen_backend(globals), layers};
  GlobalOptions rest = globals;
  rest.device = "cpu";
  placement.backend = chosen_backend(rest);
  return placement;
}

}  // namespace

Placement placed(const PlacementFlags& flags, const GlobalOptions& globals, const ModelSpec& spec,
                 DeviceUse use) {
  if (flags.members != 1 && flags.gpu_layers)
    fail(ErrorKind::kUsage, {"a model is divided over devices as a whole, not in part",
                             {},
                             "--tensor-parallel-size",
                             "leave it out, or leave --gpu-layers out"});
  member_spec(spec, flags.members);  // says why where it cannot be
  if (flags.gpu_layers) return partly(*flags.gpu_layers, globals, spec, use);
  if (flags.members > 1) return divided(flags.members, globals);
  return {chosen_backend(globals, {}, use), {}, {}};
}

}  // namespace llmq::tools
