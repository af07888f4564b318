// What `llmq generate` does once its flags are read: a prompt is continued, or a conversation held, and the
// text streams to standard output.
#pragma once
#include <string>

#include "runtime/generate.h"
#include "tools/command.h"
#include "tools/constraint.h"
#include "tools/draft.h"
#include "tools/flags/placement_option.h"

namespace llmq::tools {

struct Continuation {
  std::string model, prompt, prompt_file, lora, head = "stored", kv_cache_dtype = "auto";
  bool chat = false;
  PlacementFlags placement;
  DraftOptions draft;
  ConstraintOptions constraint;
  GenerateOptions generate;
};

// Exit codes. The model and what helps it are opened here, and join the options.
int continue_prompt(Continuation& options, const GlobalOptions& globals);
int hold_conversation(Continuation& options, const GlobalOptions& globals);

}  // namespace llmq::tools
