// --devices: several devices of the kind of --device, which share one run.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/command.h"

namespace llmq::tools {

void add_devices_option(CLI::App& command, std::optional<std::string>& devices);
// "0,1" -> {0, 1}. Error(kUsage) for what is no list of different numbers.
std::vector<int> parse_devices(const std::string& devices);
// The first one is the run's own; without a list there is no other. `--device cuda` makes cuda:0, cuda:1,
// ...; `cpu` as many backends on the cores of this machine, of which the first has all of --threads and each
// other one its share. Error(kUsage) for a device of which there is one.
std::vector<std::shared_ptr<Backend>> chosen_devices(const GlobalOptions& globals,
                                                     const std::vector<int>& numbers,
                                                     const std::string& arithmetic = {},
                                                     DeviceUse use = DeviceUse::kServing);

}  // namespace llmq::tools
