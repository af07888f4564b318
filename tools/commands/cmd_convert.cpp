// llmq convert SRC DST: a change of container without rounding anew, exact or refused; --dtype dequantizes.
// The output has a manifest, as those of quantize have, and a job that is done already is not done again.
#include "export/gguf/type_mix.h"
#include "tools/conversion.h"
#include "tools/help.h"

namespace llmq::tools {

void add_convert(CLI::App& app, Session& session) {
  auto options = std::make_shared<Conversion>();
  CLI::App* command =
      declare_command(app, "convert", "Change the container of a checkpoint, or the type of its numbers",
                      "  llmq convert model.gguf out/model --dtype bf16\n"
                      "  llmq convert DIR out/model-q4_k_m.gguf --to gguf --dtype q4_k_m\n"
                      "  llmq convert out/model-awq out/model-awq-f32 --to safetensors --dtype f32\n"
                      "  llmq convert out/model-ct out/model-gemm --to awq\n"
                      "  llmq convert model.gguf out/model.gguf --to gguf --split-max-size 2GB\n");
  command->add_option("source", options->request.source, "Checkpoint to read")->required()->type_name("");
  command->add_option("destination", options->destination, "Directory, or .gguf file, to write")
      ->required()
      ->type_name("");
  command
      ->add_option("--to", options->request.to,
                   "safetensors (dense), gguf, mlx, bitsandbytes (NF4), compressed-tensors, awq, gptq, "
                   "gptq_v2 or modelopt")
      ->type_name("FORMAT")
      ->capture_default_str();
  command
      ->add_option(
          "--dtype", options->dtype,
          "Type of dense tensors: bf16, f16 or f32; packed ones are dequantized. To mlx: a scheme, "
          "such as w4a16_g64, which is the usual one. To gguf (a GGUF's tensors keep theirs without): " +
              gguf_file_type_names())
      ->type_name("TYPE");
  command
      ->add_option("--tensor-type", options->tensor_types,
                   "To gguf: the type of the linears that match, by their names in the checkpoint, such as "
                   "lm_head=q8_0, 're:.*layers.0.*=q6_k' or model.embed_tokens=dense; may be repeated, and "
                   "the last that matches wins")
      ->type_name("NAME=TYPE")
      ->allow_extra_args(false);
  command->add_flag("--double-quant", options->request.double_quant,
                    "To bitsandbytes: the scales of NF4 in 8 bits, too (bnb_4bit_use_double_quant)");
  command
      ->add_option("--split-max-size", options->split_max_size,
                   "Several files, each with this many bytes of tensors at most, e.g. 2GB: to gguf "
                   "NAME-00001-of-00003.gguf and so on; of a directory the shards, which are of 5 GB without")
      ->type_name("SIZE");
  run_as_conversion(*command, options, session);
}

}  // namespace llmq::tools
