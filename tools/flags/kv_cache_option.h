// --kv-cache-dtype: the type in which a command's engines keep keys and values (job/kv_cache_choice.h).
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace llmq::tools {

CLI::Option* add_kv_cache_option(CLI::App& command, std::string& word);

}  // namespace llmq::tools
