// Constrained answers of a small trained model: whole ones satisfy the constraint, the same text comes with
// and without guesses and beside others, and what a step allows is what a look at every token says.
//
// The model's own vocabulary has no brackets, so some of its rare tokens are read as brackets here: the model
// does not know.
#include <gtest/gtest.h>
#include <re2/re2.h>

#include <random>

#include "base/error.h"
#include "grammar/constraint.h"
#include "model/open_checkpoint.h"
#include "runtime/generate.h"

namespace llmq::testing {
namespace {

const std::string kModel = LLMQ_SOURCE_DIR "/tests/models/tinystories-656k";

Tokenizer tokenizer_with_brackets() {
  Json json = Json::parse(read_text(system_io(), kModel + "/tokenizer.json"), "tokenizer.json");
  json["model"]["merges"] = Json::array();  // nothing is encoded with it
  Json vocabulary = Json::object();
  std::int64_t id = 2040;
  std::string others = "{}[]\\/+";
  for (const Json::Member& entry : json.at("model").at("vocab").members()) {
    const bool renamed = entry.second.as_integer() > id && !others.empty();
    vocabulary[renamed ? others.substr(others.size() - 1) : entry.first] = entry.second;
    if (renamed) others.pop_back();
  }
  json["model"]["vocab"] = std::move(vocabulary);
  return Tokenizer::parse(json, "tokenizer.json");
}

class ConstrainedAnswers : public ::testing::Test {
 protected:
  ConstrainedAnswers()
      : tokenizer_(tokenizer_with_brackets()), pieces_(std::make_shared<const TokenPieces>(tokenizer_)) {
    Engine::Options options;
    options.max_context = 256;
    options.kv_tokens = 2048;
    engine_ = Engine::load(open_checkpoint(system_io(), kModel), make_cpu_backend(2), options);
  }

  GenerationRequest request(const ConstraintKind& kind, std::uint64_t seed) const {
    GenerationRequest request;
    request.id = seed;
    request.prompt = {1, 500, 600 + static_cast<std::int32_t>(seed)};
    request.max_tokens = 60;
    request.sampling.seed = seed;
    request.sampling.temperature = static_cast<double>(seed % 3);
    request.constraint = compile_constraint({kind, "constraint"}, pieces_);
    return request;
  }
  struct Answer {
    std::string text;
    std::vector<std::int32_t> tokens;
    std::optional<FinishReason> finish;
    bool operator==(const Answer&) const = default;
  };
  using Answers = std::map<std::pair<std::uint64_t, int>, Answer>;
  Answers serve(const std::vector<GenerationRequest>& requests, Drafter* drafter, std::int64_t at_once) {
    ServingEngine serving(*engine_, &tokenizer_, {{at_once, 64, 256, 1000}, 3}, drafter);
    for (const GenerationRequest& one : requests) EXPECT_FALSE(serving.submit(one).has_value());
    Answers answers;
    while (!serving.idle())
      for (const GenerationEvent& event : serving.step()) {
        Answer& answer = answers[{event.id, event.index}];
        answer.text += event.text;
        answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
        if (event.finish) answer.finish = event.finish;
      }
    accepted_ += serving.statistics().accepted;
    drafted_ += serving.statistics().drafted;
    return answers;
  }

  Tokenizer tokenizer_;
  std::shared_ptr<const TokenPieces> pieces_;
  std::optional<Engine> engine_;
  std::int64_t accepted_ = 0, drafted_ = 0;
};

const char* const kSchema =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 120},
    "kind": {"enum": ["cat", "dog"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}, "required": ["name", "kind"]})";

// Reads back what a constraint promised.
void expect_kept(const ConstraintKind& kind, const std::string& text) {
  if (const auto* choice = std::get_if<OneOfTexts>(&kind)) {
    EXPECT_NE(std::find(choice->texts.begin(), choice->texts.end(), text), choice->texts.end()) << text;
  } else if (const auto* regex = std::get_if<RegexText>(&kind)) {
    EXPECT_TRUE(RE2::FullMatch(text, regex->pattern)) << text;
  } else {
    const Json value = Json::parse(text, "answer");
    EXPECT_TRUE(value.is_object()) << text;
    if (std::holds_alternative<JsonObjectText>(kind)) return;
    EXPECT_TRUE(value.at("name").is_string() &&
                (value.at("kind") == Json("cat") || value.at("kind") == Json("dog")))
        << text;
    const Json *age = value.find("age"), *tags = value.find("tags");
    EXPECT_TRUE(!age || (age->as_integer() >= 1 && age->as_integer() <= 120)) << text;
    EXPECT_TRUE(!tags || tags->items().size() <= 3u) << text;
  }
}

TEST_F(ConstrainedAnswers, AreKeptAloneTogetherAndWithGuesses) {
  const std::vector<ConstraintKind> kinds = {OneOfTexts{{"yes", "no", "maybe not"}},
                                             RegexText{"[A-Z][a-z]{2,8}( [a-z]+){0,5}[.!?]"},
                                             RegexText{"\\d{2}-(\\d|x){3}"},
                                             JsonSchemaText{Json::parse(kSchema, "schema")},
                                             JsonObjectText{},
                                             RegexText{"(Once upon a time, )?there was a [^.\"]+\\."}};
  std::vector<GenerationRequest> requests;
  for (std::uint64_t seed = 0; seed < 48; ++seed) {
    requests.push_back(request(kinds[seed % kinds.size()], seed));
    if (seed % 5 == 0) requests.back().n = 2;
    if (seed % 7 == 0) requests.back().sampling.top_k = 20;
    if (seed % 11 == 0) requests.back().sampling.repetition_penalty = 1.2;
    if (seed % 4 == 3) requests.back().logprobs = 2;
  }
  const Answers together = serve(requests, nullptr, 16);
  std::size_t whole = 0;
  for (const auto& entry : together) {
    ASSERT_TRUE(entry.second.finish.has_value());
    ASSERT_NE(*entry.second.finish, FinishReason::kFailed);
    if (*entry.second.finish != FinishReason::kStop) continue;
    ++whole;
    expect_kept(kinds[entry.first.first % kinds.size()], entry.second.text);
  }
  EXPECT_GT(whole, together.size() / 2) << "the others reached max_tokens";
  EXPECT_EQ(serve(requests, make_ngram_drafter().get(), 16), together);
  EXPECT_GT(accepted_, 0);
  // Guesses of the model itself under the same constraint are right, but for requests with penalties, of
  // which drafters know nothing.
  Engine::Options options;
  options.max_context = 256;
  options.kv_tokens = 2048;
  const auto twin = make_model_drafter(
      Engine::load(open_checkpoint(system_io(), kModel), engine_->shared_backend(), options), 2048, 64);
  accepted_ = drafted_ = 0;
  EXPECT_EQ(serve(requests, twin.get(), 16), together);
  EXPECT_GT(static_cast<double>(accepted_), 0.8 * static_cast<double>(drafted_))
      << accepted_ << " of " << drafted_;
  for (const GenerationRequest& one : requests)
    for (const auto& answer : serve({one}, nullptr, 4)) EXPECT_EQ(answer.second, together.at(answer.first));
}

TEST_F(ConstrainedAnswers, ATokenIsAllowedWhereItsBytesAre) {
  const auto constraint =
      compile_constraint({JsonSchemaText{Json::parse(kSchema, "schema")}, "schema"}, pieces_);
  std::mt19937 random(5);
  std::size_t looked_at = 0, allowed = 0;
  for (int walk = 0; walk < 10; ++walk) {
    ConstrainedText text(constraint, false);
    TextAutomaton automaton(constraint->program);
    TextAutomaton::State state = automaton.start();
    while (!text.complete()) {
      std::vector<float> logits(2048, 1.0f);
      text.allow_only(text.state(), logits, std::vector<std::int32_t>{2});
      std::vector<std::int32_t> may;
      for (std::int32_t token = 0; token < 2048; ++token) {
        TextAutomaton::State next = pieces_->bytes(token).empty() ? TextAutomaton::kDead : state;
        automaton.renew();
        for (const char c : pieces_->bytes(token))
          if (next != TextAutomaton::kDead) next = automaton.step(next, static_cast<std::uint8_t>(c));
        const bool expected = token == 2 ? automaton.accepts(state) : next != TextAutomaton::kDead;
        ASSERT_EQ(logits[static_cast<std::size_t>(token)] == 1.0f, expected) << token;
        if (expected && token != 2) may.push_back(token);
      }
      ASSERT_FALSE(may.empty());
      looked_at += 2048;
      allowed += may.size();
      const std::int32_t token = may[random() % may.size()];
      text.push(token);
      for (const char c : pieces_->bytes(token)) state = automaton.step(state, static_cast<std::uint8_t>(c));
    }
  }
  EXPECT_GT(allowed, 100u);
  EXPECT_LT(allowed, looked_at);
}

// A set of places differs behind each digit, and all of them would be hundreds of megabytes behind 1,500.
TEST_F(ConstrainedAnswers, StatesOfManyPlacesAreForgotten) {
  ConstrainedText text(compile_constraint({RegexText{"([0-9]{1,90}){1,90}"}, "regex"}, pieces_), false);
  std::int32_t digit = 0;
  while (pieces_->bytes(digit) != "7") ++digit;
  std::size_t most = 0;
  for (int i = 0; i < 1500; ++i) {
    text.push(digit);
    most = std::max(most, text.places());
  }
  EXPECT_GT(most, std::size_t{1} << 18);
  EXPECT_LT(most, std::size_t{1} << 20);
}

// The first token of a text loses its blank in this tokenizer, so those with a blank would be another text
// there.
TEST_F(ConstrainedAnswers, TheFirstTokenOfATextIsWhatIsShown) {
  std::int32_t blank_first = 0;
  while (!pieces_->differs_at_start(blank_first) || !RE2::FullMatch(pieces_->bytes(blank_first), " [a-z]+"))
    ++blank_first;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    GenerationRequest one = request(RegexText{" ?[a-z]+ [a-z]+[.]"}, seed);
    one.prompt = {1};
    one.sampling.logit_bias = {{blank_first, seed % 2 == 0 ? 100.0f : 0.0f}};
    const Answer answer = serve({one}, nullptr, 1).begin()->second;
    EXPECT_TRUE(answer.finish != FinishReason::kStop || RE2::FullMatch(answer.text, " ?[a-z]+ [a-z]+[.]"))
        << answer.text;
    std::string bytes;
    for (const std::int32_t token : answer.tokens) bytes += pieces_->bytes(token);
    EXPECT_EQ(bytes, answer.text);
  }
}

TEST_F(ConstrainedAnswers, EndsAreAllowedOnlyWhereTheTextIsWhole) {
  GenerationRequest one = request(RegexText{"[a-z]{3}( [a-z]{3})?"}, 3);
  one.stop_tokens = {400, 401, 402};  // pieces of text, here ends
  one.min_tokens = 2;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    one.sampling.seed = seed;
    const Answer answer = serve({one}, nullptr, 1).begin()->second;
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_TRUE(RE2::FullMatch(answer.text, "[a-z]{3}( [a-z]{3})?")) << answer.text;
  }
  one = request(RegexText{"ab"}, 1);
  one.ignore_eos = true;
  one.min_tokens = 50;
  const Answer answer = serve({one}, nullptr, 1).begin()->second;
  EXPECT_EQ(answer.text, "ab") << "nothing can follow, whatever was asked for";
}

// Ambiguity that shows only on the way: the answer fails with a sentence, and others go on.
TEST_F(ConstrainedAnswers, ABombEndsItsOwnAnswerOnly) {
  const std::string bomb = "((a?){1000}){1000}b";
  EXPECT_THROW(request(RegexText{bomb}, 3), Error);
  const GenerationRequest requests[] = {request(RegexText{"x{30}" + bomb}, 1),
                                        request(OneOfTexts{{"yes", "no"}}, 2)};
  ServingEngine serving(*engine_, &tokenizer_, {{4, 64, 256, 1000}, 0});
  for (const GenerationRequest& one : requests) EXPECT_FALSE(serving.submit(one).has_value());
  std::map<std::uint64_t, GenerationEvent> last;
  std::size_t written = 0;
  while (!serving.idle())
    for (const GenerationEvent& event : serving.step()) {
      if (event.id == 1) written += event.tokens.size();
      if (event.finish) last[event.id] = event;
    }
  EXPECT_EQ(last.at(1).finish, FinishReason::kFailed);
  EXPECT_NE(last.at(1).failure.find("too many ways"), std::string::npos) << last.at(1).failure;
  EXPECT_GT(written, 5u);
  EXPECT_EQ(last.at(2).finish, FinishReason::kStop);
  EXPECT_EQ(serving.statistics().failed, 1);
}

TEST_F(ConstrainedAnswers, WhatCannotBeWrittenIsRefused) {
  const Tokenizer plain = Tokenizer::open(system_io(), kModel);
  const auto pieces = std::make_shared<const TokenPieces>(plain);
  for (const ConstraintKind& kind :
       {ConstraintKind(JsonObjectText{}), ConstraintKind(RegexText{"a*#"}), ConstraintKind(RegexText{""}),
        ConstraintKind(OneOfTexts{}), ConstraintKind(OneOfTexts{{""}})})
    try {
      compile_constraint({kind, "field"}, pieces);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.detail().where, "field");
      EXPECT_EQ(exit_code(error.kind()), 2);
    }
  EXPECT_NO_THROW(compile_constraint({OneOfTexts{{"{", "x"}}, "field"}, pieces)) << "the other way remains";
}

}  // namespace
}  // namespace llmq::testing
