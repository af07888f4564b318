// What the configs of all decoders have in common, whether a decoder is the whole checkpoint or lies in a
// wrapper (model/families/wrapper.h).
#pragma once
#include <cstdint>
#include <set>
#include <string_view>

#include "model/families/family.h"

namespace llmq {

// Keys that say how a model was made, is stored or is sampled from, but not what it computes.
const std::set<std::string_view>& harmless_keys();

// `architectures` names nothing else than this one; absent, it is taken for granted.
void read_architecture(ConfigFields& config, const char* architecture, const char* family, ModelSpec& spec);

// bos_token_id and eos_token_id, where `spec` has none yet.
void read_token_ids(ConfigFields& config, ModelSpec& spec);

// Everything of `spec` that the family's keys say, and the token ids, but not the head: that depends on what
// is stored. Every key must be known, to the family or as harmless; no more blocks than `tensors` are made.
void read_decoder(ConfigFields& config, const Family& family, std::int64_t tensors, ModelSpec& spec);

}  // namespace llmq
