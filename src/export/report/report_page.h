// What a page of figures is made of: the report by linear, and small pieces of HTML.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq::html {

// Reading what may be absent or of another kind.
std::string text_of(const Json& object, std::string_view key);
std::optional<double> number_of(const Json& object, std::string_view key);
const Json::Array& list_of(const Json& object, std::string_view key);

std::string name_html(const std::string& name);  // a name of the checkpoint or of the user, as code
std::string bytes_html(double bytes);
std::string cell(const std::string& html);
std::string heads(std::initializer_list<const char*> names);
std::string amount(const std::optional<double>& value);

// One linear, with the place that its name tells: "model.layers.3.self_attn.q_proj" is q_proj of block 3.
struct Module {
  std::string name, role;
  std::int64_t block = 0;
  std::string method, scheme;
  std::int64_t bits = 16;
  std::optional<double> loss, rtn_loss, relative_error, weight_error;
  const Json* scales = nullptr;
};

struct Page {
  const Json& report;
  std::vector<Module> modules;
  std::vector<std::string> roles;  // in order of appearance, those left dense too
  std::vector<std::int64_t> blocks;
  std::vector<Module> dense;
  bool calibrated = false;  // losses were measured
};

Page read_page(const Json& report);

// Sections; empty where the report has nothing for them.
std::string losses(const Page& page);
std::string bits_by_layer(const Page& page);
std::string scales(const Page& page);

}  // namespace llmq::html
