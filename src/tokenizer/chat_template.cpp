#include "tokenizer/chat_template.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "jinja/evaluator.h"
#include "tokenizer/json_fields.h"

namespace llmq {
namespace {

// Names of an assistant's reasoning, newest first.
constexpr std::array kReasoning = {"reasoning_content", "thinking", "reasoning"};

[[noreturn]] void refuse_request(const std::string& message, const std::string& where) {
  fail(ErrorKind::kBadInput, {message, {}, where, {}});
}

void put_first(Json& object, const char* key, const Json& value) {
  if (!object.find(key)) object.members().insert(object.members().begin(), {key, value});
}

// A message as Transformers shows it to a template: without nulls, its reasoning under the names that
// templates read.
Json shown_message(const Json& message, const std::string& where) {
  if (!message.is_object())
    refuse_request(fmt::format("expected a message (an object), found {}", message.kind()), where);
  Json shown = Json::object();
  for (const Json::Member& member : message.members())
    if (!member.second.is_null()) shown.members().push_back(member);
  for (const char* name : kReasoning)
    if (const Json* reasoning = shown.find(name)) {
      const Json value = *reasoning;
      put_first(shown, "thinking", value);
      shown["reasoning_content"] = value;
      break;
    }
  return shown;
}

Json shown_messages(const Json& request) {
  const Json* messages = request.find("messages");
  if (!messages || !messages->is_array() || messages->items().empty())
    refuse_request("a chat needs a list of at least one message", "messages");
  Json shown = Json::array();
  for (std::size_t i = 0; i < messages->items().size(); ++i)
    shown.push_back(shown_message(messages->items()[i], fmt::format("messages[{}]", i)));
  return shown;
}

// Null, or a list of objects.
Json shown_list(const Json& request, const char* key) {
  const Json* list = request.find(key);
  if (!list || list->is_null()) return Json();
  if (!list->is_array()) refuse_request(fmt::format("expected a list, found {}", list->kind()), key);
  for (const Json& one : list->items())
    if (!one.is_object())
      refuse_request(fmt::format("expected a list of objects, found {} in it", one.kind()), key);
  return *list;
}

// Every variable of the template.
Json context_of(const Json& request, const Json& special_tokens) {
  Json context = Json::object({{"messages", shown_messages(request)},
                               {"tools", shown_list(request, "tools")},
                               {"documents", shown_list(request, "documents")},
                               {"add_generation_prompt", false}});
  for (const Json::Member& token : special_tokens.members()) context[token.first] = token.second;
  for (const Json::Member& member : request.members()) {
    if (member.first == "messages" || member.first == "tools" || member.first == "documents") continue;
    if (member.first == "add_generation_prompt" && !member.second.is_bool())
      refuse_request("expected true or false, found " + std::string(member.second.kind()), member.first);
    if (member.first == "continue_final_message" && !(member.second == Json(false)))
      fail(ErrorKind::kUnsupported, {"the last message cannot be continued in this version",
                                     {},
                                     "continue_final_message",
                                     "leave it out"});
    context[member.first] = member.second;
  }
  return context;
}

struct NamedTemplate {
  std::string name, file, source;
  jinja::Body body;
};

}  // namespace

struct ChatTemplate::State {
  std::vector<NamedTemplate> templates;  // the default first
  Json special_tokens = Json::object();

  void add(const std::string& name, std::string_view source, const std::string& file) {
    templates.push_back({name, file, std::string(source), jinja::parse_template(source, file)});
  }
  void read_special_tokens(const Json& config) {
    for (const char* name : kSpecialTokens)
      if (const auto token = token_named(config, name)) put_first(special_tokens, name, *token);
  }
  const NamedTemplate& chosen(const Json& request) const {
    const Json* tools = request.find("tools");
    const char* wanted = tools && !tools->is_null() ? "tool_use" : "default";
    const auto found = std::find_if(templates.begin(), templates.end(),
                                    [&](const NamedTemplate& one) { return one.name == wanted; });
    return found == templates.end() ? templates.front() : *found;
  }
};

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& file, const Json& config) {
  const auto state = std::make_shared<State>();
  state->add("default", source, file);
  state->read_special_tokens(config);
  ChatTemplate made;
  made.state_ = state;
  return made;
}

std::optional<ChatTemplate> ChatTemplate::open(Io& io, const Path& model) {
  return open(io, model, tokenizer_config(io, model));
}

std::optional<ChatTemplate> ChatTemplate::open(Io& io, const Path& model, const TokenizerConfig& config) {
  const auto state = std::make_shared<State>();
  const auto add_from_config = [&] {
    const Json* found = config.json.find("chat_template");
    if (!found) return;
    if (found->is_string()) return state->add("default", found->as_string(), config.file);
    if (!found->is_array())
      fail(ErrorKind::kBadInput, {fmt::format("expected a chat template, found {}", found->kind()),
                                  config.file,
                                  "chat_template",
                                  {}});
    for (const Json& one : found->items())
      state->add(one.at("name").as_string(), one.at("template").as_string(), config.file);
    std::stable_partition(state->templates.begin(), state->templates.end(),
                          [](const NamedTemplate& one) { return one.name == "default"; });
  };
  state->read_special_tokens(config.json);
  const Path own = model / "chat_template.jinja";
  if (io.is_directory(model) && io.exists(own)) state->add("default", read_text(io, own), own.string());
  if (state->templates.empty()) add_from_config();
  if (state->templates.empty()) return std::nullopt;
  ChatTemplate made;
  made.state_ = state;
  return made;
}

const std::string& ChatTemplate::source() const { return state_->templates.front().source; }

std::string ChatTemplate::render(const Json& request, const std::tm& now) const {
  const NamedTemplate& chosen = state_->chosen(request);
  jinja::Meter meter({}, chosen.file);
  const jinja::Value context = jinja::from_json(meter, context_of(request, state_->special_tokens));
  return jinja::evaluate(chosen.body, context, now, meter);
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

}  // namespace llmq
