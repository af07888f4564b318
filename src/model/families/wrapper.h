// Vision-language checkpoints: a decoder of a known family, and beside it a tower and a projector, which llmq
// neither computes nor changes (docs/adr/0021-wrappers.md).
//
// A wrapper says how its config holds the decoder's and which modules are carried along. What the decoder
// computes is its family's alone, with text as the only input.
#pragma once
#include <array>
#include <span>
#include <string_view>

#include "model/families/family.h"

namespace llmq {

// A second tower, which a checkpoint has where its config has this object: its blocks are as many as that
// says.
struct FurtherTower {
  const char* config = nullptr;  // "audio_config"
  std::span<const char* const> parts;
};

struct Wrapper {
  const char* model_type;
  const char* architecture;
  std::span<const Family* const>
      decoders;  // what text_config.model_type may be; the first where it is absent
  // Modules beside the decoder, which may lie below "model." as well.
  std::span<const char* const> parts;
  std::span<const char* const> image_keys;  // of config.json, which act where there is an image
  bool flat = false;  // without a text_config the decoder's keys stand beside vision_config
  // A head that is stored is the model's whatever the config says, and without one it is tied: of classes
  // that tie unless they are told otherwise, around decoders whose configs say that they do not.
  bool ties_without_head = false;
  FurtherTower further = {};
};

std::span<const Wrapper* const> wrappers();
const Wrapper* find_wrapper(std::string_view model_type);  // null: it is none
// That of a wrapper's config.json, null where it says none that is known. For who opens its tensors.
const Family* wrapped_family(const Wrapper& wrapper, const Json& config);

// What lies in the parts, of which those without a tensor are dropped. Error(kBadInput) where one is not
// whole.
void find_carried(const Checkpoint& checkpoint, CarriedSpec& carried);

// Fills `spec` as read_decoder() does, under the names that the checkpoint has; returns whether its head is
// tied. Errors: kBadInput where parts are missing or incomplete, kUnsupported for a decoder or a key that is
// not known.
bool read_wrapper(const Checkpoint& checkpoint, const Wrapper& wrapper, ConfigFields& config,
                  ModelSpec& spec);

}  // namespace llmq
