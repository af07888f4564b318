#include "jinja/variables.h"

#include <algorithm>

#include "jinja/functions.h"

namespace llmq::jinja {

const Value* Variables::find_in(const Frame& frame, std::string_view name) {
  for (const auto& variable : frame)
    if (variable.first == name) return &variable.second;
  return nullptr;
}

Value Variables::lookup(const std::string& name) const {
  for (std::size_t i = frames_.size(); i-- > base_;)
    if (const Value* found = find_in(frames_[i], name)) return *found;
  if (const Value* found = find_in(frames_[0], name)) return *found;
  for (const auto& member : context_.members)
    if (*member.first.text() == name) return member.second;
  if (is_global(name)) return {std::make_shared<const Function>(Function{name, std::nullopt})};
  return make_undefined("'" + name + "' is undefined");
}

void Variables::assign(std::string_view name, Value value) {
  for (auto& variable : frames_.back())
    if (variable.first == name) {
      variable.second = std::move(value);
      return;
    }
  frames_.back().emplace_back(name, std::move(value));
}

void Variables::assign_target(const std::string& name, Value value) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return assign(name, std::move(value));
  const std::string member = name.substr(dot + 1);
  const Value space = lookup(name.substr(0, dot));
  const auto* found = space.as<std::shared_ptr<Namespace>>();
  if (!found) meter_.refuse("cannot assign attribute on non-namespace object");
  if (member.starts_with('_'))
    meter_.refuse("the chat template stores the underscore-prefixed attribute '" + member.substr(0, 40) +
                  "'");
  if (value.as<std::shared_ptr<Namespace>>())
    meter_.unsupported("the chat template stores a namespace inside another value");
  auto& members = (*found)->members;
  const auto old =
      std::find_if(members.begin(), members.end(), [&](const auto& one) { return one.first == member; });
  if (old != members.end())
    old->second = std::move(value);
  else
    members.emplace_back(member, std::move(value));
}

}  // namespace llmq::jinja
