// What expressions call: operators, attributes, methods, filters, tests and global functions, each as Python
// and jinja2 3.1 define it (autoescape off). An unknown name is Error(kUnsupported), a wrong type
// Error(kBadInput), both with the line.
//
// Where jinja2 makes a generator (map, select, items ...) a list is made here.
#pragma once
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace llmq::jinja {

struct Arguments {
  Items positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position, or of that name.
  const Value* find(std::size_t position, std::string_view name) const;
  const Value& get(Meter& meter, std::size_t position, std::string_view name, std::string_view of) const;
  std::int64_t integer(Meter& meter, std::size_t position, std::string_view name,
                       std::int64_t otherwise) const;
  bool flag(std::size_t position, std::string_view name, bool otherwise) const;
  // Refuses arguments beyond `positions` and names that are not in the list.
  void at_most(Meter& meter, std::size_t positions, std::initializer_list<std::string_view> names,
               std::string_view of) const;
};

// Refuses to use an undefined value.
const Value& defined(Meter& meter, const Value& value);
const std::string& text_of(Meter& meter, const Value& value, std::string_view use);

Value arithmetic(Meter& meter, std::string_view sign, const Value& a, const Value& b);
Value negative(Meter& meter, const Value& value);
Value attribute(Meter& meter, const Value& base, const std::string& name);  // base.name
Value item(Meter& meter, const Value& base, const Value& key);              // base[key]
Value slice(Meter& meter, const Value& base, const Value& start, const Value& stop, const Value& step);

bool has_method(const Value& self, std::string_view name);
Value call_method(Meter& meter, const Value& self, const std::string& name, const Arguments& arguments);
Value apply_filter(Meter& meter, const std::string& name, const Value& subject, const Arguments& arguments);
bool apply_test(Meter& meter, const std::string& name, const Value& subject, const Arguments& arguments);
bool is_global(std::string_view name);
Value call_global(Meter& meter, const std::string& name, const Arguments& arguments, const std::tm& now);

}  // namespace llmq::jinja
