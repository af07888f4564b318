// Whether a value can satisfy two JSON schemas at once: what tells whether `oneOf` means `anyOf`.
//
// No is proven: by types, by listed plain values, or by a member that one of them requires of an object and
// that cannot satisfy both (the usual tag of a union). Everything else counts as maybe. Cost: the product of
// the schemas' sizes at most, each step of which is charged.
#pragma once
#include <functional>
#include <string>

#include "base/json.h"

namespace llmq {

// What a `$ref` means; Error where nothing is there.
using SchemaTarget = std::function<const Json&(const std::string& reference)>;

// `charge` is called for every step, and may throw.
bool may_overlap(const Json& a, const Json& b, const SchemaTarget& target,
                 const std::function<void()>& charge);

}  // namespace llmq
