// JSON schemas as networks of texts: every text is a value that the schema accepts, though not every such
// value can be written.
//
// Known: type (one or several), properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, minLength, maxLength, pattern, format (date, time, date-time, uuid, ipv4, email), minimum and
// maximum and the exclusive ones and multipleOf of integers, enum, const, anyOf, allOf of one, oneOf of
// schemas that no value can satisfy together (schema_overlap.h), $ref inside the schema, true; title,
// description and their like say nothing. Anything else is refused by its name and place (kUnsupported): a
// keyword that was ignored would be a promise broken in silence. Members come in the order of `properties`,
// and no others beside them, which the schema allows; objects without `properties` have members of any name.
//
// Cost: linear in the schema, times its counts (minItems, maxLength ...); the network's limits hold.
#pragma once
#include <string>

#include "base/json.h"
#include "grammar/text_program.h"

namespace llmq {

// `where`: what goes before places in errors: "schema" makes "schema.properties.age.minimum".
TextPlace schema_texts(TextProgramBuilder& builder, const Json& schema, const std::string& where);

}  // namespace llmq
