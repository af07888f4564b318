// The scheme that a recipe's word means, without a model to fit it to.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "tensor/quant_scheme.h"

namespace llmq::testing {

inline QuantScheme scheme_named(const std::string& text) {
  const SchemeRequest asked = parse_scheme(text);
  QuantScheme scheme;
  scheme.bits = asked.bits;
  scheme.activation_bits = asked.activation_bits;
  scheme.weight_type = asked.weight_type;
  scheme.granularity = asked.granularity.value_or(Granularity::kChannel);
  scheme.group_size = asked.group_size.value_or(scheme.group_size);
  scheme.symmetric = asked.symmetric.value_or(true);
  if (asked.activation_bits != 16)
    scheme.activation_scale =
        asked.static_activations ? ActivationScale::kTensor
        : scheme.granularity == Granularity::kBlock || scheme.scale_form() != ScaleForm::kNumber
            ? ActivationScale::kTokenGroup
            : ActivationScale::kToken;
  EXPECT_EQ(scheme.text(), text);
  return scheme;
}

}  // namespace llmq::testing
