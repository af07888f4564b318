#include "tools/flags/kv_cache_option.h"

namespace llmq::tools {

CLI::Option* add_kv_cache_option(CLI::App& command, std::string& word) {
  return command
      .add_option(
          "--kv-cache-dtype", word,
          "Type of keys and values: auto (that of --compute), bf16, f32, fp16, int8, int4, fp8 (E4M3) or "
          "fp8_e5m2")
      ->type_name("TYPE")
      ->capture_default_str();
}

}  // namespace llmq::tools
