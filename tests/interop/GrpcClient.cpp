// RocketMQ's C++ client of version 5, told by lines; see interop_grpc.py for them. Arguments: the endpoint, tls or plain, and the
// namespace or "".
#include <rocketmq/ErrorCode.h>
#include <rocketmq/Logger.h>
#include <rocketmq/Producer.h>
#include <rocketmq/PushConsumer.h>
#include <rocketmq/SimpleConsumer.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace ROCKETMQ_NAMESPACE;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

struct Seen {
  std::mutex lock;
  Words messages;
};

struct Taken {
  MessageConstSharedPtr message;
  std::string handle;
};

static std::unique_ptr<Producer> producer;
static std::map<std::string, std::unique_ptr<SimpleConsumer>> simple;
static std::map<std::string, std::unique_ptr<PushConsumer>> push;
static std::map<std::string, std::shared_ptr<Seen>> seen;
static std::map<std::string, Taken> taken;

static void check(const std::error_code& ec) {
  if (ec) {
    // The client has numbers of its own.
    std::string name = ec.value() == static_cast<int>(ErrorCode::InvalidReceiptHandle) ? " INVALID_RECEIPT_HANDLE " : " ";
    throw std::runtime_error(std::to_string(ec.value()) + name + ec.message());
  }
}

static std::string joined(const Words& words, const char* between) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); i++) {
    text += (i ? between : "") + words[i];
  }
  return text;
}

static std::string orNothing(const std::string& text) {
  return text.empty() ? "-" : text;
}

static std::string described(const Message& message) {
  auto n = message.properties().find("n");
  return joined({message.body(), std::to_string(message.extension().delivery_attempt), message.id(), orNothing(message.tag()),
                 orNothing(joined(message.keys(), "+")), orNothing(message.group()), n == message.properties().end() ? "-" : n->second},
                ",");
}

static MessageConstPtr message(const Words& words) {
  auto builder = Message::newBuilder();
  builder.withTopic(words[1]).withBody(words[2]);
  for (std::size_t i = 3; i < words.size(); i++) {
    auto at = words[i].find('=');
    std::string name = words[i].substr(0, at), value = words[i].substr(at + 1);
    if (name == "tag") {
      builder.withTag(value);
    } else if (name == "key") {
      builder.withKeys({value});
    } else if (name == "group") {
      builder.withGroup(value);
    } else if (name == "at") {
      builder.availableAfter(std::chrono::system_clock::time_point(std::chrono::milliseconds(std::stoll(value))));
    } else if (name == "n") {
      builder.withProperties({{"n", value}});
    }  // else the end of a transaction
  }
  return builder.build();
}

static FilterExpression expression(const Words& words) {
  std::string text = words[4];
  for (auto& each : text) {
    each = each == '_' ? ' ' : each;
  }
  return FilterExpression(text, words[3] == "sql" ? ExpressionType::SQL92 : ExpressionType::TAG);
}

static ConsumeResult heard(const std::shared_ptr<Seen>& came, const Message& message) {
  std::lock_guard<std::mutex> guard(came->lock);
  came->messages.push_back(described(message));
  return message.body().rfind("bad", 0) == 0 ? ConsumeResult::FAILURE : ConsumeResult::SUCCESS;
}

static std::string run(const Configuration& configuration, const Words& words) {
  const std::string& what = words[0];
  std::error_code ec;
  if (what == "producer") {
    auto builder = Producer::newBuilder();
    builder.withConfiguration(configuration).withTopics(Words(words.begin() + 1, words.end()));
    builder.withTransactionChecker(
        [](const Message& asked) { return asked.body().rfind("commit", 0) == 0 ? TransactionState::COMMIT : TransactionState::ROLLBACK; });
    producer.reset(new Producer(builder.build()));
    return "started";
  }
  if (what == "send") {
    auto receipt = producer->send(message(words), ec);
    check(ec);
    return receipt.message_id + " " + receipt.recall_handle;
  }
  if (what == "recall") {
    std::string topic = words[1], handle = words[2];
    producer->recall(topic, handle, ec);
    check(ec);
    return "recalled";
  }
  if (what == "transaction") {
    auto transaction = producer->beginTransaction();
    producer->send(message(words), ec, *transaction);
    check(ec);
    bool is_open = words[3] == "end=open";
    if (!is_open && !(words[3] == "end=commit" ? transaction->commit() : transaction->rollback())) {
      throw std::runtime_error("the transaction did not end");
    }
    return "sent";
  }
  if (what == "simple") {
    auto builder = SimpleConsumer::newBuilder();
    builder.withConfiguration(configuration).withGroup(words[1]).subscribe(words[2], expression(words));
    simple[words[1]].reset(new SimpleConsumer(builder.withAwaitDuration(std::chrono::seconds(2)).build()));
    return "started";
  }
  if (what == "receive") {
    std::vector<MessageConstSharedPtr> messages;
    simple.at(words[1])->receive(32, std::chrono::seconds(std::stoi(words[2])), ec, messages);
    if (ec.value() != static_cast<int>(ErrorCode::NoContent) && ec.value() != static_cast<int>(ErrorCode::MessageNotFound)) {
      check(ec);
    }
    Words got;
    for (const auto& each : messages) {
      Taken one{each, each->extension().receipt_handle};
      taken[each->body()] = one;
      taken[each->body() + "@" + std::to_string(each->extension().delivery_attempt)] = one;
      got.push_back(described(*each));
    }
    return joined(got, " ");
  }
  if (what == "ack") {
    simple.at(words[1])->ack(*taken.at(words[2]).message, ec);
    check(ec);
    return "done";
  }
  if (what == "hide") {
    auto& one = taken.at(words[2]);
    simple.at(words[1])->changeInvisibleDuration(*one.message, one.handle, std::chrono::seconds(std::stoi(words[3])), ec);
    check(ec);
    return "done";
  }
  if (what == "push") {
    auto& came = seen[words[1]];
    if (!came) {
      came = std::make_shared<Seen>();
    }
    auto listener = [came](const Message& message) { return heard(came, message); };
    auto builder = PushConsumer::newBuilder();
    builder.withConfiguration(configuration).withGroup(words[1]).withListener(listener).subscribe(words[2], expression(words));
    push[words[1]].reset(new PushConsumer(builder.build()));
    return "started";
  }
  if (what == "seen") {
    auto& came = *seen.at(words[1]);
    auto end = Clock::now() + std::chrono::seconds(std::stoi(words[3]));
    for (;;) {
      {
        std::lock_guard<std::mutex> guard(came.lock);
        if (came.messages.size() >= static_cast<std::size_t>(std::stoi(words[2])) || Clock::now() >= end) {
          return joined(came.messages, " ");
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  if (what == "leave") {
    if (!simple.erase(words[1])) {
      push.at(words[1])->shutdown();
      push.erase(words[1]);
    }
    return "left";
  }
  throw std::runtime_error(what);
}

int main(int, char* arguments[]) {
  getLogger().setConsoleLevel(Level::Error);
  getLogger().init();
  auto builder = Configuration::newBuilder();
  builder.withEndpoints(arguments[1]).withSsl(std::string(arguments[2]) == "tls");
  if (*arguments[3]) {
    builder.withNamespace(arguments[3]);
  }
  auto configuration = builder.build();
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream text(line);
    Words words;
    for (std::string word; text >> word;) {
      words.push_back(word);
    }
    std::string said;
    try {
      said = "ok " + run(configuration, words);
    } catch (const std::exception& problem) {
      said = std::string("failed ") + problem.what();
    }
    std::cout << "\n> " << said << std::endl;
  }
  std::_Exit(0);
}
