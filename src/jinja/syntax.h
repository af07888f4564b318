// The tree a template is parsed to.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace llmq::jinja {

enum class ExpressionKind {
  kConstant,     // value
  kName,         // name
  kList,         // operands
  kTuple,        // operands
  kDict,         // operands: key, value, key, value, ...
  kAttribute,    // operands[0].name
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1] : operands[2] : operands[3]], each of the three may be missing
  kCall,         // operands[0](...)
  kFilter,       // operands[0] | name(...)
  kTest,         // operands[0] is name(...)
  kNot,          // not operands[0]
  kNegate,       // -operands[0]
  kPlus,         // +operands[0]
  kArithmetic,   // operands[0] name operands[1]
  kConcat,       // operands joined as text
  kAnd,          // operands[0] and operands[1]
  kOr,           // operands[0] or operands[1]
  kCompare,      // operands[0] names[0] operands[1] names[1] operands[2] ...
  kConditional,  // operands[1] if operands[0] else operands[2], which may be missing
};

struct Expression;
using ExpressionPointer = std::unique_ptr<const Expression>;

struct Expression {
  ExpressionKind kind;
  int line = 1;
  int depth = 1;  // of the tree below
  std::string name;
  Value value;
  std::vector<ExpressionPointer>
      operands;  // of a call, filter or test: subject, arguments, then the named arguments
  std::vector<std::string>
      names;  // of the named arguments, the last of the operands; operators of a comparison
};

enum class StatementKind {
  kText,      // text
  kOutput,    // {{ value }}
  kIf,        // conditions[i] -> bodies[i]; a last body without condition is the else
  kFor,       // names in value if conditions[0]: bodies[0], bodies[1] when nothing was gone through
  kSet,       // names = value
  kSetBlock,  // names[0] = bodies[0] through the filters of `value`
  kMacro,     // text(names = conditions...): bodies[0]
  kFilter,    // bodies[0] through the filters of `value`
  kScope,     // bodies[0] with variables of its own
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  StatementKind kind;
  int line = 1;
  std::string text;
  ExpressionPointer value;
  std::vector<ExpressionPointer> conditions;
  std::vector<Body> bodies;
  std::vector<std::string> names;  // "space.member" assigns to a namespace
  bool unpacks = false;            // names stand for the parts of the value
};

// What a block's text is in the chain of filters of kSetBlock and kFilter.
inline constexpr std::string_view kBlockText = " block text";

// Error(kBadInput) with `file` and line for what is no template, Error(kUnsupported) for what is not known.
Body parse_template(std::string_view source, const std::string& file);

}  // namespace llmq::jinja
