// Whether a page of HTML is well-formed, and what it says.
#pragma once
#include <fmt/core.h>

#include <cctype>
#include <string>
#include <utility>
#include <vector>

namespace llmq::testing {

// Well-formedness as XML 1.0 has it, as far as this page goes: elements nest and close, attributes are quoted
// and not repeated, and no bare & or < stands in text. `text` gathers what lies between tags, unescaped.
class Markup {
 public:
  explicit Markup(const std::string& source) : s_(source) { read(); }
  std::string error, text;
  std::vector<std::string> elements;

 private:
  void read() {
    if (s_.rfind("<!DOCTYPE html>\n", 0) != 0) return fault("no doctype");
    at_ = 16;
    while (at_ < s_.size() && error.empty()) s_[at_] == '<' ? tag() : character();
    if (error.empty() && !open_.empty()) fault("<" + open_.back() + "> is not closed");
  }
  void fault(const std::string& what) { error = fmt::format("byte {}: {}", at_, what); }
  void character() {
    if (s_[at_] != '&') {
      text += s_[at_++];
      return;
    }
    static const std::vector<std::pair<std::string, char>> kEntities = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
    for (const auto& [entity, c] : kEntities)
      if (s_.compare(at_, entity.size(), entity) == 0) {
        text += c;
        at_ += entity.size();
        return;
      }
    fault("a bare &");
  }
  std::string name() {
    const std::size_t from = at_;
    while (at_ < s_.size() && (std::isalnum(static_cast<unsigned char>(s_[at_])) != 0 || s_[at_] == '-'))
      ++at_;
    return s_.substr(from, at_ - from);
  }
  void tag() {
    ++at_;
    if (at_ < s_.size() && s_[at_] == '/') {
      ++at_;
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed || s_[at_] != '>')
        return fault("</" + closed + "> closes nothing");
      open_.pop_back();
      ++at_;
      return;
    }
    const std::string element = name();
    if (element.empty()) return fault("a bare <");
    elements.push_back(element);
    std::vector<std::string> seen;
    while (at_ < s_.size() && s_[at_] == ' ') {
      ++at_;
      const std::string attribute = name();
      if (attribute.empty() || s_.compare(at_, 2, "=\"") != 0)
        return fault("an attribute of " + element + " is not quoted");
      for (const std::string& other : seen)
        if (other == attribute) return fault(attribute + " is given twice");
      seen.push_back(attribute);
      for (at_ += 2; at_ < s_.size() && s_[at_] != '"'; ++at_)
        if (s_[at_] == '<') return fault("< in an attribute");
      ++at_;
    }
    const bool empty = s_.compare(at_, 2, "/>") == 0;
    if (empty) ++at_;
    if (at_ >= s_.size() || s_[at_] != '>') return fault("<" + element + " has no end");
    ++at_;
    if (!empty) open_.push_back(element);
  }

  const std::string& s_;
  std::size_t at_ = 0;
  std::vector<std::string> open_;
};

}  // namespace llmq::testing
