// Any bytes as YAML: either an Error with line and column, or a tree every node of which can be read.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/yaml.h"

namespace {

template <typename Read>
void expect_placed(const Read& read) {
  try {
    read();
  } catch (const llmq::Error& error) {
    if (error.kind() != llmq::ErrorKind::kBadInput || error.detail().where.find(':') == std::string::npos)
      std::abort();
  }
}

void visit(const llmq::Yaml& node) {
  if (node.line() < 1 || node.column() < 1) std::abort();
  expect_placed([&] { node.as_string(); });
  expect_placed([&] { node.as_integer(); });
  expect_placed([&] { node.as_double(); });
  expect_placed([&] { node.as_bool(); });
  if (node.kind() == llmq::Yaml::Kind::kSequence)
    for (const llmq::Yaml& item : node.items()) visit(item);
  if (node.kind() == llmq::Yaml::Kind::kMapping)
    for (const llmq::Yaml::Member& member : node.members()) {
      if (node.find(member.key) != &member.value) std::abort();
      visit(member.value);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  try {
    visit(llmq::Yaml::parse(text, "input.yaml"));
  } catch (const llmq::Error& error) {
    if (error.kind() != llmq::ErrorKind::kBadInput || error.detail().file.empty()) std::abort();
  }
  return 0;
}
