// `response_format` (OpenAI's) and `structured_outputs` (vLLM's) of a request: what its answers may be.
#pragma once
#include <optional>

#include "grammar/constraint.h"
#include "serve/requests/request_fields.h"

namespace llmq {

// None where answers are free. ApiError 400 where both are given, or anything in them that is not carried
// out.
std::optional<ConstraintSpec> read_constraint(RequestFields& fields);

}  // namespace llmq
